"""`package` of runs that measured through engines which another run holds: nothing of them is refused, all is told."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest
import yaml

from dynamo_mlperf.files import append_json_line
from dynamo_mlperf.record import HELD_NOTE
from dynamo_mlperf.submission.finding import RefusedError
from dynamo_mlperf.submission.gate import check_tree
from dynamo_mlperf.submission.package import package
from tests.submission.conftest import request_of
from tests.submission.test_package_refusals import edit

if TYPE_CHECKING:
    from pathlib import Path

HELD = f"{HELD_NOTE} Offline, up for 5400 s, measurement 2"


def attach(run: Path) -> None:
    """What else lies in a run that was attached: whose engines it had, how they came to rest, and a file of its own."""
    edit(run / "verdict.json", notes=[HELD])
    begin = {"t": 1.0, "event": "job_begin", "run": "r", "place": "engines held by Offline", "held_by": str(run.parent)}
    started = {"t": 2.0, "event": "process_started", "process": "loadgen", "node": 0}
    (run / "events.jsonl").write_text(json.dumps(begin) + "\n" + json.dumps(started) + "\n")
    append_json_line(run / "commands.jsonl", {"process": "loadgen", "node": 0, "argv": ["python"], "env": {}})
    (run / "rest.json").write_text(json.dumps({"restarted": [], "waited_s": 3.0}))
    edit(run / "plan.json", binding=[{"position": 0, "host": "n1", "address": "10.0.0.1"}])
    in_other_words(run / "topology.yaml")


def in_other_words(topology: Path, **changes: object) -> None:
    """The same deployment as another file would have it, defaults and all."""
    value = yaml.safe_load(topology.read_text())
    more = {"name": "second-file", "device": "cuda", "server": "dynamo", "frontends": {"count": 1}, "head": "first"}
    topology.write_text(yaml.safe_dump({**value, **more, "site": "elsewhere.yaml", **changes}))


def test_an_attached_run_is_packaged_and_says_whose_engines_it_had(base: Path) -> None:
    attach(base / "Server")
    tree = package(request_of(base)).tree
    assert check_tree(tree, "v6.1").findings == ()
    results = tree / "closed/ACME/results/two-nodes/deepseek-r1"
    told = f"performance, accuracy, TEST06: {HELD} (`run FILE --hold`, then `run FILE --attach RUN`)."
    assert told in (results / "Server/README.md").read_text()
    assert HELD_NOTE not in (results / "Offline/README.md").read_text()


def test_tests_of_one_result_may_come_of_files_that_say_the_same_in_other_words(base: Path) -> None:
    other = base / "accuracy-run"
    shutil.copytree(base / "Server", other, ignore=shutil.ignore_patterns("loadgen", "TEST06", "verdict.json"))
    shutil.rmtree(base / "Server" / "accuracy")
    names = ("Offline", "Server", "accuracy-run")
    in_other_words(other / "topology.yaml", frontends={"count": 2})
    with pytest.raises(RefusedError, match=r"got frontends\.count: 2, not 1\. run performance"):
        package(request_of(base, *names))
    in_other_words(other / "topology.yaml")
    assert package(request_of(base, *names)).changed


@pytest.mark.parametrize(("one", "other", "same"), [("a/b.yaml", "./a/b.yaml", True), ("a/b.yaml", "c/b.yaml", False)])
def test_a_manifest_is_named_by_its_place(base: Path, one: str, other: str, *, same: bool) -> None:
    accuracy = base / "accuracy-run"
    shutil.copytree(base / "Server", accuracy, ignore=shutil.ignore_patterns("loadgen", "TEST06", "verdict.json"))
    shutil.rmtree(base / "Server" / "accuracy")
    for run, stage in ((base / "Server", one), (accuracy, other)):
        in_other_words(run / "topology.yaml", model={"name": "deepseek-r1", "weights": {"stage": stage}})
    request = request_of(base, "Offline", "Server", "accuracy-run")
    if same:
        assert package(request).changed
    else:
        with pytest.raises(RefusedError, match=r"got model\.weights\.stage: 'c/b\.yaml', not 'a/b\.yaml'"):
            package(request)
