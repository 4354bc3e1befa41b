"""Lengths of prompts and answers that a person gives to a rehearsal, where none were published or counted."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from dynamo_mlperf.errors import ConfigError

_SPREAD = 0.8
"""Standard deviation of the logarithm of lengths of which only the mean is known; assumed."""
_NUMBER = r"[0-9]{1,7}(?:\.[0-9]{1,3})?"
_MEAN_AND_SPREAD = re.compile(rf"({_NUMBER})(?::({_NUMBER}))?")


@dataclass(frozen=True)
class TokenLengths:
    """Lengths that are lognormal, in tokens.

    Attributes:
        mean: Their mean.
        log_spread: Standard deviation of their logarithm.
    """

    mean: float
    log_spread: float = _SPREAD

    @property
    def log_middle(self) -> float:
        """Mean of their logarithm."""
        return math.log(self.mean) - self.log_spread**2 / 2.0


@dataclass(frozen=True)
class OwnLengths:
    """What is given, in place of what was counted or published.

    Attributes:
        prompts: Of prompts, image tokens included; None = not given.
        answers: The same of answers.
    """

    prompts: TokenLengths | None = None
    answers: TokenLengths | None = None


def token_lengths(option: str, text: str) -> TokenLengths:
    """`300` or `300:120`: mean and standard deviation in tokens, as the option of that name gives them.

    Raises:
        ConfigError: It is neither, the mean is below 1, or the spread is more than ten times the mean.
    """
    found = _MEAN_AND_SPREAD.fullmatch(text)
    mean, spread = (float(found[1]), float(found[2]) if found[2] else None) if found else (0.0, None)
    if mean < 1.0 or (spread is not None and spread > 10.0 * mean):
        what = f"{option} {text[:40]!r} is no length in tokens: a mean of 1 or more, its spread ten times that at most"
        raise ConfigError(what, f"{option} 300, or with the standard deviation {option} 300:120")
    return TokenLengths(mean) if spread is None else TokenLengths(mean, math.sqrt(math.log1p((spread / mean) ** 2)))
