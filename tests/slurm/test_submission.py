"""What is sent to Slurm: the command line, the script, the environment; and how a refusal is explained."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dynamo_mlperf.errors import ConfigError, SetupError
from dynamo_mlperf.site import Site, load_site, site_directories
from dynamo_mlperf.slurm.programs import clean_environment
from dynamo_mlperf.slurm.refusal import refusal, slurm_words
from dynamo_mlperf.slurm.submission import (
    RECORDS,
    Submission,
    Submitted,
    job_id_of,
    make_submission,
    read_submissions,
    record_submission,
    segment_of,
)
from tests.fakes.slurm_programs import FakeSlurm

TEXT = """#!/usr/bin/env -S dynamo-mlperf job
#SBATCH --nodes=2 --gres=gpu:4 --exclusive
#SBATCH --time=10
schema: 1
name: it's $HOME "quoted" `x`
"""


def made(folder: Path, text: str = TEXT, more: tuple[str, ...] = (), **settings: Any) -> Submission:
    file = folder / "a.yaml"
    file.write_text(text)
    return make_submission(
        file, "a", Site(name="here", **settings), gpus=4, more=more, caller={"PATH": os.environ["PATH"]}
    )


def test_the_site_adds_to_what_sbatch_would_do_alone(tmp_path: Path) -> None:
    site = {"partition": "gpu", "account": "me", "qos": "high", "constraint": "a&b"}
    assert made(tmp_path, **site, more=("--time=5", "-w", "n1")).argv == (
        "sbatch",
        "--parsable",
        "--no-requeue",
        "--job-name=a",
        "--partition=gpu",
        "--account=me",
        "--qos=high",
        "--constraint=a&b",
        "--time=5",
        "-w",
        "n1",
        "/dev/stdin",
    )


def test_another_node_count_is_told_to_slurm_and_to_the_job(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(TEXT)
    submission = make_submission(file, "a", Site(), gpus=4, nodes=8, site_argument="here", caller={})
    words = ("--job-name=a", "--nodes=8", "/dev/stdin", "--site", "here", "--nodes", "8")
    assert submission.argv[3:] == words


def test_what_the_file_says_stands(tmp_path: Path) -> None:
    text = TEXT.replace("--time=10", "-p debug --job-name=mine -A me")
    submission = made(tmp_path, text, partition="gpu", account="me")
    assert submission.argv == ("sbatch", "--parsable", "--no-requeue", "/dev/stdin")
    assert submission.notes == (f"{tmp_path}/a.yaml:3: --partition=debug stands, partition of site here is not used",)


@pytest.mark.parametrize(
    ("style", "gres", "options"),
    [
        ("gres", "gpu:4", ()),
        ("gpus-per-node", "gpu:4", ("--gres=none", "--gpus-per-node=4")),
        ("gpus-per-node", "gpu:4,nvme:1", ("--gres=nvme:1", "--gpus-per-node=4")),
        ("none", "gpu:4", ("--gres=none",)),
        ("none", "nvme:1", ()),
    ],
)
def test_gpus_are_asked_for_as_the_site_wants(tmp_path: Path, style: str, gres: str, options: tuple[str, ...]) -> None:
    submission = made(tmp_path, TEXT.replace("gpu:4", gres), gpu_request=style)
    assert submission.argv[4:-1] == options


@pytest.mark.parametrize(
    ("nodes", "domain", "segment"),
    [(4, 18, 4), (18, 18, 18), (36, 18, 18), (20, 18, None), (4, None, None), (4, 1, None), (1, 18, None)],
)
def test_segments_are_whole_and_divide_the_job(nodes: int, domain: int | None, segment: int | None) -> None:
    assert segment_of(nodes, domain) == segment


def test_a_segment_is_asked_for_where_the_site_has_them(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(TEXT)
    with_segments = make_submission(file, "a", Site(segment=True), gpus=4, segment=4, caller={})
    assert "--segment=4" in with_segments.argv
    assert not any("segment" in word for word in make_submission(file, "a", Site(), gpus=4, segment=4, caller={}).argv)


def test_what_is_shown_is_what_is_sent(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.sbatch("77")
    submission = made(tmp_path, partition="gpu", more=("--comment=a b",))
    submission.send()
    sent = slurm.sent()
    assert (tuple(sent["argv"]), sent["script"]) == (submission.argv[1:], TEXT)
    (tmp_path / "sbatch.json").unlink(missing_ok=True)
    shown = subprocess.run(["bash"], input=submission.as_text(), text=True, capture_output=True, check=True)
    assert shown.stdout.strip() == "77"
    again = slurm.sent()
    assert (again["argv"], again["script"]) == (sent["argv"], sent["script"])


def test_the_file_is_sent_byte_for_byte(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.sbatch("77")
    file = tmp_path / "a.yaml"
    file.write_bytes(TEXT.replace("\n", "\r\n").encode() + "\u00fc".encode())
    submission = make_submission(file, "a", Site(), gpus=4, caller={"PATH": os.environ["PATH"]})
    submission.send()
    assert slurm.sent()["script"].encode() == file.read_bytes()
    record_submission(tmp_path / "runs", submission, Submitted("77", "a", "/r", str(file), 1.0))
    assert (tmp_path / "runs" / RECORDS / "77" / "a.yaml").read_bytes() == file.read_bytes()
    assert read_submissions(tmp_path / "runs") == {"77": Submitted("77", "a", "/r", str(file), 1.0)}


def test_a_later_edit_changes_nothing(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.sbatch("77")
    submission = made(tmp_path)
    submission.file.write_text("broken")
    submission.send()
    assert slurm.sent()["script"] == TEXT


def test_nothing_of_a_surrounding_job_or_shell_leaks() -> None:
    caller = {
        "PATH": "/bin",
        "SLURM_CONF": "/off/default/slurm.conf",
        "SLURM_CPU_BIND": "quiet,mask_cpu:0x1",
        "SLURM_CPUS_PER_TASK": "1",
        "SLURM_MEM_PER_CPU": "1",
        "SLURM_JOB_ID": "5",
        "SLURMD_NODENAME": "n1",
        "SBATCH_PARTITION": "other",
        "SRUN_CPUS_PER_TASK": "1",
        "PMIX_RANK": "0",
        "LD_LIBRARY_PATH": "/host/toolchain",
        "LD_PRELOAD": "/x.so",
        "HF_TOKEN": "hf_secret",
        "AWS_SECRET_ACCESS_KEY": "x",
        "SCRATCH": "/scratch/me",
    }
    assert clean_environment(caller) == {
        "PATH": "/bin",
        "SLURM_CONF": "/off/default/slurm.conf",
        "SCRATCH": "/scratch/me",
    }


def test_sbatch_itself_gets_the_clean_environment(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.sbatch("77")
    file = tmp_path / "a.yaml"
    file.write_text(TEXT)
    caller = {"PATH": os.environ["PATH"], "HF_TOKEN": "hf_secret", "SLURM_CPU_BIND": "x", "SLURM_CONF": "/c"}
    submission = make_submission(file, "a", Site(), gpus=4, caller=caller)
    submission.send()
    seen = slurm.sent()["environment"]
    assert "hf_secret" not in str(seen)
    assert "SLURM_CPU_BIND" not in seen
    assert seen["SLURM_CONF"] == "/c"
    assert submission.left_out == ("HF_TOKEN", "SLURM_CPU_BIND")
    assert "hf_secret" not in submission.as_text() + str(submission.as_json())


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--array=1-4",), "the command line: --array makes something else than one job"),
        (("--wrap=rm",), "--wrap makes something else"),
        (("--wait",), "use submit's own --wait"),
        (("--requeue",), "--requeue is not for sbatch here"),
        (("--export=ALL,HF_TOKEN=hf_x",), "--export shows HF_TOKEN to everybody"),
    ],
)
def test_options_that_would_make_something_else_are_refused(tmp_path: Path, more: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        made(tmp_path, more=more)
    assert said in str(error.value)


def test_options_of_the_file_are_looked_at_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="line 3: --array"):
        made(tmp_path, TEXT.replace("--time=10", "-a 1-4"))
    with pytest.raises(ConfigError, match="line 3: --export shows MY_API_KEY"):
        made(tmp_path, TEXT.replace("--time=10", "--export=NONE,MY_API_KEY=x"))


@pytest.mark.parametrize(
    ("answer", "job_id"),
    [("123\n", "123"), ("123;gpucluster\n", "123"), ("Welcome to 7\n45\n", "45"), ("4711\n45\n", "45")],
)
def test_the_id_is_taken_from_sbatchs_answer(answer: str, job_id: str) -> None:
    assert job_id_of(answer) == job_id


def test_an_answer_without_an_id_is_an_error() -> None:
    with pytest.raises(SetupError, match="named no id"):
        job_id_of("Submitted batch job\n")


def test_slurms_words_without_the_names_of_its_programs() -> None:
    said = "sbatch: error: invalid partition specified: nope\nsbatch: error: Batch job submission failed: Invalid partition name specified\n"
    assert slurm_words(said) == "invalid partition specified: nope; Invalid partition name specified"
    assert (
        slurm_words("sbatch: unrecognized option '--segment=2'\nTry \"sbatch --help\" for more information\n")
        == "unrecognized option '--segment=2'"
    )


@pytest.mark.parametrize(
    ("stderr", "cause"),
    [
        ("sbatch: error: invalid partition specified: gpu", "partition of site here: --partition=gpu"),
        ("sbatch: error: Invalid --time specification", "{file}:3: --time=10"),
        ("sbatch: error: Invalid generic resource (gres) specification", "{file}:2: --gres=gpu:4"),
        ("sbatch: unrecognized option '--segment=2'", "the command line: --segment=2"),
    ],
)
def test_a_refusal_has_slurms_words_and_the_line(slurm: FakeSlurm, tmp_path: Path, stderr: str, cause: str) -> None:
    slurm.sbatch("", 1, stderr)
    submission = made(tmp_path, partition="gpu", more=("--segment=2",))
    error = refusal(submission, submission.send())
    words = stderr.rsplit("error: ", maxsplit=1)[-1].removeprefix("sbatch: ")
    assert error.what == f"Slurm refused the job: {words}\n  {cause.format(file=submission.file)}"
    assert error.exit_code == 3


def test_an_option_on_the_command_line_is_the_one_that_counts(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.sbatch("", 1, "sbatch: error: Invalid --time specification")
    submission = made(tmp_path, more=("--time=x",))
    assert refusal(submission, submission.send()).what.endswith("specification\n  the command line: --time=x")
    slurm.sbatch("", 1, "sbatch: error: invalid partition specified: x")
    submission = made(tmp_path, partition="gpu", more=("--partition=x",))
    assert refusal(submission, submission.send()).what.endswith("specified: x\n  the command line: --partition=x")


def test_each_example_is_what_submit_prints(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = sorted((repository / "slurm" / "examples").glob("*.sbatch"))
    assert len(examples) >= 2
    monkeypatch.chdir(repository)
    for example in examples:
        shown = example.read_text()
        words = shown.split("`")[1].split()
        file, name = Path(words[2]), words[words.index("--site") + 1]
        site = load_site(name, site_directories(repository), environment={"DEVCLUSTER_DIR": "/dc"})
        topology = yaml.safe_load(file.read_text())
        nodes = topology["nodes"]
        segment = segment_of(nodes["count"], nodes.get("nvlink_domain"))
        submission = make_submission(
            file, topology["name"], site, gpus=nodes["gpus"], segment=segment, site_argument=name, caller={}
        )
        assert submission.as_text() == shown, f"dynamo-mlperf submit {file} --site {name} --dry-run > {example}"


def test_the_dry_run_runs_nothing_but_sbatch(tmp_path: Path) -> None:
    """A file's name, or a line of it, that would end the comment or the here-document early."""
    file = tmp_path / "a\ntouch made-by-name; #.yaml"
    file.write_text(TEXT + 'site: "\nEND OF SCRIPT\ntouch made-by-line\n"\n')
    told = make_submission(file, "a", Site(name="here"), gpus=4, caller={"PATH": os.environ["PATH"]}).as_text()
    slurm = FakeSlurm(tmp_path / "bin")
    slurm.directory.mkdir()
    slurm.script("sbatch", "cat > received")
    subprocess.run(("bash", "-c", told), cwd=tmp_path, env={"PATH": slurm.path}, check=True)
    assert (tmp_path / "received").read_text() == file.read_text()
    assert not list(tmp_path.glob("made-by*"))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--export", "HF_TOKEN=x"), "HF_TOKEN"),
        (("-a1-4",), "--array"),
        (("--arr=1-4",), "--array"),
        (("--req",), "--requeue"),
        (("other.sh",), "'other.sh' is no option"),
        (("--hold", "other.sh"), "'other.sh' is no option"),
    ],
)
def test_options_are_read_as_sbatch_reads_them(tmp_path: Path, more: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        made(tmp_path, more=more)


@pytest.mark.parametrize("option", ["--wait", "-W", "--test-only", "hetjob"])
def test_a_file_that_sbatch_would_not_take_at_once_is_refused(tmp_path: Path, option: str) -> None:
    with pytest.raises(ConfigError, match="line 2"):
        made(tmp_path, TEXT.replace("--nodes", f"{option} --nodes"))


def test_an_sbatch_that_hangs_may_have_taken_the_job(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dynamo_mlperf.slurm.submission.ASK_S", 0.3)
    slurm.script("sbatch", "exec sleep 60")
    with pytest.raises(SetupError, match="did not answer") as caught:
        made(tmp_path).send()
    assert "squeue --me" in caught.value.action


def test_bytes_that_are_no_text_do_not_hide_the_id(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.script("sbatch", r"cat > /dev/null; printf '\377\n' >&2; echo 12")
    assert job_id_of(made(tmp_path).send().stdout) == "12"


@pytest.mark.parametrize(
    "damage", [{"job_id": 12}, {"job_id": "--me"}, {"run_dir": "a\0b"}, {"run_dir": 3}, {"submitted_t": None}]
)
def test_a_damaged_record_is_left_out(tmp_path: Path, damage: dict[str, Any]) -> None:
    good = {"job_id": "12", "name": "a", "run_dir": "/runs/a-12", "file": "a.yaml", "submitted_t": 1.0}
    for name, value in (("12", good), ("13", {**good, "job_id": "13", **damage})):
        (tmp_path / RECORDS / name).mkdir(parents=True)
        (tmp_path / RECORDS / name / "submission.json").write_text(json.dumps(value))
    assert list(read_submissions(tmp_path)) == ["12"]
