"""What `--json` prints is JSON to every reader, whatever the values are."""

from __future__ import annotations

import json

import pytest

from dynamo_mlperf.cli.output import json_text


def test_what_json_has_no_number_for_is_a_word() -> None:
    value = {"a": float("nan"), "b": [1.5, (float("inf"), None)], "c": {"d": float("-inf")}, "e": "nan"}
    read = json.loads(json_text(value, indent=2), parse_constant=pytest.fail)
    assert read == {"a": "nan", "b": [1.5, ["inf", None]], "c": {"d": "-inf"}, "e": "nan"}
