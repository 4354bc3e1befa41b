"""Workers that answer by themselves, `server: trtllm-serve`: found, proved, loaded evenly, and missed when they die.

The whole chain runs as always, but for its look at GPUs, of which the fake engine needs none.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from tests.job.chain import Place, Run, marked_processes, wait_until

pytestmark = [pytest.mark.loadgen]
WITHOUT_GPUS = """
import sys
from dynamo_mlperf.job import nodes
nodes._check_gpus = lambda *_: None
from dynamo_mlperf.cli import main, run
run.refuse_too_few_gpus = lambda *_: None
sys.exit(main())
"""
CORES = (sorted(os.sched_getaffinity(0)) * 2)[:2]
"""Where the site says that GPUs 0 and 1 are."""
EDITS = {
    "engine": "trtllm",
    "server": "trtllm-serve",
    "device": None,
    "nodes": {"count": 1, "gpus": 2},
    "roles": {"prefill": None, "decode": None, "aggregated": {"workers": 2, "args": {"max-batch-size": 64}}},
    "measure": {"target_qps": 20},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("plain"))


@contextlib.contextmanager
def served(place: Place, repository: Path, edits: dict[str, object]) -> Iterator[Run]:
    """A run with the fake TensorRT-LLM."""
    topology = place.topology({**EDITS, **edits})
    fake = repository / "tests" / "fakes" / "engines"
    numa = [{"cores": str(core), "gpus": [gpu]} for gpu, core in enumerate(CORES)]
    site = place.site(environment={"PYTHONPATH": str(fake)}, local_path=str(place.local), numa=numa)
    where = place.root / "runs" / secrets.token_hex(4)
    words = ("run", str(topology), "--site", str(site), "--run-dir", str(where))
    run = Run([sys.executable, "-c", WITHOUT_GPUS, *words], place.root, place.environment(), where, topology.stem)
    try:
        yield run
    finally:
        run.process.terminate()
        run.end()


def test_each_worker_is_an_entrance_and_there_is_nothing_else(place: Place, repository: Path) -> None:
    with served(place, repository, {}) as run:
        ended = run.end()
        verdict = run.verdict()
        assert (verdict["verdict"], verdict["reasons"], ended.status) == ("VALID", [], 0), ended.stderr
        assert {"aggregated-0", "aggregated-1"} <= run.commands().keys()
        assert not {"etcd", "frontend-0"} & run.commands().keys()
        assert verdict["tokens_per_second"] == pytest.approx(8 * verdict["requests"] / verdict["duration_s"])
        spec = json.loads((run.paths.root / "measure.json").read_text())
        assert len({tuple(place) for place in spec["frontends"]}) == 2
        sites = {
            f"{path.stem} sha256:{sha256(path.read_bytes()).hexdigest()}" for path in place.root.glob("site-*.yaml")
        }
        assert json.loads(run.paths.versions.read_text())["site_file"] in sites
        canary = json.loads(run.paths.evidence.read_text())["canary"]
        assert canary["answers"].keys() == {"aggregated-0", "aggregated-1"}
        assert canary["answers"]["aggregated-0"][0] == "one two three four five six seven eight"
        wait_until(lambda: not marked_processes(run.run_id))


def test_a_worker_that_dies_ends_the_run_by_name(place: Place, repository: Path) -> None:
    with served(place, repository, {"reduced": {"min_duration_s": 30}}) as run:
        run.wait_until_measuring()
        bound = [os.sched_getaffinity(run.pid_of(name)) for name in ("aggregated-0", "aggregated-1")]
        assert bound == [{core} for core in CORES]
        assert [run.commands()[f"aggregated-{gpu}"]["env"]["CUDA_VISIBLE_DEVICES"] for gpu in (0, 1)] == ["0", "1"]
        os.kill(run.pid_of("aggregated-1"), signal.SIGKILL)
        ended = run.end()
        assert ended.status == 4
        assert "aggregated-1 on node 0 (localhost) was killed by SIGKILL" in ended.stderr
        wait_until(lambda: not marked_processes(run.run_id))


def test_a_flag_that_trtllm_serve_does_not_know_is_named(place: Place, repository: Path) -> None:
    role = {"workers": 2, "args": {"max-batch-sizes": 64}}
    with served(place, repository, {"roles": {"prefill": None, "decode": None, "aggregated": role}}) as run:
        ended = run.end()
        assert ended.status == 2, ended.stderr
        assert "max_batch_sizes" in ended.stderr or "max-batch-sizes" in ended.stderr
        wait_until(lambda: not marked_processes(run.run_id))
