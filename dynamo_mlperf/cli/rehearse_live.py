"""`rehearse --live`: the derived topology, run through the whole chain on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from dynamo_mlperf.job.rehearsal import Stage
    from dynamo_mlperf.topology.spec import Topology
    from dynamo_mlperf.tuning.calibration import Calibration


def rehearse_live(
    file: Path, topology: Topology, stage: Stage, given: Calibration | None, options: dict[str, Any]
) -> int:
    """Write the rehearsal's directory and run it; returns the run's exit code.

    Raises:
        ConfigError: See `write_live`.
        SetupError: The directory cannot be written.
    """
    from dynamo_mlperf.cli.call import Call
    from dynamo_mlperf.cli.launch import Launch, launch
    from dynamo_mlperf.cli.output import json_text
    from dynamo_mlperf.cli.run import this_machine
    from dynamo_mlperf.errors import SetupError
    from dynamo_mlperf.job.context import local_run_id, new_nonce
    from dynamo_mlperf.job.live_rehearsal import LiveRehearsal, write_live
    from dynamo_mlperf.job.rehearsal import default_calibration
    from dynamo_mlperf.job.request_lengths import request_lengths
    from dynamo_mlperf.slurm.runs import LIVE_REHEARSAL
    from dynamo_mlperf.topology.spec import load_topology
    from dynamo_mlperf.tuning.rehearsal_engines import Factors, engines_of

    engines, _notes = engines_of(topology, stage.base, stage.chosen)
    none = options["calibration"] == "none"
    found = None if none else given or default_calibration(topology, engines)
    factors = found.factors if found else Factors()
    lengths = request_lengths(topology, stage.base, stage.own)
    run_id = local_run_id(f"rehearse-{topology.name}", new_nonce())
    directory = (options["run_dir"] or stage.base / "runs" / run_id).resolve()
    what = LiveRehearsal(file, topology, engines, factors, lengths, options["seconds"], options["qps"])
    try:
        derived = write_live(directory, what, stage.base)
    except OSError as problem:
        raise SetupError(f"{directory}: {problem.strerror}", "--run-dir in a place that can be written") from problem
    click.echo(_length(load_topology(derived), stage.base), err=True)
    if factors.overhead_ms:
        click.echo(
            f"the calibration's {factors.overhead_ms:.0f} ms of each request outside the engines are not simulated: "
            "latencies lack them, but for what the frontend and the client here take",
            err=True,
        )
    if options["only_write"]:
        click.echo("the rehearsal's topology is written, its profiles and prompts beside it:", err=True)
        click.echo(json_text({"topology": str(derived)}) if options["as_json"] else str(derived))
        return 0
    click.echo(f"{derived}: written; the rehearsal's topology, its profiles and prompts beside it", err=True)
    stage.check()
    return launch(
        Launch(
            Call(
                file=derived,
                site=options["site"],
                run_dir=directory / LIVE_REHEARSAL,
                as_json=options["as_json"],
            ),
            base_dir=stage.base,
            run_id=lambda _name: run_id,
            allocation=this_machine,
        )
    )


def _length(derived: Topology, base: Path) -> str:
    """How long it takes: `--seconds`, or longer where its prompts, each of which is sent, take longer."""
    from dynamo_mlperf.job.expected import expected_settings
    from dynamo_mlperf.load.enough import enough_queries

    enough = enough_queries(expected_settings(derived, base), derived.measure.client)
    return f"{enough.planned} queries will be sent, in about {enough.takes_s:.0f} s"
