"""`judge_directory` on a run of ours that somebody edited, cut or moved: never VALID, and never an unexpected error."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dynamo_mlperf.benchmark.rules import benchmark
from dynamo_mlperf.errors import ExitCode, MeasureError
from dynamo_mlperf.load.directory import Wanted, judge_directory
from dynamo_mlperf.load.logs import DETAIL
from dynamo_mlperf.load.settings import below_rules, build_settings
from tests.fakes.odd_files import ODD
from tests.load.test_judge_directory import texts
from tests.load.test_judge_pieces import own_run

NAN = float("nan")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of ours, made once."""
    return own_run(tmp_path_factory.mktemp("made") / "run", 20)


@pytest.fixture
def ours(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "run")


def _edit(path: Path, change: Callable[[Any], object]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def _end(text: str) -> Callable[[Path], None]:
    """Another end for one query."""

    def edit(root: Path) -> None:
        lines = (root / "loadgen" / "queries.csv").read_text().splitlines()
        cells = lines[5].split(",")
        cells[4] = text
        lines[5] = ",".join(cells)
        (root / "loadgen" / "queries.csv").write_text("\n".join(lines) + "\n")

    return edit


def _unreduced(root: Path) -> None:
    _edit(root / "measure.json", lambda spec: spec["settings"].update(reduced=False))
    topology = root / "topology.yaml"
    topology.write_text(topology.read_text().replace("reduced: {samples: 64}\n", ""))


def _engine(root: Path, engine: str, started: str) -> None:
    topology = root / "topology.yaml"
    topology.write_text(topology.read_text().replace("engine: vllm", f"engine: {engine}"))
    start = {"process": "decode-0", "argv": ["nice", "python", "-m", started]}
    (root / "commands.jsonl").write_text(json.dumps(start) + "\n")


def _other_sample(root: Path) -> None:
    lines = (root / "loadgen" / "queries.csv").read_text().splitlines()
    lines[5] = ",".join([lines[5].split(",")[0], str(5 * 10**9), *lines[5].split(",")[2:]])
    (root / "loadgen" / "queries.csv").write_text("\n".join(lines) + "\n")


def _lost_at_the_end(root: Path) -> None:
    log = root / "loadgen" / DETAIL
    log.write_text(log.read_text().replace('"result_query_count", "value": 64', '"result_query_count", "value": 63'))


def _side_test(root: Path, recorded: str | None, found: str) -> None:
    _edit(root / "verdict.json", lambda it: it.update(tests={"TEST06": recorded} if recorded else {}))
    (root / "TEST06").mkdir()
    (root / "TEST06" / "result.json").write_text(json.dumps({"verdict": found}))


INVALID: dict[str, tuple[Callable[[Path], object], str]] = {
    "evidence lost": (
        lambda root: (root / "evidence.json").unlink(),
        "proof of disaggregation: wanted engine counters, got no evidence.json. copy the whole run directory",
    ),
    "evidence of another kind": (
        lambda root: _edit(root / "evidence.json", lambda it: it["transfer"].update(disaggregated=False, proof="none")),
        "proof of disaggregation",
    ),
    "class": (_unreduced, "class of the result: wanted settings of the rules, got lowered: min_duration_ms"),
    "engine": (lambda root: _engine(root, "mocker", "dynamo.vllm"), "class of the result: wanted reduced, as the run"),
    "reasons lost": (
        lambda root: (root / "verdict.json").write_text('{"verdict": "INVALID", "reasons": []}'),
        "verdict of the run itself",
    ),
    "failure hidden": (
        lambda root: _edit(root / "loadgen" / "client.json", lambda it: it["failed"].append({"sample": 1})),
        "failed requests in both files",
    ),
    "sample far outside": (_other_sample, "equal issue"),
    "queries lost at the end": (_lost_at_the_end, "queries that ended by LoadGen's log: wanted 64, got 63"),
    "another rate recorded": (
        lambda root: _edit(root / "verdict.json", lambda it: it.update(target_qps=99)),
        "figures that the run itself recorded: wanted those of its files, got others: target_qps",
    ),
    "a test that did not pass": (
        lambda root: _side_test(root, "VALID", "INVALID"),
        "TEST06 test: wanted VALID, as the run itself recorded, got INVALID in its result.json",
    ),
    "a test that is gone": (
        lambda root: _edit(root / "verdict.json", lambda it: it.update(tests={"accuracy": "VALID"})),
        "accuracy test: wanted VALID, as the run itself recorded, got none in its result.json",
    ),
}


@pytest.mark.loadgen
@pytest.mark.parametrize("name", INVALID)
def test_a_tampered_run_of_ours_is_invalid(ours: Path, name: str) -> None:
    edit, said = INVALID[name]
    edit(ours)
    verdict = judge_directory(ours)
    assert (verdict.verdict, said in texts(verdict)) == ("INVALID", True)


@pytest.mark.loadgen
def test_a_test_that_verdict_json_lost_counts_all_the_same(ours: Path) -> None:
    _side_test(ours, None, "INVALID")
    verdict = judge_directory(ours)
    assert (verdict.tests, verdict.exit_code) == ({"TEST06": "INVALID"}, ExitCode.INVALID)


@pytest.mark.loadgen
@pytest.mark.parametrize("end", ["", "nan", "inf", "-5", "1" + "0" * 400])
def test_a_query_without_an_end_is_no_measurement(ours: Path, end: str) -> None:
    _end(end)(ours)
    assert judge_directory(ours).verdict == "FAILED"


@pytest.mark.loadgen
@pytest.mark.parametrize("left", [[], [{"name": "loadgen", "role": "loadgen", "cpu_s": 1.0}], ["http"]])
def test_an_account_without_a_client_process_is_none(ours: Path, left: list[object]) -> None:
    _edit(ours / "loadgen" / "client.json", lambda it: it.update(processes=left))
    assert judge_directory(ours).verdict == "FAILED"


def _pipe(root: Path) -> None:
    (root / "loadgen" / "queries.csv").unlink()
    os.mkfifo(root / "loadgen" / "queries.csv")


def _counted(**counts: object) -> Callable[[Path], None]:
    return lambda root: _edit(root / "evidence.json", lambda it: it["transfer"].update(counts))


def _cut_topology(root: Path) -> None:
    text = (root / "topology.yaml").read_text()
    (root / "topology.yaml").write_text(text[: text.index("measure:")])


NOTHING: dict[str, Callable[[Path], object]] = {
    "requests in words": _counted(requests="64"),
    "bytes in a list": _counted(kv_bytes=[1]),
    "more than can be counted": _counted(kv_bytes=10**400),
    "not a number": _counted(transfers=NAN),
    "an unknown proof": _counted(proof="trust me"),
    "a topology that is cut": _cut_topology,
    "a process without a command": lambda root: (root / "commands.jsonl").write_text('{"argv": {}}\n'),
    "rate of 0": lambda root: _edit(root / "measure.json", lambda it: it["settings"].update(target_qps=0)),
    "another engine": lambda root: _engine(root, "vllm", "dynamo.mocker"),
    "no settings": lambda root: (root / "measure.json").unlink(),
    "no topology": lambda root: (root / "topology.yaml").unlink(),
    "no command lines": lambda root: (root / "commands.jsonl").unlink(),
    "no events": lambda root: (root / "events.jsonl").unlink(),
    "cut settings": lambda root: (root / "measure.json").write_text("{"),
    "another scenario": lambda root: _edit(root / "measure.json", lambda it: it["settings"].update(scenario="Offline")),
    "an unknown verdict": lambda root: (root / "verdict.json").write_text('{"verdict": "valid", "reasons": []}'),
    "a pipe": _pipe,
}


@pytest.mark.loadgen
@pytest.mark.parametrize("name", NOTHING)
def test_a_spoilt_run_of_ours_is_no_measurement(ours: Path, name: str) -> None:
    NOTHING[name](ours)
    with pytest.raises(MeasureError) as caught:
        judge_directory(ours)
    assert ("without its" in caught.value.what) == name.startswith("no ")


def _twice(file: str, key: str) -> Callable[[Path], None]:
    """The key is given a second time, with the same value: what a reader that takes the last would not see."""

    def edit(root: Path) -> None:
        text = (root / file).read_text()
        at = text.index(f'"{key}":')
        _, end = json.JSONDecoder().raw_decode(text, at + len(f'"{key}": '))
        (root / file).write_text(f"{text[:at]}{text[at:end]}, {text[at:]}")

    return edit


@pytest.mark.loadgen
@pytest.mark.parametrize(
    ("file", "key"),
    [
        ("verdict.json", "verdict"),
        ("verdict.json", "kv_bytes"),
        ("evidence.json", "remote_prefills"),
        ("measure.json", "target_qps"),
        ("commands.jsonl", "argv"),
        ("events.jsonl", "process"),
        ("loadgen/client.json", "failed"),
        (f"loadgen/{DETAIL}", "is_error"),
    ],
)
def test_a_key_that_a_record_holds_twice_is_named(ours: Path, file: str, key: str) -> None:
    _twice(file, key)(ours)
    try:
        verdict = judge_directory(ours)
    except MeasureError as error:
        said = error.what
    else:
        assert verdict.verdict == "FAILED"
        said = texts(verdict)
    assert f'the key "{key}"' in said


@pytest.mark.loadgen
def test_a_key_that_the_topology_holds_twice_is_named(ours: Path) -> None:
    topology = ours / "topology.yaml"
    topology.write_text(topology.read_text() + "reduced: {samples: 64}\n")
    with pytest.raises(MeasureError, match=r"topology\.yaml: reduced: given twice, first on line 2"):
        judge_directory(ours)


@pytest.mark.loadgen
@pytest.mark.parametrize(
    ("started", "said"),
    [
        (("decode-0", "loadgen"), "1 start that events.jsonl tells: loadgen"),
        (("decode-0", "decode-0"), "1 start that events.jsonl tells: decode-0"),
        (("etcd", "a", "b", "loadgen", "decode-0"), "4 starts that events.jsonl tells: a, b, etcd and 1 more"),
    ],
)
def test_a_line_that_was_taken_out_of_the_command_lines_is_seen(ours: Path, started: list[str], said: str) -> None:
    """A start is on record twice, and an engine that is gone from one record would change the class of the result."""
    events = [{"event": "phase_begin"}, *({"event": "process_started", "process": name} for name in started)]
    (ours / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    with pytest.raises(MeasureError, match=re.escape(f"{ours}/commands.jsonl lacks {said}")):
        judge_directory(ours)


@pytest.mark.loadgen
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize(
    "file",
    [
        *("topology.yaml", "verdict.json", "evidence.json", "commands.jsonl", "events.jsonl", "measure.json"),
        *("loadgen/queries.csv", "loadgen/client.json", f"loadgen/{DETAIL}"),
    ],
)
def test_an_odd_file_in_the_place_of_a_record_is_no_measurement(ours: Path, file: str, odd: str) -> None:
    """None is waited for or read without end, and none hides what the record said."""
    path = ours / file
    path.unlink(missing_ok=True)
    ODD[odd](path)
    found = "no measurement"
    with contextlib.suppress(MeasureError):
        found = judge_directory(ours).verdict
    assert found in ("no measurement", "FAILED")


@pytest.mark.loadgen
def test_its_logs_alone_are_not_judged_as_somebody_elses(ours: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(ours / "loadgen", tmp_path / "elsewhere")
    for said in (None, Wanted(benchmark="qwen3-vl-235b-a22b", scenario="Server")):
        with pytest.raises(MeasureError, match=r"is part of a run of ours .* whatever --benchmark and --scenario say"):
            judge_directory(moved, said)


@pytest.mark.parametrize("scenario", ["Offline", "Server", "Interactive"])
@pytest.mark.parametrize("name", ["qwen3-vl-235b-a22b", "gpt-oss-120b", "deepseek-r1", "llama2-70b-99.9"])
def test_settings_of_the_rules_are_not_below_them(name: str, scenario: str) -> None:
    full = build_settings(benchmark(name), scenario, 10, 100_000)
    assert below_rules(full) == []
    assert below_rules(dataclasses.replace(full, min_duration_ms=1)) == ["min_duration_ms"]
    longer = dataclasses.replace(full, min_duration_ms=full.min_duration_ms + 1, performance_sample_count=99_999)
    assert below_rules(longer) == []
