"""What `doctor` says of Slurm and of engines that a container brings."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynamo_mlperf.job import health
from dynamo_mlperf.job.health import _starts, check_machine
from dynamo_mlperf.process.machine import read_machine
from tests.fakes.slurm_programs import FakeSlurm


@pytest.mark.parametrize(
    ("ping", "good"), [("echo 'Slurmctld(primary) at n0 is UP'", True), ("echo 'is DOWN'; exit 1", False), ("", False)]
)
def test_slurm_is_there_when_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ping: str, *, good: bool
) -> None:
    slurm = FakeSlurm(tmp_path / "bin")
    slurm.directory.mkdir()
    slurm.script("sbatch", "true")
    slurm.script("scontrol", ping)
    monkeypatch.setenv("PATH", slurm.path)
    findings = {finding.name: finding for finding in check_machine(read_machine(tmp_path), None)}
    assert findings["Slurm"].good == good
    assert findings["Slurm"].found == f"{tmp_path}/bin/sbatch" + ("" if good else " is installed but does not answer")
    for engine in ("frontend", "vLLM worker"):
        assert findings[engine].found == "not checked: inside the container image"
        assert not any((findings[engine].needed, findings[engine].checked, findings[engine].good))


@pytest.mark.parametrize(("compiled", "found"), [(object(), "compiled"), (None, "in Python")])
def test_whether_the_client_is_compiled_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: object, found: str
) -> None:
    monkeypatch.setattr(health, "COMPILED", compiled)
    (line,) = (one for one in check_machine(read_machine(tmp_path), None) if one.name == "client loop")
    assert (line.good, line.needed) == (compiled is not None, False)
    assert line.found.startswith(found)
    assert "C compiler" in line.action


def test_each_engine_is_named_before_it_is_tried_and_when_it_has_answered(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\ntrue\n")
    python.chmod(0o755)
    told: list[str] = []
    check_machine(read_machine(tmp_path), str(python), told.append)
    assert told[::2] == ["trying the frontend (dynamo.frontend) ...", "trying the vLLM worker (dynamo.vllm) ..."]
    assert [line.partition(", after ")[0] for line in told[1::2]] == [
        "frontend: starts, knows 0 flags",
        "vLLM worker: starts, knows 0 flags",
    ]


def test_an_engine_that_takes_its_time_is_not_called_broken(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 60\n")
    python.chmod(0o755)
    finding = _starts("vLLM worker", str(python), "dynamo.vllm", start_s=0.5)
    assert (finding.good, finding.needed) == (False, True)
    assert finding.found.startswith("gave no help text in 0.5 s; the machine's load is ")
    assert finding.action == f"try again when it is less busy, or run it by hand: {python} -m dynamo.vllm --help"
