"""What one measurement consists of, handed to the fresh process that makes it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.files import read_json
from dynamo_mlperf.load.settings import LoadSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST_WARM_CONNECTIONS = 1024
_WARM_SECONDS_OF_LOAD = 2.0


@dataclass(frozen=True)
class MeasureSpec:
    """One LoadGen test against running frontends.

    Attributes:
        settings: What LoadGen is told.
        requests: File of request bodies (see `requests.py`), one per sample of the data set.
        frontends: Host and port of each frontend; requests are spread evenly over them.
        out_dir: Where LoadGen's logs and our client's own account go; must hold no logs yet.
        client_workers: Processes that own the HTTP connections.
        request_timeout_s: Seconds after which a request has failed; None = as in the settings.
        keep_text: Whether the generated text goes into LoadGen's accuracy log.
        keep_token_ids: Whether the engine's token ids go there instead, as 32-bit integers, and each first token's id
            with the call that tells LoadGen of it (TEST06); the bodies must ask for them (`chat_body`).
        audit_config: Whether an `audit.config` in the working directory is wanted (a compliance test).
        path: URL path of the chat completions.
        max_tokens: Longest answer that any of the bodies asks for; None = unknown.
    """

    settings: LoadSettings
    requests: Path
    frontends: tuple[tuple[str, int], ...]
    out_dir: Path
    client_workers: int = 1
    request_timeout_s: float | None = None
    keep_text: bool = False
    keep_token_ids: bool = False
    audit_config: bool = False
    path: str = "/v1/chat/completions"
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if not self.frontends:
            raise ConfigError("no frontend to send requests to")
        if self.client_workers < 1:
            raise ConfigError(f"client_workers is {self.client_workers}", "write 1 or more")
        if self.keep_text and self.keep_token_ids:
            raise ConfigError("keep_text and keep_token_ids exclude each other: one log holds one kind of answer")
        if self.timeout_s <= 0:
            raise ConfigError(f"request_timeout_s is {self.timeout_s:g}", "write a time above 0")

    @property
    def timeout_s(self) -> float:
        """Seconds after which a request has failed."""
        return self.settings.request_timeout_s if self.request_timeout_s is None else self.request_timeout_s

    @property
    def warm_connections(self) -> int:
        """Connections that each client process opens before the clock starts."""
        if self.settings.loadgen_scenario == "Offline":
            return min(self.settings.max_in_flight, self.settings.dataset_samples, _MOST_WARM_CONNECTIONS)
        expected = math.ceil(self.settings.target_qps * _WARM_SECONDS_OF_LOAD / self.client_workers)
        return max(1, min(expected, _MOST_WARM_CONNECTIONS))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "settings": self.settings.to_json(),
            "requests": str(self.requests),
            "frontends": [list(pair) for pair in self.frontends],
            "out_dir": str(self.out_dir),
            "client_workers": self.client_workers,
            "request_timeout_s": self.request_timeout_s,
            "keep_text": self.keep_text,
            "keep_token_ids": self.keep_token_ids,
            "audit_config": self.audit_config,
            "path": self.path,
            "max_tokens": self.max_tokens,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> MeasureSpec:
        """The spec that `to_json` wrote.

        Raises:
            ConfigError: A key is missing, unknown or of no use.
        """
        try:
            return cls(
                **{
                    **value,
                    "settings": LoadSettings.from_json(value["settings"]),
                    "requests": Path(value["requests"]),
                    "frontends": tuple((str(host), int(port)) for host, port in value["frontends"]),
                    "out_dir": Path(value["out_dir"]),
                }
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"measurement spec that cannot be read: {error}") from error


def read_spec(path: Path) -> MeasureSpec:
    """The spec in the JSON file at `path`.

    Raises:
        ConfigError: The file is missing or holds no spec.
    """
    try:
        value = read_json(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"measurement spec {path} cannot be read: {error}") from error
    return MeasureSpec.from_json(value)
