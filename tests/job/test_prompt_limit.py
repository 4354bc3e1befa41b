"""A prompt over the context limit is refused before anything starts, by its sample, its length and the limit."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dynamo_mlperf.benchmark.prompt_length import PromptMeter
from dynamo_mlperf.benchmark.prompts import PROMPTS_FILE, load_prompts
from dynamo_mlperf.job.prompt_limit import check_prompts
from dynamo_mlperf.topology.spec import load_topology
from tests.fakes.oracle import Oracle, Script
from tests.job.chain import Place

SAMPLES, LONG = 20, 13


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("limit"))


def _data_set(place: Place) -> tuple[str, int]:
    """Twenty prompts of which one is long; returns its folder and that one's length in tokens."""
    directory = place.root / "assets" / "prompts"
    directory.mkdir(exist_ok=True)
    words = [400 if index == LONG else 4 for index in range(SAMPLES)]
    lines = (json.dumps({"prompt": " ".join(["lamp"] * number)}) + "\n" for number in words)
    (directory / PROMPTS_FILE).write_text("".join(lines))
    meter = PromptMeter(place.root / "assets" / "tiny-qwen3-vl-moe")
    return "assets/prompts", meter.count(load_prompts(directory)[LONG])


def _topology(place: Place, dataset: str, limits: tuple[Any, Any], engine: str = "vllm") -> Path:
    measure = {"benchmark": "gpt-oss-120b", "scenario": "Server", "target_qps": 5, "dataset": dataset}
    roles = {
        name: {"workers": 1, "args": {} if limit is None else {"max-model-len": limit}}
        for name, limit in zip(("prefill", "decode"), limits, strict=True)
    }
    edits = {
        "engine": engine,
        "measure": measure,
        "reduced": {"latency_limit_ms": None, "samples": SAMPLES},
        "roles": None,
    }
    path = place.topology(edits)
    text = path.read_text().replace("engine:", f"roles: {json.dumps(roles)}\nengine:")
    path.write_text(text)
    return path


def test_one_token_too_many_is_refused_by_run_and_by_plan(place: Place) -> None:
    dataset, length = _data_set(place)
    path = _topology(place, dataset, (length - 1, length - 1))
    with place.run(path) as run:
        ended = run.end()
    shown = " ".join(ended.stderr.split())
    assert ended.status == 2
    where = place.root / dataset / PROMPTS_FILE
    assert (
        f"sample {LONG} ({where}:{LONG + 1}) has a prompt of {length} tokens, and with an answer {length - 1} are the limit (max-model-len of prefill)"
        in shown
    )
    assert f"raise it to {length + 1} or more" in shown
    assert not run.paths.root.exists()
    planned = place.command("plan", str(path))
    assert planned.returncode == 2
    assert f"sample {LONG} ({where}:{LONG + 1})" in " ".join(planned.stderr.split())


def test_the_lowest_limit_counts_and_room_for_an_answer_is_needed(place: Place) -> None:
    dataset, length = _data_set(place)
    samples = load_prompts(place.root / dataset)
    fits = load_topology(_topology(place, dataset, (length + 1, length + 1)))
    assert check_prompts(fits, place.root, samples) is None
    for limits in ((length, length + 1), (length + 1, length)):
        with pytest.raises(Exception, match=f"{length} are the limit"):
            check_prompts(load_topology(_topology(place, dataset, limits)), place.root, samples)
    unbounded = load_topology(_topology(place, dataset, (None, None)))
    assert check_prompts(unbounded, place.root, samples) is None, "32768 of the model's own"
    mocked = load_topology(_topology(place, dataset, (None, None), engine="mocker"))
    assert check_prompts(mocked, place.root, samples) is None


def _measure(place: Place, oracle: Oracle, dataset: str, *more: str) -> subprocess.CompletedProcess[str]:
    words = ["--model", "m", "--benchmark", "gpt-oss-120b", "--scenario", "Offline", "--dataset", dataset]
    words += ["--target-qps", "20", "--rehearsal", "--reduced", f"samples={SAMPLES}", "--reduced", "min_duration_s=0.1"]
    return place.command("measure", f"http://127.0.0.1:{oracle.port}", *words, *more)


@pytest.mark.parametrize(
    ("key", "room", "status"), [("max_model_len", 0, 2), ("context_window", 0, 2), ("max_model_len", 1, 0)]
)
def test_the_limit_that_an_endpoint_lists_counts_too(place: Place, key: str, room: int, status: int) -> None:
    dataset, length = _data_set(place)
    tokenizer = ("--tokenizer", "assets/tiny-qwen3-vl-moe")
    with Oracle(Script(ttft_ms=400, listed={key: length + room})) as oracle:
        done = _measure(place, oracle, dataset, *tokenizer, "--run-dir", f"measured-{room}")
    assert done.returncode == status, done.stderr
    shown = " ".join(done.stderr.split())
    said = f"{length} tokens, and with an answer {length} are the limit (by the model list of http://127.0.0.1:{oracle.port})"
    assert (said in shown, f"sample {LONG} (" in shown) == (not room, not room)
    assert (oracle.stats().requests > SAMPLES, (place.root / f"measured-{room}").exists()) == (bool(room), bool(room))


def test_without_the_models_files_the_lengths_are_said_to_be_unknown(place: Place) -> None:
    dataset, length = _data_set(place)
    with Oracle(Script(ttft_ms=400, listed={"max_model_len": length + 1})) as oracle:
        done = _measure(place, oracle, dataset, "--run-dir", "measured")
    assert done.returncode == 0, done.stderr
    assert "not checked: the length of " in " ".join(done.stderr.split())


def test_what_cannot_be_seen_from_here_is_said(place: Place) -> None:
    dataset, length = _data_set(place)
    topology = load_topology(_topology(place, dataset, (length, length)))
    model = place.root / "assets" / "tiny-qwen3-vl-moe"
    hidden = model.rename(model.with_name("elsewhere"))
    try:
        told = check_prompts(topology, place.root, load_prompts(place.root / dataset))
    finally:
        hidden.rename(model)
    assert told == "the length of prompts: the model's files cannot be seen from here"
