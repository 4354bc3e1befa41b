"""Flags that the engine does not know are refused where a job is planned and where it is submitted, not in the job."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dynamo_mlperf.cli.plan import command as plan
from dynamo_mlperf.cli.submit import command as submit
from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.job.known_flags import USUAL, check_from_here, engine_versions, keep, kept_answer
from dynamo_mlperf.site import Site, load_site
from dynamo_mlperf.topology.spec import Topology, load_topology

SHIPPED = sorted((Path(__file__).resolve().parents[2] / "topologies").glob("*.yaml"))
ANSWER = frozenset({"max-num-seqs", "max-num-batched-tokens", "max-logprobs"})


@pytest.fixture
def here(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a file of which one flag is misspelt, and a site where no engine was asked yet."""
    text = (repository / "topologies" / "rehearse-1p1d.yaml").read_text()
    (tmp_path / "wrong.yaml").write_text(text.replace("max-num-seqs: 64", "max-num-seqz: 64", 1))
    (tmp_path / "fresh.yaml").write_text(f"local_path: {tmp_path / 'disk'}\n")
    (tmp_path / "staging").mkdir()
    shutil.copy(repository / "staging" / "tiny-qwen3-vl-moe.yaml", tmp_path / "staging")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DYNAMO_MLPERF_SITE", raising=False)
    return tmp_path


def planned(*words: str) -> Result:
    return CliRunner().invoke(plan, ["wrong.yaml", "--site", "./fresh.yaml", *words])


def refused(result: Result) -> None:
    assert isinstance(result.exception, ConfigError), result.output
    assert result.exception.what == "mocker has no such flag: roles.prefill.args.max-num-seqz"
    assert result.exception.action == "write max-num-seqs instead of max-num-seqz"


def answered(site: Site, topology: Topology) -> None:
    """As a run before leaves it."""
    keep(kept_answer(site, topology, engine_versions()), ANSWER)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_file_needs_no_asking(path: Path, here: Path) -> None:
    assert check_from_here(load_topology(path), load_site("./fresh.yaml"), ask=None, every=False) is None


def test_the_kept_answer_decides_in_plan_and_submit(here: Path) -> None:
    answered(load_site("./fresh.yaml"), load_topology(here / "wrong.yaml"))
    refused(planned())
    refused(CliRunner().invoke(submit, ["wrong.yaml", "--site", "./fresh.yaml", "--dry-run"]))
    (here / "wrong.yaml").write_text((here / "wrong.yaml").read_text().replace("max-num-seqz", "max-logprobs"))
    known = planned()
    assert known.exception is None
    assert "flags of mocker" not in " ".join(known.output.split())


def test_a_plan_does_not_ask_and_says_how_to(here: Path) -> None:
    told = " ".join(planned().output.split())
    assert "not checked: flags of mocker (max-num-seqz): " in told
    assert "plan --check-flags FILE` asks it" in told or "is not installed in" in told


@pytest.mark.dynamo
def test_plan_asks_when_told_to_and_submit_by_itself(here: Path) -> None:
    asked = planned("--check-flags")
    refused(asked)
    assert asked.stderr == "asking mocker for its flags, once for this version\n"
    shutil.rmtree(here / "disk")
    sent = CliRunner().invoke(submit, ["wrong.yaml", "--site", "./fresh.yaml", "--dry-run"])
    refused(sent)
    assert sent.stdout == ""
    again = planned()
    refused(again)
    assert again.stderr == ""


def test_an_engine_that_is_not_here_is_left_to_the_job(here: Path) -> None:
    bare = here / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    (here / "fresh.yaml").write_text(f"local_path: {here / 'disk'}\nengine_python: {bare}\n")
    told = " ".join(planned("--check-flags").output.split())
    assert f"flags of mocker (max-num-seqz): mocker is not installed in {bare}; the job asks it at its start" in told
    (here / "fresh.yaml").write_text(f"local_path: {here / 'disk'}\ncontainer: {{image: /images/engine.sqsh}}\n")
    assert "(max-num-seqz): the engine is in a container; the job asks" in " ".join(planned().output.split())
    (here / "fresh.yaml").write_text(f"local_path: {here / 'disk'}\nengine_python: /no/python\n")
    assert "(max-num-seqz): /no/python is not installed on" in " ".join(planned("--check-flags").output.split())


@pytest.mark.dynamo
@pytest.mark.parametrize("engine", sorted(USUAL))
def test_the_usual_flags_are_flags_of_the_installed_engine(engine: str, here: Path, repository: Path) -> None:
    name = {"vllm": "demo", "mocker": "rehearse-1p1d"}[engine]
    topology = load_topology(repository / "topologies" / f"{name}.yaml")
    role = topology.roles.present()[0][1]
    role = role.model_copy(update={"args": dict.fromkeys(USUAL[engine], 1)})
    roles = topology.roles.model_copy(update={"prefill": role})
    every = topology.model_copy(update={"roles": roles})
    assert check_from_here(every, load_site("./fresh.yaml"), ask=lambda _line: None, every=True) is None
