"""What counts as a secret, and texts with theirs out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dynamo_mlperf.process.secret_words import (
    NOT_SHOWN,
    is_secret_key,
    is_secret_name,
    redacted,
    redacted_sentence,
    redacted_words,
    secret_in,
    without_secrets,
)
from dynamo_mlperf.submission.secret_scan import secrets_in

if TYPE_CHECKING:
    from pathlib import Path

LONG = "abcdEFGH" * 4
"""Joined to a vendor's mark here, so that this file holds nothing that looks like a key."""


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        (f"hf_{LONG}", f"hf_{LONG}"),
        (f"x=nvapi-{LONG}, y", f"nvapi-{LONG}"),
        (f"key sk-{LONG}", f"sk-{LONG}"),
        (f"ghp_{LONG}", f"ghp_{LONG}"),
        (f"github_pat_{LONG}", f"github_pat_{LONG}"),
        ("AKIA" + "ABCDEFGH" * 2, "AKIA" + "ABCDEFGH" * 2),
        (f"Authorization: Bearer {LONG}", LONG),
        ("git+https://me:hunter2@host/x", "hunter2"),
        ("https://:12345@host/x", "12345"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\n", "MIIE"),
        ("-----BEGIN PRIVATE KEY-----\nMIIE\nlog was cut", "MIIE"),
        (f"export HF_TOKEN={LONG}", LONG),
        (f"serve --api-key {LONG} --port 1", LONG),
        (f'{{"access_token": "{LONG}"}}', LONG),
        (f"{{'db-password': '{LONG}'}}", LONG),
        (f"clientSecret: {LONG}", LONG),
    ],
)
def test_a_secret_is_found_by_its_form_or_its_name(text: str, hidden: str) -> None:
    what = secret_in(text)
    assert what
    assert hidden not in what
    assert hidden not in redacted(text)
    assert NOT_SHOWN in redacted(text)
    assert redacted(redacted(text)) == redacted(text)
    assert secret_in(redacted(text)) is None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("args: {api-key: hunter2, seed: 1}", f"args: {{api-key: {NOT_SHOWN}, seed: 1}}"),
        ("HF_TOKEN: 'a b c'  # mine", f"HF_TOKEN: '{NOT_SHOWN}'  # mine"),
        (r"x {\"api_key\": \"hunter2\", \"n\": 1}", rf"x {{\"api_key\": \"{NOT_SHOWN}\", \"n\": 1}}"),
    ],
)
def test_short_values_are_hidden_behind_a_secrets_name(text: str, shown: str) -> None:
    assert redacted(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("x.yaml:9: roles.prefill.env.HF_TOKEN: looks like a secret, and", None),
        ("api-key: no such key; did you mean seed?", None),
        ("HF_TOKEN: hunter2 is short", f"HF_TOKEN: {NOT_SHOWN} is short"),
        ("password: correcthorse", f"password: {NOT_SHOWN}"),
        ("HF_TOKEN=abcdef ghi", f"HF_TOKEN={NOT_SHOWN} ghi"),
        (f"HF_TOKEN: looks like hf_{LONG}", f"HF_TOKEN: looks like {NOT_SHOWN}"),
    ],
)
def test_an_error_of_ours_keeps_its_words_and_loses_its_secrets(text: str, shown: str | None) -> None:
    assert redacted_sentence(text) == (shown or text)


@pytest.mark.parametrize(
    "text",
    [
        "serve --tokenizer /models/llama-2-70b --max-num-batched-tokens 16384 --stop-token-ids 1,2",
        "TOKENIZERS_PARALLELISM: abcdefghijkl",
        '{"token_count": 3886, "first_token_latency": 123456789012, "eos_token": "<|end_of_text|>"}',
        "api_key: ${MY_API_KEY}  password: null  hf-token: true",
        "image: docker://me:${REGISTRY_PASSWORD}@registry/x",
        "http://127.0.0.1:8000/v1 a@b.c hf_hub_download task-force risk-adjusted-figures",
    ],
)
def test_what_is_none_stands_as_it_is(text: str) -> None:
    assert secret_in(text) is None
    assert redacted(text) == text


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("# api-key: documentation", False),
        ("# api-key:  documentation/secrets.md", False),
        ("# HF_TOKEN: everything is staged, so none is needed", False),
        ("# secrets: everything is staged before", False),
        ("# password: documentation, see there", False),
        ("# password: correcthorse", True),
        ("# password: correcthorse1 is the old one", True),
        ("# api-key: documentation1", True),
        ("# api-key=documentation", True),
        ('# api-key: "documentation"', True),
        ("# api-key: abcdefghijklmnopqrst", True),
        ("# api-key: abcd-efgh-ijkl-mnop", True),
        ("# api-key: aBcdEfghIjkl", True),
        ("# --api-key documentation", True),
        (f"# HF_TOKEN: {LONG}", True),
        (f"# token hf_{LONG}", True),
    ],
)
def test_a_word_about_a_secret_is_none(text: str, holds: bool, tmp_path: Path) -> None:  # noqa: FBT001
    """In a comment a reader is told something; what a machine made, or a person chose as a password, is no such word."""
    assert (secret_in(text) is not None) == holds
    (tmp_path / "topology.yaml").write_text(text)
    assert bool(secrets_in([tmp_path / "topology.yaml"], {})) == holds, "what may be measured may be submitted"


def test_names_of_variables_and_of_keys() -> None:
    secret = ("HF_TOKEN", "HF_TOKEN_FILE", "AWS_SECRET_ACCESS_KEY", "db_password", "KAGGLE_KEY", "NGC_API_KEYS")
    assert [name for name in secret if not is_secret_name(name)] == []
    plain = ("TOKENIZERS_PARALLELISM", "VLLM_MAX_TOKENS", "UCX_TLS", "KEYBOARD", "PATH", "XDG_CACHE_HOME")
    assert [name for name in plain if is_secret_name(name)] == []
    assert all(map(is_secret_key, ("api-key", "admin_api_key", "apiKey", "hf-token", "token", "auth.password")))
    assert not any(map(is_secret_key, ("eos-token", "stop-token-ids", "tokenizer", "ssl-keyfile", "max-num-seqs")))


def test_an_argument_vector_loses_the_word_behind_a_secrets_option() -> None:
    words = ["serve", "--api-key", "-x9", "--model", "m", "--hf-token", "--seed", "1", "--api-key=hunter2"]
    assert redacted_words(words) == [
        *("serve", "--api-key", NOT_SHOWN, "--model", "m", "--hf-token", "--seed", "1"),
        f"--api-key={NOT_SHOWN}",
    ]


def test_a_json_value_loses_what_stands_under_a_secrets_key() -> None:
    value = {"env": {"HF_TOKEN": "x", "A": "b"}, "api_key": "k", "n": 5, "l": [{"password": "p"}, f"hf_{LONG}"]}
    assert without_secrets(value) == {
        "env": {"HF_TOKEN": NOT_SHOWN, "A": "b"},
        "api_key": NOT_SHOWN,
        "n": 5,
        "l": [{"password": NOT_SHOWN}, NOT_SHOWN],
    }
