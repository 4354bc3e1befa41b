from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.topology.batch import (
    Difference,
    batch_differences,
    batch_directives,
    fix_batch_lines,
    ignored_batch_lines,
)
from dynamo_mlperf.topology.plan import make_plan
from dynamo_mlperf.topology.spec import load_topology, parse_topology
from tests.topology.topology_texts import role, topology_text

SHEBANG = "#!/usr/bin/env -S dynamo-mlperf job"
BODY = "\n".join(topology_text(prefill=role(4, 2), decode=role(8)).split("\n")[2:])
TOPOLOGY = parse_topology(BODY)
PLAN = make_plan(TOPOLOGY)


def differences(head: str, *, shipped: bool = False) -> tuple[Difference, ...]:
    return batch_differences(f"{head}\n{BODY}", TOPOLOGY, PLAN, shipped=shipped)


def fixed(head: str, *, shipped: bool = False) -> str:
    text = fix_batch_lines(f"{head}\n{BODY}", TOPOLOGY, PLAN, shipped=shipped)
    assert text.endswith(f"\n{BODY}")
    return text.removesuffix(f"\n{BODY}")


def options(head: str) -> list[tuple[str, str | None]]:
    return [(directive.option, directive.value) for directive in batch_directives(head)]


def test_options_are_read_as_slurm_reads_them() -> None:
    head = """#!/bin/sh
#SBATCH -N4 -p debug --exclusive --gres gpu:4 # a comment --nodes=9
#SBATCH --comment="two words" --no-requeue -t 1:00
##SBATCH --nodes=8
# SBATCH --nodes=8
 #SBATCH --nodes=8

#SBATCH --job-name=x
name: y
#SBATCH --nodes=7
"""
    assert options(head) == [
        ("nodes", "4"),
        ("partition", "debug"),
        ("exclusive", None),
        ("gres", "gpu:4"),
        ("comment", "two words"),
        ("no-requeue", None),
        ("time", "1:00"),
        ("job-name", "x"),
    ]
    assert ignored_batch_lines(head) == (10,)


@pytest.mark.parametrize(
    "line",
    [
        "--nodes=4 --gres=gpu:4 --no-requeue",
        "-N 4 --gres=gpu:gb200:4 --no-requeue",
        "-N4-4 --gpus-per-node=4 --no-requeue",
        "--nodes=9 --nodes=4 --gpus-per-node gb200:4 --requeue --no-requeue",
        "--nodes 4 --gres=nvme:1,gpu:4 --no-requeue --partition=x",
    ],
)
def test_lines_that_agree_are_left_alone(line: str) -> None:
    head = f"{SHEBANG}\n#SBATCH {line}"
    assert differences(head) == ()
    assert fixed(head) == head


@pytest.mark.parametrize(
    ("line", "option", "corrected"),
    [
        ("--nodes=3 --gres=gpu:4 --no-requeue", "nodes", "#SBATCH --nodes=4 --gres=gpu:4 --no-requeue"),
        ("-N 4-5 --gres=gpu:4 --no-requeue", "nodes", "#SBATCH --nodes=4 --gres=gpu:4 --no-requeue"),
        ("-N4 --gres=gpu:8 --no-requeue", "gres", "#SBATCH -N4 --gres=gpu:4 --no-requeue"),
        ("-N4 --gres=gpu --no-requeue", "gres", "#SBATCH -N4 --gres=gpu:4 --no-requeue"),
        ("-N4 --gres gpu:h200:8,nvme:1 --no-requeue", "gres", "#SBATCH -N4 --gres=gpu:h200:4,nvme:1 --no-requeue"),
        ("-N4 --gpus-per-node=h200:8 --no-requeue", "gpus-per-node", "#SBATCH -N4 --gpus-per-node=h200:4 --no-requeue"),
        ("-N4 --gres=nvme:1 --no-requeue", "gres", "#SBATCH -N4 --gres=gpu:4,nvme:1 --no-requeue"),
        ("-N4 --gres=gpu:4 --requeue", "no-requeue", "#SBATCH -N4 --gres=gpu:4 --no-requeue"),
        ("-N4 --gres=gpu:4 --no-requeue --requeue", "no-requeue", "#SBATCH -N4 --gres=gpu:4 --no-requeue --no-requeue"),
    ],
)
def test_each_difference_names_the_corrected_line(line: str, option: str, corrected: str) -> None:
    head = f"{SHEBANG}\n#SBATCH {line}"
    (difference,) = differences(head)
    assert (difference.option, difference.line, difference.corrected) == (option, 2, corrected)
    assert fixed(head) == f"{SHEBANG}\n{corrected}"


def test_what_is_missing_is_added_after_the_last_batch_line() -> None:
    head = f"{SHEBANG}\n#SBATCH --time=1:00\n# why"
    assert [difference.corrected for difference in differences(head)] == [
        "#SBATCH --nodes=4",
        "#SBATCH --gres=gpu:4",
        "#SBATCH --no-requeue",
    ]
    assert fixed(head) == (
        f"{SHEBANG}\n#SBATCH --time=1:00\n#SBATCH --nodes=4\n#SBATCH --gres=gpu:4\n#SBATCH --no-requeue\n# why"
    )


def test_a_shipped_file_names_no_partition_account_or_node() -> None:
    head = f"{SHEBANG}\n#SBATCH -N4 -p gpu --gres=gpu:4 --account=me --no-requeue\n#SBATCH -w n[1-4]"
    assert differences(head) == ()
    found = differences(head, shipped=True)
    assert [(difference.option, difference.line, difference.got) for difference in found] == [
        ("partition", 2, "-p gpu"),
        ("account", 2, "--account=me"),
        ("nodelist", 3, "-w n[1-4]"),
    ]
    assert fixed(head, shipped=True) == f"{SHEBANG}\n#SBATCH -N4 --gres=gpu:4 --no-requeue"


def test_a_missing_or_foreign_shebang_is_a_difference() -> None:
    good = "#SBATCH -N4 --gres=gpu:4 --no-requeue"
    assert [difference.option for difference in differences(f"#!/bin/bash\n{good}")] == ["shebang"]
    assert fixed(f"#!/bin/bash\n{good}") == f"{SHEBANG}\n{good}"
    assert [difference.option for difference in differences(good)] == ["shebang"]
    assert fixed(good) == f"{SHEBANG}\n{good}"


def test_a_difference_says_what_is_wanted_and_what_correcting_it_does() -> None:
    found = differences(f"{SHEBANG}\n#SBATCH -N3 --no-requeue -p gpu", shipped=True)
    assert [(difference.text, difference.change) for difference in found] == [
        ("line 2: -N3, the plan wants --nodes=4", "line 2: -N3 is now --nodes=4"),
        ("no #SBATCH line asks for --gres; the plan wants --gres=gpu:4", "added #SBATCH --gres=gpu:4"),
        (
            "line 2: -p gpu, the plan wants no --partition (sbatch -p, -A, -w or the site file say it)",
            "line 2: -p gpu is left out",
        ),
    ]
    (bare,) = differences("#SBATCH -N4 --gres=gpu:4 --no-requeue")
    assert (bare.text, bare.change) == (f"no first line that runs it; the plan wants {SHEBANG}", f"added {SHEBANG}")


def test_an_open_quote_is_refused() -> None:
    with pytest.raises(ConfigError, match="line 2: a quote is not closed"):
        differences(f"{SHEBANG}\n#SBATCH --comment='x")


def test_the_segment_is_asked_for_where_the_site_wants_it() -> None:
    head = f"{SHEBANG}\n#SBATCH -N4 --gres=gpu:4 --no-requeue"
    text = f"{head}\n{BODY}"
    (missing,) = batch_differences(text, TOPOLOGY, PLAN, segment=4)
    assert (missing.option, missing.line, missing.corrected) == ("segment", 0, "#SBATCH --segment=4")
    fixed_text = fix_batch_lines(text, TOPOLOGY, PLAN, segment=4)
    assert fixed_text == f"{head}\n#SBATCH --segment=4\n{BODY}"
    assert batch_differences(fixed_text, TOPOLOGY, PLAN, segment=4) == ()
    (other,) = batch_differences(fixed_text, TOPOLOGY, PLAN, segment=2)
    assert (other.line, other.got, other.wanted) == (3, "--segment=4", "--segment=2")
    assert batch_differences(fixed_text, TOPOLOGY, PLAN) == ()


_OPTIONS = st.one_of(
    st.sampled_from(["-N 3", "-N4", "--nodes=2-4", "--gres=gpu:2", "--gres=nvme:1", "--gpus-per-node=8"]),
    st.sampled_from(["--requeue", "--no-requeue", "-p x", "-A me", "-w n1"]),
    st.sampled_from(["--exclusive", "--comment='a # b'", "--time 1:00", "# note"]),
)


@given(st.lists(st.lists(_OPTIONS, max_size=4).map(" ".join), max_size=4), st.booleans(), st.booleans())
def test_a_fixed_file_agrees_and_says_the_same(rows: list[str], shebang: bool, shipped: bool) -> None:  # noqa: FBT001
    head = "\n".join([SHEBANG, *[f"#SBATCH {row}" for row in rows]] if shebang else [f"#SBATCH {row}" for row in rows])
    text = fix_batch_lines(f"{head}\n{BODY}", TOPOLOGY, PLAN, shipped=shipped)
    assert batch_differences(text, TOPOLOGY, PLAN, shipped=shipped) == ()
    assert fix_batch_lines(text, TOPOLOGY, PLAN, shipped=shipped) == text
    assert parse_topology(text) == TOPOLOGY


def test_the_shipped_topologies_agree_with_their_plans(repository: Path) -> None:
    for path in sorted((repository / "topologies").glob("*.yaml")):
        topology = load_topology(path)
        assert batch_differences(path.read_text(), topology, make_plan(topology), shipped=True) == ()
        assert ignored_batch_lines(path.read_text()) == ()
