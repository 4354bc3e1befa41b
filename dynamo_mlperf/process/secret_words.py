"""What is a secret, by the name that it goes under or by its own form; and texts with their secrets out.

The one place that decides. A file that holds a secret is refused as it is read; records and pages show `NOT_SHOWN`
where one stands all the same; nothing that leaves the house may hold one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

NOT_SHOWN = "(not recorded)"

FORMS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("a Hugging Face token", ("hf_",), r"\b(hf_[A-Za-z0-9]{20,})"),
    ("an NVIDIA key", ("nvapi-",), r"\b(nvapi-[A-Za-z0-9_-]{20,})"),
    ("an OpenAI or Anthropic key", ("sk-",), r"\b(sk-[A-Za-z0-9_-]{20,})"),
    ("a GitHub token", ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"\b(gh[pousr]_[A-Za-z0-9]{20,})"),
    ("a GitHub token", ("github_pat_",), r"\b(github_pat_[A-Za-z0-9_]{20,})"),
    ("an AWS key", ("AKIA", "ASIA"), r"\b((?:AKIA|ASIA)[A-Z0-9]{16})\b"),
    ("a bearer token", ("Bearer ", "bearer "), r"[Bb]earer ([A-Za-z0-9._~+/-]{20,})"),
    (
        "a private key",
        ("PRIVATE KEY",),
        r"(-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]{0,20}PRIVATE KEY-----|\Z))",
    ),
    ("a password in a URL", (":/",), r":/{1,2}[^/\s:@\"']*:([^/\s:@\"']{3,})@"),  # one slash: taken for a path
)
"""What secrets look like: in words, marks of which such a text has one, and the pattern; its group is the secret."""

_BEHIND = r"\\?[\"']?\s*[=:]\s*"
_WHOLE = r"(?:\\?\"([^\"\\\n]+)|'([^'\n]+)|([^\s\"',}()\\]+))"
_VARIABLES = r"\b[A-Z][A-Z0-9_]{0,60}(?:TOKEN(?![A-Z])|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_?KEY)[A-Z0-9_]{0,60}"
_ALONE = ("password", "passwd", "passphrase", "secret", "credential")
_KEYS_OF = ("api", "access", "auth", "admin", "private", "signing")
_TOKENS_OF = ("hf", "hub", "auth", "access", "api", "bearer", "refresh", "session")
_WORDS = rf"(?:{'|'.join(_ALONE)}s?|(?:{'|'.join(_KEYS_OF)})[_-]?key|(?:{'|'.join(_TOKENS_OF)})[_-]?token)"
_OPTIONS = r"--[a-z0-9-]{0,60}(?:password|passwd|secret|api-?key|access-?key|token)[= ]\s*"

ASSIGNED = rf"(?P<name>{_VARIABLES}){_BEHIND}\\?[\"']?(?P<secret>[^\s\"',}}()\\]{{8,}})"
"""A variable that is named as a secret, and its value, where it is long enough to be one."""
WRITTEN = rf"(?:{_OPTIONS}|(?i:{_WORDS}){_BEHIND})\\?[\"']?(?P<secret>[^\s\"',}}()\\]{{8,}})"
"""The same of an option of a program, or of a key."""
WORD_MARKS = (
    *_ALONE,
    *(f"{owner}{joint}key" for owner in _KEYS_OF for joint in ("", "_", "-")),
    *(f"{owner}{joint}token" for owner in _TOKENS_OF for joint in ("", "_", "-")),
)
"""In small letters, one of which a text with a secret's name has: a plain search passes over nearly all texts."""
NO_LITERAL = r"\(not|\$\{?[A-Z_a-z0-9]+\}?$"
"""What stands in a secret's place without being one: our own mark, or the name of a variable."""
_NOTHING = rf"{NO_LITERAL}|(?:null|none|true|false)$|\*+|[0-9.]+$"
"""The same behind a name: a number there counts something."""

_VARIABLE = re.compile(r"SECRET|PASSW|CREDENTIAL|PRIVATE|API_?KEY|ACCESS_?KEY|(?:TOKEN|KEY)(?:_|$)", re.IGNORECASE)
_KEY = re.compile(rf"{_WORDS}$|^token$", re.IGNORECASE)
_NO_LITERAL = re.compile(NO_LITERAL)
_NO_VALUE = re.compile(_NOTHING, re.IGNORECASE)
_TOLD = re.compile(r":[ \t]+$")
_PLAIN = re.compile(r"[A-Za-z][a-z]{0,15}(?:[-_/.][A-Za-z][a-z]{0,15}){0,2}[.;:!?]?")
_CHOSEN = re.compile("passw|passphrase|secret|credential", re.IGNORECASE)
_READS_ON = re.compile(r",? [a-z]")
_COMPILED = tuple((what, marks, re.compile(form)) for what, marks, form in FORMS)
_LONG = ((re.compile(ASSIGNED), "a value of {}"), (re.compile(WRITTEN), "a value of what is named as a secret"))
_NAMED = re.compile(rf"(?:{_OPTIONS}|(?i:{_VARIABLES}|{_WORDS}){_BEHIND}){_WHOLE}")
_SENTENCE = re.compile(r"[a-z]+,? [a-z]")
AFTER = 3
"""Characters behind a value that tell whether a sentence goes on."""


def is_secret_name(name: str) -> bool:
    """Whether an environment variable of this name may hold a secret."""
    return _VARIABLE.search(name) is not None


def is_secret_key(name: str) -> bool:
    """Whether a key of a file, or an option of a program, of this name holds a secret: `api-key`, not `eos-token`."""
    return _KEY.search(name) is not None


def is_literal(value: object) -> bool:
    """Whether what stands under a secret's name is a value, and not the name of a variable, a switch or nothing."""
    if isinstance(value, bool) or value is None:
        return False
    return not isinstance(value, str) or (bool(value.strip()) and not re.fullmatch(r"\$\{?\w+\}?", value.strip()))


def is_value(named: str, value: str, rest: str) -> bool:
    """Whether what stands behind a secret's name is a value, and not a word about it: `api-key: documentation`.

    Machines make keys and tokens, and none of a word's letters alone; a person may choose a word for a password, so
    that one is none only where a sentence goes on behind it.

    Args:
        named: The name, and what stands between it and the value.
        value: What may be one.
        rest: What follows, a few characters of it.
    """
    if _NO_VALUE.match(value):
        return False
    if not _TOLD.search(named) or not _PLAIN.fullmatch(value):
        return True
    return _CHOSEN.search(named) is not None and not _READS_ON.match(rest)


def secret_in(text: str) -> str | None:
    """What in `text` looks like a secret, in words that do not show it; None where nothing does."""
    for what, marks, form in _COMPILED:
        if any(mark in text for mark in marks) and any(not _NO_LITERAL.match(value) for value in form.findall(text)):
            return what
    if not _may_be_named(text):
        return None
    for form, what in _LONG:
        for match in form.finditer(text):
            start, end = match.span("secret")
            if is_value(text[match.start() : start], match["secret"], text[end : end + AFTER]):
                return what.format(match.groupdict().get("name"))
    return None


def redacted(text: str) -> str:
    """`text` with `NOT_SHOWN` in place of whatever looks like a secret, or stands behind a secret's name."""
    text = _without_forms(text)
    return _NAMED.sub(lambda match: _hidden(match, _NO_VALUE), text) if _may_be_named(text) else text


def redacted_sentence(text: str) -> str:
    """The same of an error of ours, where `HF_TOKEN: looks like ...` names a place and reads on, and shows no value.

    Whoever puts a foreign text into an error behind such a name takes its secrets out there, by `redacted`.
    """
    text = _without_forms(text)
    return _NAMED.sub(_hidden_unless_sentence, text) if _may_be_named(text) else text


def _without_forms(text: str) -> str:
    for _what, marks, form in _COMPILED:
        if any(mark in text for mark in marks):
            text = form.sub(lambda match: _hidden(match, _NO_LITERAL), text)
    return text


def _hidden_unless_sentence(match: re.Match[str]) -> str:
    start = match.start(match.lastindex or 0)
    sentence = match.string[:start].endswith(": ") and _SENTENCE.match(match.string, start)
    return match[0] if sentence else _hidden(match, _NO_VALUE)


def _may_be_named(text: str) -> bool:
    small = text.lower()
    return "TOKEN" in text or ("--" in text and "token" in small) or any(mark in small for mark in WORD_MARKS)


def _hidden(match: re.Match[str], kept: re.Pattern[str]) -> str:
    group = match.lastindex or 0
    if kept.match(match[group]):
        return match[0]
    start, end = (place - match.start() for place in match.span(group))
    return f"{match[0][:start]}{NOT_SHOWN}{match[0][end:]}"


def redacted_words(words: Iterable[str]) -> list[str]:
    """An argument vector with its secrets out: `--api-key X` too, where the value is a word of its own."""
    found: list[str] = []
    named = False
    for word in words:
        found.append(NOT_SHOWN if named and is_literal(word) and not word.startswith("--") else redacted(word))
        named = word.startswith("-") and "=" not in word and is_secret_key(word)
    return found


def without_secrets(value: Any) -> Any:  # noqa: ANN401 - anything that JSON can carry
    """A JSON value with its secrets out; texts under a secret's name, argument vectors, and whatever looks like one."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, list):
        texts = bool(value) and all(isinstance(part, str) for part in value)
        return redacted_words(value) if texts else [without_secrets(part) for part in value]
    if isinstance(value, dict):
        return {key: _under(key, part) for key, part in value.items()}
    return value


def _under(key: object, value: Any) -> Any:  # noqa: ANN401 - anything that JSON can carry
    name = str(key)
    secret = is_secret_key(name) or (name.isupper() and is_secret_name(name))
    return NOT_SHOWN if secret and isinstance(value, str) and is_literal(value) else without_secrets(value)
