"""Where a sweep begins: its splits, what is predicted and known of them, and the first one's plan."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.job.predictions import predictions_of
from dynamo_mlperf.job.redoing import sought
from dynamo_mlperf.job.resuming import identity
from dynamo_mlperf.job.split_record import finished_split, result_of
from dynamo_mlperf.job.sweep_records import IDENTITY_FILE, SWEEP_DIR
from dynamo_mlperf.serving.workers import check_launchable
from dynamo_mlperf.topology.memory import memory_of
from dynamo_mlperf.topology.replanning import PortBlocks, first_plan, port_blocks
from dynamo_mlperf.topology.role_splits import own_split, with_split
from dynamo_mlperf.topology.sweeping import splits_of
from dynamo_mlperf.tuning.sweep import SweepState, next_split

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from dynamo_mlperf.load.settings import LoadSettings
    from dynamo_mlperf.topology.plan import Plan
    from dynamo_mlperf.topology.role_splits import RoleSplit
    from dynamo_mlperf.topology.spec import Topology


def first_state(topology: Topology, base_dir: Path, resume: Path | None = None) -> SweepState:
    """A sweep before its first split.

    Args:
        topology: The file, with its own split.
        base_dir: What its paths are relative to.
        resume: The run directory whose sweep goes on.

    Raises:
        ConfigError: A split, the prediction or a record is of no use.
    """
    splits = splits_of(topology)
    block, own = topology.sweep, own_split(topology)
    known = []
    for split in splits:
        value = None if resume is None else finished_split(resume / SWEEP_DIR / split.name, sought(topology))
        if value is not None:
            known.append(result_of(value, split))
    return SweepState(
        splits,
        tuple(known),
        first=own if own in splits else None,
        predicted=predictions_of(topology, base_dir),
        prune=block is None or block.prune,
    )


def identities_of(topology: Topology, load: LoadSettings) -> Mapping[str, Mapping[str, Any]]:
    """What is measured at each split, by its name, as flat names and values."""
    return {split.name: identity(with_split(topology, split), load) for split in splits_of(topology)}


def sweep_ports(topology: Topology) -> PortBlocks:
    """Blocks of ports that are enough for each split of the file."""
    return port_blocks([with_split(topology, split) for split in splits_of(topology)])


def sweep_start(topology: Topology, base_dir: Path, resume: Path | None = None) -> tuple[Topology, Plan]:
    """The topology with the split that is measured first, and its plan; each split is checked as one of its own is.

    Raises:
        ConfigError: A split does not fit, or cannot be launched; see `first_state`.
    """
    state = first_state(topology, base_dir, resume)
    # What was cut has probes that tell less the older they are: the way begins there, as if it were still up.
    state = replace(state, running=_cut_split(state, resume))
    blocks = sweep_ports(topology)
    for split in state.splits:
        of_split = with_split(topology, split)
        check_launchable(of_split, first_plan(of_split, blocks))
        memory_of(of_split, base_dir)  # refuses what cannot load
    best = state.best
    first = next_split(state) or (best.split if best else state.splits[0])
    chosen = with_split(topology, first)
    return chosen, replace(first_plan(chosen, blocks), name=topology.name)


def _cut_split(state: SweepState, resume: Path | None) -> RoleSplit | None:
    """The split that a sweep was measuring when it was cut; None where it was at none."""
    if resume is None:
        return None
    done = [result.split for result in state.results]
    begun = [one for one in state.splits if (resume / SWEEP_DIR / one.name / IDENTITY_FILE).is_file()]
    return next((one for one in begun if one not in done), None)
