"""Text prompts: both forms of a line, and every other one refused by file and line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dynamo_mlperf.benchmark import json_lines
from dynamo_mlperf.benchmark.prompts import PROMPTS_FILE, load_prompts
from dynamo_mlperf.benchmark.tiny_prompts import write_tiny_prompts
from dynamo_mlperf.errors import ConfigError


def _write(directory: Path, *lines: str) -> Path:
    (directory / PROMPTS_FILE).write_text("\n".join(lines) + "\n")
    return directory


def test_both_forms_of_a_line(tmp_path: Path) -> None:
    turns = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "why?"}]
    prompts = load_prompts(_write(tmp_path, json.dumps({"prompt": "hü"}), json.dumps({"messages": turns, "id": 7}), ""))
    assert [sample.messages for sample in prompts] == [[{"role": "user", "content": "hü"}], turns]
    assert prompts[1].where == f"{tmp_path / PROMPTS_FILE}:2"
    assert len(prompts[1:]) == 1


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("{", "not JSON"),
        ("[]", "[]"),
        ("{}", "{}"),
        ('{"prompt": "a", "messages": []}', "messages"),
        ('{"prompt": ""}', 'prompt is ""'),
        ('{"prompt": 7}', "prompt is 7"),
        ('{"prompt": "\\ud800"}', "half of a surrogate pair at 0"),
        ('{"prompt": "a\\u0000b"}', "holds a NUL character"),
        ('{"prompt": "a", "prompt": "b"}', 'the key "prompt" stands there twice'),
        ('{"messages": [{"role": "user", "role": "system", "content": "x"}]}', 'the key "role" stands there twice'),
        ('\n{"prompt": "late"}', "a blank line"),
        (' \t\n\n{"prompt": "late"}', "a blank line"),
        ('{"messages": []}', "messages is []"),
        ('{"messages": ["x"]}', 'message "x"'),
        ('{"messages": [{"role": "tool", "content": "x"}]}', 'message {"role": "tool"'),
        ('{"messages": [{"role": "user"}]}', "content is null"),
    ],
)
def test_a_line_that_is_no_prompt_is_named(tmp_path: Path, line: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_prompts(_write(tmp_path, '{"prompt": "good"}', line))
    assert f"{PROMPTS_FILE}:2" in caught.value.what
    assert text in caught.value.what


def test_no_prompts_are_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_prompts(tmp_path)
    with pytest.raises(ConfigError, match="0 prompts"):
        load_prompts(_write(tmp_path, ""))
    (tmp_path / PROMPTS_FILE).write_bytes(b'{"prompt": "\xff"}')
    with pytest.raises(ConfigError, match="not UTF-8 at byte 12"):
        load_prompts(tmp_path)


def test_a_line_without_end_is_refused_before_it_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines, "MOST_BYTES", 40)
    assert len(load_prompts(_write(tmp_path, json.dumps({"prompt": "a" * 25})))) == 1
    with pytest.raises(ConfigError, match=r"prompts\.jsonl:1: a line of more than 40 bytes"):
        load_prompts(_write(tmp_path, json.dumps({"prompt": "a" * 26})))


def test_the_tiny_ones_are_what_they_were(tmp_path: Path) -> None:
    write_tiny_prompts(tmp_path / "prompts")
    prompts = load_prompts(tmp_path / "prompts")
    assert len(prompts) == len({sample.turns for sample in prompts}) == 64
    lengths = [len(sample.turns[0][1].split()) for sample in prompts]
    assert (min(lengths), max(lengths)) == (43, 203)
    assert (
        prompts[0]
        .turns[0][1]
        .startswith("Alderwick number 0 made a small shirt and a heavy cup and a warm weight and ")
    )
