"""`sweep --parallel` sends job arrays by submitit; Slurm's programs stand in on PATH."""

from __future__ import annotations

import fcntl
import json
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.job.sweep_records import check_takeover
from dynamo_mlperf.topology.spec import load_topology
from tests.fakes.slurm_programs import FakeSlurm
from tests.topology.topology_texts import measure_block, simulated

REFUSES_SECOND = """
n=$(wc -l < "$0.calls")
if [ "$n" -gt 1 ]; then
  echo 'sbatch: error: Batch job submission failed: Job violates accounting/QOS policy' >&2; exit 1
fi
"""
TAKES = """
cp "$1" "$0.$(wc -l < "$0.calls").script"
echo "Submitted batch job $((100 + $(wc -l < "$0.calls")))"
"""
SPLITS = [f"{first}P{second}D" for first, second in ((1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (3, 1))]
SPLITS += ["1P2x1D", "1P2x2D", "1P1D2", "2P1D2", "1P2x1D2", "1P3x1D"]


@pytest.fixture
def slurm(tmp_path: Path) -> FakeSlurm:
    directory = tmp_path / "bin"
    directory.mkdir()
    fake = FakeSlurm(directory)
    fake.answers("scontrol", "Configuration data\nMaxArraySize            = 5\n")
    fake.answers("squeue", "")
    fake.script("srun", "exit 1")
    fake.script("sbatch", TAKES)
    return fake


@pytest.fixture
def file(tmp_path: Path) -> Path:
    value = simulated(
        name="points",
        nodes={"count": 1, "gpus": 4},
        measure=measure_block(target_qps=None, dataset="/elsewhere"),
        sweep={"splits": SPLITS, "rates": [3, 5]},
        reduced={"min_duration_s": 4, "samples": 44},
    )
    path = tmp_path / "points.yaml"
    head = (
        "#!/usr/bin/env -S dynamo-mlperf job\n#SBATCH --nodes=1 --gres=gpu:4 --exclusive --time=00:10:00 --no-requeue\n"
    )
    path.write_text(head + yaml.safe_dump(value, sort_keys=False))
    return path


def swept(slurm: FakeSlurm, file: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "dynamo_mlperf.cli", "sweep", str(file), "--parallel", "6", *words]
    env = {"PATH": slurm.path, "HOME": str(file.parent), "HF_TOKEN": "hf_secret"}
    return subprocess.run(argv, cwd=file.parent, env=env, capture_output=True, text=True, check=False, timeout=120)


def scripts(slurm: FakeSlurm) -> list[str]:
    return [path.read_text() for path in sorted(slurm.directory.glob("sbatch.*.script"))]


def argvs(root: Path) -> list[list[str]]:
    """What each job that was sent becomes, from submitit's own records."""
    files = sorted((root / "submitit").glob("*_submitted.pkl"))
    return [list(pickle.loads(path.read_bytes()).args[0]) for path in files]


def test_twelve_points_with_arrays_of_five_are_each_sent_once(slurm: FakeSlurm, file: Path) -> None:
    root = file.parent / "sweep"
    done = swept(slurm, file, "--run-dir", str(root), "--no-wait", "--json")
    assert done.returncode == 0, done.stderr
    sizes = [re.search(r"^#SBATCH --array=0-(\d+)%(\d+)$", script, re.MULTILINE) for script in scripts(slurm)]
    assert [(int(found[1]), int(found[2])) for found in sizes if found] == [(4, 2), (4, 2), (1, 2)], "index below 5"
    for script in scripts(slurm):
        for option in ("nodes=1", "gres=gpu:4", "exclusive", "time=00:10:00", "no-requeue", "job-name=points"):
            assert f"#SBATCH --{option}\n" in script
        names = [line.partition("=")[0] for line in script.splitlines() if line.startswith("#SBATCH --")]
        assert len(set(names)) == len(names), "of an option that is given twice the last one holds"
        assert "hf_secret" not in script
        assert "USR2" not in script
    sent = argvs(root)
    files = [Path(argv[argv.index("job") + 1]) for argv in sent]
    assert sorted(path.stem for path in files) == sorted(SPLITS), "all of them, none twice"
    assert len({argv[argv.index("--run-dir") + 1] for argv in sent}) == 12
    for path in files:
        of_split = load_topology(path)
        assert of_split.sweep is not None
        assert of_split.sweep.rates == [3, 5]
        assert path.read_text().startswith("#!/usr/bin/env -S dynamo-mlperf job\n#SBATCH --nodes=1")
    wide = load_topology(root / "points" / "1P2x1D2.yaml")
    assert [role.tensor_parallel for _name, role in wide.roles.present()] == [2, 2]
    points = json.loads((root / "points.json").read_text())["sent"]
    assert [point["job_id"] for point in points] == [
        f"{100 + k}_{i}" for k, n in ((1, 5), (2, 5), (3, 2)) for i in range(n)
    ]
    assert json.loads(done.stdout)["state"] == "stopped", "squeue knows none of them any more"


def test_a_lower_limit_that_the_scheduler_sets_for_arrays_is_kept(slurm: FakeSlurm, file: Path) -> None:
    told = "MaxArraySize            = 5\nSchedulerParameters     = bf_interval=2,max_array_tasks=3\n"
    slurm.answers("scontrol", told)
    done = swept(slurm, file, "--run-dir", str(file.parent / "sweep"), "--no-wait")
    assert done.returncode == 0, done.stderr
    sizes = [re.search(r"^#SBATCH --array=0-(\d+)%", script, re.MULTILINE) for script in scripts(slurm)]
    assert [int(found[1]) for found in sizes if found] == [2, 2, 2, 2]


def test_a_refused_second_array_is_told_with_what_was_sent_and_the_way_on(slurm: FakeSlurm, file: Path) -> None:
    slurm.script("sbatch", REFUSES_SECOND + TAKES)
    root = file.parent / "sweep"
    done = swept(slurm, file, "--run-dir", str(root), "--no-wait")
    assert done.returncode == 3, done.stderr
    assert "QOS policy" in done.stderr
    assert "5 jobs were sent: 101_0, 101_1, 101_2, 101_3, 101_4" in done.stderr
    assert "scancel 101" in done.stderr
    resume = re.search(r"--resume (\S+)", done.stderr)
    assert resume
    slurm.script("sbatch", TAKES)
    slurm.answers("squeue", "101_0\n101_1\n101_2\n101_3\n101_4\n")
    measured(root / "points" / SPLITS[0], SPLITS[0], 4.0)
    again = swept(slurm, file, "--resume", str(root), "--no-wait", "--json")
    assert again.returncode == 0, again.stderr
    points = json.loads((root / "points.json").read_text())["sent"]
    assert sorted(point["split"] for point in points) == sorted(SPLITS), "the seven that were missing, none twice"
    summary = json.loads(again.stdout)
    assert (summary["winner"], summary["state"]) == (SPLITS[0], "running")


def measured(run_dir: Path, split: str, rate: float) -> None:
    """What a point's job leaves."""
    folder = run_dir / "sweep" / split
    folder.mkdir(parents=True)
    value: dict[str, Any] = {"split": split, "rate_qps": rate, "engine_seconds": 9.0, "restarts": 0, "bottleneck": None}
    value |= {"kind": "answer", "reason": "", "target_qps": rate, "confirmed_in": "probe-001"}
    value |= {"sought": {"sweep.rates": [3.0, 5.0]}, "located": True}
    (folder / "split.json").write_text(json.dumps(value))


def test_splits_that_were_measured_at_other_rates_are_refused_or_sent_again(slurm: FakeSlurm, file: Path) -> None:
    root = file.parent / "sweep"
    swept(slurm, file, "--run-dir", str(root), "--no-wait", "--splits", "1P1D,1P2D")
    for split in SPLITS[:2]:
        measured(root / "points" / split, split, 4.0)
    sent = len(slurm.calls("sbatch"))
    again = ("--resume", str(root), "--no-wait", "--json", "--splits", "1P1D,1P2D", "--rates", "3,7")
    refused = swept(slurm, file, *again)
    assert refused.returncode == 2
    assert "2 finished splits (1P1D, 1P2D) were found with other settings: sweep.rates [3.0, 5.0] there, [3.0, 7.0] now" in refused.stderr  # fmt: skip
    assert len(slurm.calls("sbatch")) == sent
    done = swept(slurm, file, *again, "--redo")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["splits"], summary["winner"]) == ([], None), "what is known was found with other rates"
    argv = argvs(root)[-1]
    assert argv[argv.index("--resume") + 1].endswith("/points/1P2D")
    assert argv[-1] == "--redo"


def test_the_folder_of_another_sweep_is_refused(slurm: FakeSlurm, file: Path) -> None:
    root = file.parent / "sweep"
    (root / "points").mkdir(parents=True)
    (root / "topology.yaml").write_text("other")
    done = swept(slurm, file, "--resume", str(root))
    assert done.returncode == 2, done.stderr
    assert "another file" in done.stderr
    (root / "topology.yaml").write_text(file.read_text())
    (root / "points.json").write_text('{"sent": [{"split": "1P1D", "job_id": "1", "run_dir": "../.."}]}')
    done = swept(slurm, file, "--resume", str(root))
    assert (done.returncode, "not as a sweep wrote it" in done.stderr) == (2, True), done.stderr
    assert slurm.calls("sbatch") == []


def test_what_is_no_folder_of_a_parallel_sweep_does_not_go_on(slurm: FakeSlurm, file: Path) -> None:
    """A name that is mistyped would send every job again; a run of one job would lose its own summary."""
    done = swept(slurm, file, "--resume", str(file.parent / "sweeep"))
    assert (done.returncode, "sweeep is no folder of a parallel sweep: it has no points/" in done.stderr) == (2, True)
    assert not (file.parent / "sweeep").exists()
    run = file.parent / "run"
    (run / "sweep").mkdir(parents=True)
    (run / "events.jsonl").write_text("")
    (run / "topology.yaml").write_text(file.read_text())
    (run / "sweep" / "summary.json").write_text("its own")
    done = swept(slurm, file, "--resume", str(run))
    assert (done.returncode, "it is the run directory of one job" in done.stderr) == (2, True)
    assert (run / "sweep" / "summary.json").read_text() == "its own"
    assert slurm.calls("sbatch") == []


def test_a_parallel_sweep_is_not_begun_anew_by_one_job(tmp_path: Path) -> None:
    (tmp_path / "points").mkdir()
    (tmp_path / "sweep").mkdir()
    with pytest.raises(ConfigError, match="is the folder of a parallel sweep") as refused:
        check_takeover(tmp_path / "sweep", {})
    assert "--parallel N" in refused.value.action


def test_two_processes_do_not_send_the_same_jobs(slurm: FakeSlurm, file: Path) -> None:
    root = file.parent / "sweep"
    words = ("--resume", str(root), "--no-wait", "--splits", "1P1D,1P2D")
    (root / "points").mkdir(parents=True)
    with (root / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = swept(slurm, file, *words)
        assert (done.returncode, f"another process sends jobs of {root} now" in done.stderr) == (2, True), done.stderr
        assert slurm.calls("sbatch") == []
    assert swept(slurm, file, *words).returncode == 0
    assert len(slurm.calls("sbatch")) == 1


def test_a_job_that_left_nothing_names_what_it_printed(slurm: FakeSlurm, file: Path) -> None:
    root = file.parent / "sweep"
    swept(slurm, file, "--run-dir", str(root), "--no-wait", "--splits", "1P1D")
    (point,) = json.loads((root / "points.json").read_text())["sent"]
    log = root / "submitit" / f"{point['job_id']}_0_log.out"
    slurm.script("sbatch", "echo 'sbatch: error: Batch job submission failed: Job violates policy' >&2; exit 1")
    for told in (f"it wrote no {log}; its node has to see this folder", f"read {log}"):
        assert swept(slurm, file, "--resume", str(root), "--no-wait", "--splits", "1P1D").returncode == 3
        (left,) = json.loads((root / "sweep" / "summary.json").read_text())["not_measured"]
        assert left["reason"] == f"job {point['job_id']}: ended without a record; {told}"
        log.write_text("error: no such file")
