"""Files that may be anybody's are read by `files.read_bounded` alone: never a pipe, a device, or gigabytes."""

from __future__ import annotations

import ast
import contextlib
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dynamo_mlperf.benchmark.json_lines import json_lines
from dynamo_mlperf.benchmark.rules import benchmark
from dynamo_mlperf.errors import DynamoMlperfError
from dynamo_mlperf.files import RunPaths, open_regular, read_bounded, read_json_lines, read_text
from dynamo_mlperf.load.given_conf import with_user_conf
from dynamo_mlperf.load.logs import DETAIL, SUMMARY, audit_notice, generated_queries, read_logs
from dynamo_mlperf.load.queries import read_client, read_queries
from dynamo_mlperf.load.settings import build_settings
from dynamo_mlperf.load.spec import read_spec
from dynamo_mlperf.report.run_data import read_run
from dynamo_mlperf.slurm.runs import read_run as read_standing
from dynamo_mlperf.staging.manifest import load_manifest
from dynamo_mlperf.submission.records import Run
from dynamo_mlperf.topology.spec import load_topology
from dynamo_mlperf.tuning.calibration import read_calibration
from dynamo_mlperf.tuning.prediction import read_prediction
from dynamo_mlperf.tuning.profiles import read_profile
from tests.fakes.odd_files import ODD, SAID
from tests.report.run_builder import build_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PACKAGE = Path(__file__).resolve().parent.parent / "dynamo_mlperf"
OWN = {
    "cli/doctor_cluster.py": "shipped with the package",
    "cli/init.py": "shipped with the package",
    "cli/plan.py": "the topology file, which the bounded reader has just read",
    "cli/submit.py": "the topology file, which the bounded reader has just read",
    "slurm/submission.py": "topology and site file, which the bounded reader has just read",
    "job/parallel_sweep.py": "the topology file, which the bounded reader has just read",
    "job/live_rehearsal.py": "the topology file, which the bounded reader has just read; what we wrote",
    "job/cluster_check.py": "what our own processes have just written",
    "job/counted.py": "what this run has just written",
    "job/endpoints_at_url.py": "what this run has just written",
    "job/endpoints_test.py": "what this run has just written",
    "job/engine_flags.py": "what our own process has just written",
    "job/judged.py": "what this run has just written",
    "job/measurement.py": "what this run has just written",
    "job/nodes.py": "what our own processes have just written",
    "job/result.py": "what this run has just written",
    "job/sweep.py": "what this sweep has written",
    "job/versions.py": "what our own process has just written",
    "load/endpoints_parquet.py": "images that the data set's reader has read just before; nothing of ours is there",
    "load/limits.py": "the kernel's",
    "load/pump.py": "shipped with the package",
    "load/requests.py": "what this run has just written",
    "load/vitals.py": "the kernel's",
    "process/hardware.py": "the kernel's",
    "process/machine.py": "the kernel's; marks of our own runs",
    "process/node_agent.py": "the kernel's",
    "process/node_probe.py": "the kernel's",
    "process/ports.py": "the kernel's",
    "process/shared_memory.py": "the kernel's; notes of this run",
    "slurm/point_array.py": "what its caller has just written",
    "staging/owner.py": "the kernel's",
    "staging/use.py": "the kernel's",
    "tuning/probe_command.py": "what the probe has just written",
}
"""Modules that read whole files otherwise, and whose files those are."""


def test_whole_files_are_read_without_a_bound_only_where_we_know_who_wrote_them() -> None:
    found = set()
    for path in PACKAGE.rglob("*.py"):
        calls = (node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
        if any(isinstance(func, ast.Attribute) and func.attr in {"read_text", "read_bytes"} for func in calls):
            found.add(path.relative_to(PACKAGE).as_posix())
    assert found - set(OWN) == set(), "use read_bounded or read_text of files.py, or say here whose file it is"
    assert set(OWN) - found == set(), "these read nothing any more"


@pytest.fixture(autouse=True)
def _no_waiting() -> Iterator[None]:
    """A reader that waits for a pipe fails its test instead of holding all of them up."""

    def late(_number: int, _frame: object) -> None:
        raise TimeoutError("still reading after a minute")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("odd", ODD)
def test_the_reader_takes_no_odd_file(tmp_path: Path, odd: str) -> None:
    ODD[odd](tmp_path / "x")
    for reader in (read_bounded, read_text, read_json_lines):
        with pytest.raises((OSError, ValueError)) as caught:
            reader(tmp_path / "x")
        assert SAID[odd] in str(caught.value)


def test_the_reader_takes_up_to_its_bound_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"a" * 1000)
    assert read_bounded(path, 1000) == b"a" * 1000
    with pytest.raises(ValueError, match="is longer than"):
        read_bounded(path, 999)
    with pytest.raises(ValueError, match="is longer than"):  # its size is said to be 0
        read_bounded(Path("/proc/self/status"), 10)
    with pytest.raises(FileNotFoundError):
        read_bounded(tmp_path / "none")
    with open_regular(path) as source:
        assert source.read(2) == b"aa"


SETTINGS = build_settings(benchmark("qwen3-vl-235b-a22b"), "Server", 10, 100_000)

READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "package: topology": ("topology.yaml", lambda root: Run(root).topology),
    "package: topology's text": ("topology.yaml", lambda root: Run(root).topology_text),
    "package: commands": ("commands.jsonl", lambda root: list(Run(root).commands())),
    "plan": ("topology.yaml", lambda root: load_topology(root / "topology.yaml")),
    "LoadGen's log": (f"loadgen/{DETAIL}", lambda root: read_logs(root / "loadgen")),
    "queries": ("loadgen/queries.csv", lambda root: read_queries(root / "loadgen" / "queries.csv")),
    "client": ("loadgen/client.json", lambda root: read_client(root / "loadgen" / "client.json")),
    "spec": ("measure.json", lambda root: read_spec(root / "measure.json")),
    "data set": ("prompts.jsonl", lambda root: list(json_lines(root / "prompts.jsonl", "name another"))),
    "prediction": ("prediction.json", lambda root: read_prediction(root / "prediction.json")),
    "profile": ("p.npz", lambda root: read_profile(root / "p.npz")),
    "factors": ("factors.json", lambda root: read_calibration(root / "factors.json")),
    "manifest": ("m.yaml", lambda root: load_manifest(root / "m.yaml")),
    "user.conf": ("user.conf", lambda root: with_user_conf(SETTINGS, root / "user.conf")),
}
"""By what reads it: a file of a run, or one that a person names."""


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_such_file_is_refused_for_what_it_is(tmp_path: Path, name: str, odd: str) -> None:
    file, reader = READERS[name]
    root = build_run(tmp_path / "run", "valid", queries=800).root
    path = root / file
    path.unlink(missing_ok=True)
    ODD[odd](path)
    with pytest.raises(DynamoMlperfError) as caught:
        reader(root)
    said = str(caught.value)
    assert any(words in said for words in (SAID[odd], "bytes", "not a regular file")), said


@pytest.mark.parametrize("odd", ODD)
def test_what_shows_a_run_passes_over_them(tmp_path: Path, odd: str) -> None:
    root = build_run(tmp_path / "run", "valid", queries=800).root
    paths = RunPaths(root)
    for path in (paths.topology, paths.verdict, paths.evidence, paths.commands, paths.plan, paths.versions):
        path.unlink()
        ODD[odd](path)
    shown = read_run(root)
    assert len(shown.missing) + len(shown.damaged) >= 6
    assert shown.topology is None
    assert read_standing(root).verdict is None
    for log in (DETAIL, SUMMARY):
        (paths.load / log).unlink(missing_ok=True)
        ODD[odd](paths.load / log)
    assert audit_notice(paths.load / DETAIL) is False
    with contextlib.suppress(OSError):
        assert generated_queries(paths.load / DETAIL) is None
