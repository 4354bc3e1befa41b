"""`submit` from where not everything of the job is seen: what is left to the job, and what is refused all the same."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dynamo_mlperf.cli.submit import command
from dynamo_mlperf.errors import ConfigError, SetupError
from dynamo_mlperf.job.workload import check_workload
from dynamo_mlperf.site import load_site
from dynamo_mlperf.topology.spec import load_topology
from tests.fakes.slurm_programs import NO_CONFIGURATION, NO_CONTROLLER, FakeSlurm

LARGE = "q3vl-gb200x16-interactive-4p8d"


@pytest.fixture
def here(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with two topologies and nothing that they name; sbatch answers."""
    for name in (LARGE, "rehearse-1p1d"):
        shutil.copy(repository / "topologies" / f"{name}.yaml", tmp_path)
    slurm = FakeSlurm(tmp_path / "bin")
    slurm.directory.mkdir()
    slurm.sbatch("77")
    monkeypatch.setenv("PATH", slurm.path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DYNAMO_MLPERF_SITE", raising=False)
    return tmp_path


def submit(*words: str) -> Result:
    return CliRunner().invoke(command, words)


def test_what_is_not_seen_from_here_is_left_to_the_job(here: Path) -> None:
    result = submit(f"{LARGE}.yaml", "--site", "laptop")
    assert result.exception is None
    assert result.stdout.startswith("job 77  ")
    for unseen in ("assets/shopify-product-catalogue-8k", "staging/qwen3-vl-235b-a22b-nvfp4.yaml"):
        assert f"{here / unseen} is not seen from here; the job checks it\n" in result.stderr
    assert f"--job-name={LARGE}" in FakeSlurm(here / "bin").sent()["argv"]


@pytest.mark.parametrize("silent", [NO_CONFIGURATION, NO_CONTROLLER])
def test_a_slurm_that_does_not_answer_is_called_that(here: Path, silent: str) -> None:
    FakeSlurm(here / "bin").script("sbatch", f"cat > /dev/null; {silent}")
    result = submit(f"{LARGE}.yaml", "--site", "laptop")
    assert isinstance(result.exception, SetupError)
    assert result.exception.what.startswith("Slurm does not answer here: ")
    assert "login node" in result.exception.action


def test_where_a_slurm_of_devcluster_answers_is_said(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEVCLUSTER_DIR", str(here / ".devcluster"))
    FakeSlurm(here / "bin").script("sbatch", f"cat > /dev/null; {NO_CONFIGURATION}")
    result = submit(f"{LARGE}.yaml", "--site", "devcluster")
    assert isinstance(result.exception, SetupError)
    assert result.exception.action.startswith("run it in `slurm/devcluster exec` (DEVCLUSTER_DIR alone does not do)")


PARTITIONS = (
    "PartitionName=small Default=YES MaxNodes=2 State=UP TotalNodes=8\n"
    "PartitionName=tiny Default=NO MaxNodes=UNLIMITED State=UP TotalNodes=3\n"
    "PartitionName=large Default=NO MaxNodes=UNLIMITED State=UP TotalNodes=4\n"
)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "asks for 4 nodes, and partition small has 8 and gives a job 2 at most; "),
        (("-ptiny",), "asks for 4 nodes, and partition tiny has 3; "),
        (("--partition=tiny,large",), ""),
        (("--partition=large", "--nodes=5"), "asks for 5 nodes, and partition large has 4; "),
        (("--partition=unheard-of",), ""),
    ],
)
def test_a_job_that_no_partition_can_hold_is_told_with_both_numbers(
    here: Path, options: tuple[str, ...], said: str
) -> None:
    FakeSlurm(here / "bin").answers("scontrol", PARTITIONS)
    result = submit(f"{LARGE}.yaml", "--site", "laptop", "--", *options)
    assert result.exception is None
    assert ("warning: the job " + said in result.stderr) if said else "warning: the job asks" not in result.stderr


def test_a_job_whose_time_is_too_short_is_told(here: Path) -> None:
    path = here / f"{LARGE}.yaml"
    path.write_text(path.read_text().replace("target_qps: 40", "target_qps: 0.1"))
    result = submit(path.name, "--site", "laptop")
    assert result.exception is None, result.exception
    assert "warning: one test takes 22 h 13 min or more" in result.stderr
    assert "one test takes" not in submit(path.name, "--site", "laptop", "--", "--time=2-0").stderr


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_what_is_still_to_be_filled_in_is_told(here: Path, more: tuple[str, ...]) -> None:
    path = here / f"{LARGE}.yaml"
    path.write_text(path.read_text().replace("target_qps: 40", "target_qps: 40  # FILL IN a rate"))
    line = next(n for n, text in enumerate(path.read_text().split("\n"), 1) if "FILL IN" in text)
    (here / "mine.yaml").write_text("# partition: gpu   # FILL IN: sinfo -s\n{}\n")
    result = submit(path.name, "--site", "./mine.yaml", *more)
    assert result.exception is None, result.exception
    assert f"warning: FILL IN still stands in line {line}: complete what is meant" in result.stderr
    assert f"warning: {here / 'mine.yaml'}: FILL IN still stands in line 1: " in result.stderr


@pytest.mark.parametrize("manifest", ["", "kind: [\n"])
def test_what_is_seen_and_wrong_is_refused(here: Path, manifest: str) -> None:
    if manifest:
        (here / "staging").mkdir()
        (here / "staging" / "qwen3-vl-235b-a22b-nvfp4.yaml").write_text(manifest)
    else:
        (here / "assets" / "shopify-product-catalogue-8k").mkdir(parents=True)
    result = submit(f"{LARGE}.yaml", "--dry-run")
    assert isinstance(result.exception, ConfigError)
    assert result.stdout == ""


def test_the_job_reads_the_site_as_it_was_at_the_submission(here: Path) -> None:
    text = "partition: gpu  # since May\n"
    (here / "mine.yaml").write_text(text)
    assert submit(f"{LARGE}.yaml", "--site", "./mine.yaml").exception is None
    sent = FakeSlurm(here / "bin").sent()["argv"]
    place = sent[sent.index("--site") + 1]
    (here / "mine.yaml").write_text("partition: other\n")
    queued = load_site(place, base=here)
    assert (queued.name, queued.partition, queued.digest) == ("mine", "gpu", sha256(text.encode()).hexdigest())
    assert "--partition=gpu" in sent
    assert submit(f"{LARGE}.yaml", "--site", "./mine.yaml").exception is None
    assert (here / place).read_text() == text, "the first job may still wait"


def test_the_dry_run_brings_the_site_along(here: Path) -> None:
    text = "partition: gpu\nprologue: [a,\nEND OF SITE\n]\n# without an end"
    (here / "mine.yaml").write_text(text)
    shown = submit(f"{LARGE}.yaml", "--site", "./mine.yaml", "--dry-run").stdout
    assert not (here / "runs").exists()
    elsewhere = here / "elsewhere"
    elsewhere.mkdir()
    subprocess.run(("bash", "-e", "-c", shown), cwd=elsewhere, check=True, capture_output=True)
    sent = FakeSlurm(here / "bin").sent()
    assert (elsewhere / sent["argv"][sent["argv"].index("--site") + 1]).read_text() == text + "\n"


@pytest.mark.parametrize(
    ("typed", "variable", "told"),
    [
        (("--site", "./mine.yaml"), "", "--site ./mine.yaml"),
        (("--site", "./mine.yaml", "--nodes", "8", "--", "--nodes=8", "--comment=a b"), "laptop",
         "--site ./mine.yaml --nodes 8 -- --nodes=8 '--comment=a b'"),
        ((), "./mine.yaml", "--site ./mine.yaml"),
        (("--site", "laptop"), "./mine.yaml", "--site laptop"),
    ],
)  # fmt: skip
def test_the_dry_run_names_the_command_that_people_type(
    here: Path, monkeypatch: pytest.MonkeyPatch, typed: tuple[str, ...], variable: str, told: str
) -> None:
    (here / "mine.yaml").write_text("partition: gpu\n")
    monkeypatch.setenv("DYNAMO_MLPERF_SITE", variable)
    shown = submit(f"{LARGE}.yaml", "--dry-run", *typed).stdout
    command_told = f"dynamo-mlperf submit {LARGE}.yaml {told}"
    assert shown.splitlines()[1].startswith(f"# What `{command_told}` sends: ")
    monkeypatch.delenv("DYNAMO_MLPERF_SITE")
    assert submit("--dry-run", *shlex.split(command_told)[2:]).stdout == shown, "typed again it sends the same"


def test_an_example_site_is_shown_but_not_sent_to(here: Path) -> None:
    said = "gb200-pyxis.yaml:4: partition is still FILL-IN"
    shown = submit(f"{LARGE}.yaml", "--site", "gb200-pyxis", "--dry-run")
    assert shown.exit_code == 0
    assert said in shown.stderr
    assert "\nsbatch --parsable " in shown.stdout
    refused = submit(f"{LARGE}.yaml", "--site", "gb200-pyxis")
    assert isinstance(refused.exception, ConfigError)
    assert said in refused.exception.what
    assert not (here / "bin" / "sbatch.json").exists()


@pytest.mark.parametrize(
    ("name", "said", "tiny"), [(LARGE, "qwen3-vl-235b-a22b/README.md says", False), ("rehearse-1p1d", "init", True)]
)
def test_a_run_without_its_data_set_names_where_it_comes_from(here: Path, name: str, said: str, tiny: bool) -> None:  # noqa: FBT001
    with pytest.raises(ConfigError, match=r"catalogue\.jsonl: No such file") as refusal:
        check_workload(load_topology(here / f"{name}.yaml"), here)
    assert said in refusal.value.action
    assert ("assets/tiny-product-catalogue" in refusal.value.action or "makes it" in refusal.value.action) == tiny


def test_a_tiny_data_set_is_offered_to_a_reduced_file_alone(here: Path) -> None:
    path = here / "rehearse-1p1d.yaml"
    path.write_text(path.read_text().replace("assets/tiny-product-catalogue", "assets/other"))
    with pytest.raises(ConfigError) as refusal:
        check_workload(load_topology(path), here)
    ways = refusal.value.action.split("; ")
    assert "benchmarks/qwen3-vl-235b-a22b/README.md says" in ways[0]
    assert ways[1] == "`dynamo-mlperf init --assets assets` makes a tiny one, assets/tiny-product-catalogue"
