"""Flags that an engine does not know: by its help text, and by the log of one that died of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.files import RunPaths
from dynamo_mlperf.process.allocation import LocalAllocation
from dynamo_mlperf.process.child import Child
from dynamo_mlperf.process.command import Command, inherited_environment
from dynamo_mlperf.process.signals import StopFlag
from dynamo_mlperf.record import EventLog
from dynamo_mlperf.serving.engine_flags import (
    flags_in_help,
    question,
    refusal_in_log,
    refuse_unknown,
    unknown_flags,
)
from dynamo_mlperf.serving.supervisor import Layer, Supervisor
from dynamo_mlperf.topology.spec import Topology, parse_topology

HELP = """
usage: engine [-h] [--model MODEL] [--max-num-seqs N]
              [--enable-x | --no-enable-x] [--tp-size N]
options:
  -h, --help            show this help message and exit
  --model MODEL, -m MODEL
  --max-num-seqs N      Most sequences; see --block-size.
  --max_batch_size N
  --compilation-config JSON
  --kv-cache-dtype {auto,fp8}
  --seed N
"""
LEGAL = flags_in_help(HELP)
HIDDEN = "kv-overlap-score-weight"
"""A flag that the mocker of Dynamo 1.6.1 takes but does not show."""


def topology(args: str, engine: str = "mocker") -> Topology:
    return parse_topology(
        f"""
schema: 1
name: one
nodes: {{count: 1, gpus: 1}}
model: {{name: tiny, weights: {{path: /models/tiny}}}}
engine: {engine}
roles: {{aggregated: {{workers: 1, args: {{{args}}}}}}}
measure: {{benchmark: qwen3-vl-235b-a22b, scenario: Interactive, target_qps: 1}}
"""
    )


def test_all_flags_of_a_help_text_are_found_whatever_it_spells_them_like() -> None:
    assert {
        "help",
        "model",
        "max-num-seqs",
        "enable-x",
        "no-enable-x",
        "tp-size",
        "block-size",
        "max-batch-size",
        "compilation-config",
        "kv-cache-dtype",
        "seed",
    } == LEGAL
    assert flags_in_help("Traceback: no module --x") == frozenset()


@pytest.mark.parametrize(
    ("args", "unknown"),
    [
        ("max-num-seqs: 4, enable-x: true, seed: 1", []),
        ("enable-x: false", []),
        ("see: 4", [("see", "seed")]),  # argparse takes the beginning for the whole
        ("compilation-config.level: 3", []),
        ("max-num-sequences: 4", [("max-num-sequences", "max-num-seqs")]),
        ("seed: false", [("seed", "seed")]),
        ("max-num-sequences: null", []),
        ("xyzzy: 1", [("xyzzy", None)]),
    ],
)
def test_flags_that_the_engine_does_not_know(args: str, unknown: list[tuple[str, str | None]]) -> None:
    assert [(one.flag, one.likely) for one in unknown_flags(topology(args), LEGAL)] == unknown


def test_a_file_with_unknown_flags_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError) as refusal:
        refuse_unknown(topology("max-num-sequences: 4, xyzzy: 1"), LEGAL)
    assert refusal.value.what == (
        "mocker has no such flag: roles.aggregated.args.max-num-sequences, roles.aggregated.args.xyzzy"
    )
    assert refusal.value.action == "write max-num-seqs instead of max-num-sequences"
    with pytest.raises(ConfigError, match=r"see python -m dynamo\.mocker --help"):
        refuse_unknown(topology("xyzzy: 1"), LEGAL)
    refuse_unknown(topology("seed: 1"), LEGAL)


@pytest.mark.parametrize(
    ("log", "what", "action"),
    [
        (
            HELP + "engine: error: unrecognized arguments: --max-num-sequences 4\n",
            "decode-0 does not know the flag --max-num-sequences",
            "write max-num-seqs instead, or change it under roles: in the topology file",
        ),
        (
            "ERROR Unrecognized argument: --foo\n",
            "decode-0 does not know the flag --foo",
            "change it under roles: in the topology file",
        ),
        (
            "Error: No such option '--foo'. Did you mean '--fo'?\n",
            "decode-0 does not know the flag --foo",
            "change it under roles: in the topology file",
        ),
        (
            "engine: error: argument --max-num-seqs: invalid int value: 'abc'\n",
            "decode-0: argument --max-num-seqs: invalid int value: 'abc'",
            "change it under roles: in the topology file",
        ),
        (
            "engine: error: argument --tensor-parallel-size/-tp: expected one argument\n",
            "decode-0: argument --tensor-parallel-size/-tp: expected one argument",
            "change it under roles: in the topology file",
        ),
    ],
)
def test_an_engine_that_died_of_a_flag_says_so_itself(log: str, what: str, action: str) -> None:
    refusal = refusal_in_log("decode-0", log)
    assert refusal is not None
    assert (refusal.what, refusal.action) == (what, action)


def test_other_deaths_are_not_laid_to_flags() -> None:
    assert refusal_in_log("decode-0", "RuntimeError: CUDA error: out of memory\n") is None


@pytest.mark.parametrize("forgiven", [False, True])
def test_an_engine_that_dies_of_a_flag_is_a_matter_of_the_file_even_where_its_loss_is_forgiven(
    tmp_path: Path, *, forgiven: bool
) -> None:
    paths = RunPaths(tmp_path)
    paths.logs.mkdir()
    supervisor = Supervisor(LocalAllocation(1), paths, EventLog(paths), StopFlag())
    script = "import sys; sys.exit('usage: e [--max-num-seqs N]\\nerror: unrecognized arguments: --max-seqs 4')"
    lost: list[Child] = []

    def start(name: str, *, engine: bool) -> None:
        argv = (sys.executable, "-c", script)
        command = Command(name, argv, inherited_environment(), paths.log_of(name), engine=engine)
        supervisor.start(command, Layer.WORKER, on_loss=lost.append if forgiven else None)

    start("decode-0", engine=True)
    with pytest.raises(ConfigError, match="decode-0 does not know the flag --max-seqs"):
        supervisor.wait_for(lambda: None, 30, lambda: "it lives")
    assert not lost
    supervisor.stop_all()


@pytest.mark.dynamo
def test_the_mocker_tells_its_flags(tmp_path: Path) -> None:
    """What it is asked with here is what a job asks it with."""
    argv = [sys.executable, *question(topology("seed: 1"))]
    env = {**inherited_environment(), "COLUMNS": "200"}
    done = subprocess.run(argv, capture_output=True, text=True, env=env, timeout=120, check=True, cwd=tmp_path)
    legal = flags_in_help(done.stdout)
    assert {"max-num-seqs", "speedup-ratio", "planner-profile-data", "kv-transfer-bandwidth"} <= legal
    assert HIDDEN in legal
    assert f"--{HIDDEN}" not in done.stdout.partition("\n--")[0]
    assert unknown_flags(topology("speedup-rato: 10"), legal)[0].likely == "speedup-ratio"
