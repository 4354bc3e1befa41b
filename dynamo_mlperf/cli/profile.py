"""`profile`: timing profiles for rehearsals, from one's own runs, from aiconfigurator, or from a roofline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dynamo_mlperf.files import read_bounded

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence

    from dynamo_mlperf.topology.spec import Role
    from dynamo_mlperf.tuning.profile_fit import MeasuredRun
    from dynamo_mlperf.tuning.profiles import Profile


@click.command(name="profile")
@click.argument("run_dirs", nargs=-1, type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--from",
    "source",
    type=click.Choice(["aiconfigurator", "analytic"]),
    help="Instead of runs: NVIDIA's aiconfigurator, or a roofline of the GPU's data sheet.",
)
@click.option("--gpu", help="With --from: the GPU, as nodes.gpu of a topology.")
@click.option("--model", default="qwen3-vl-235b-a22b", show_default=True, help="With --from: model.name.")
@click.option("--precision", help="With --from: nvfp4, mxfp4, fp8 or bf16; default: as published.")
@click.option("--tensor-parallel", type=click.IntRange(1, 1024), default=1, show_default=True, help="With --from.")
@click.option("--backend", type=click.Choice(["vllm", "trtllm", "sglang"]), default="vllm", help="Of aiconfigurator.")
@click.option("--python", help="The Python that has aiconfigurator; default: the one running.")
@click.option("--check", type=click.Path(dir_okay=False, path_type=Path), help="Only check this NPZ file for sense.")
@click.option("--list", "only_list", is_flag=True, help="List the profiles that are shipped.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="The NPZ file; NAME.yaml beside it.")
@click.option("--json", "as_json", is_flag=True, help="Print what was made as JSON.")
def command(run_dirs: tuple[Path, ...], *, only_list: bool, as_json: bool, **options: Any) -> None:  # noqa: ANN401 - click's values
    """Make a timing profile: RUN_DIR... fits one to measured runs of one deployment.

    Runs need queries with prompt and answer tokens on record, at two rates or more: one so low that requests hardly
    overlap (30 of them at least), one near the limit. Searches count with all of their probes.
    """
    from dynamo_mlperf.errors import ConfigError
    from dynamo_mlperf.tuning.profiles import read_profile

    ways = [bool(run_dirs), options["source"] is not None, options["check"] is not None, only_list]
    if sum(ways) != 1:
        raise ConfigError("wanted one of RUN_DIR..., --from, --check and --list", "dynamo-mlperf profile RUN_DIR...")
    if only_list:
        _list(as_json=as_json)
        return
    if options["check"] is not None:
        _say(read_profile(options["check"]), as_json=as_json)
        return
    if options["out"] is None or options["out"].suffix != ".npz":
        raise ConfigError("no --out NAME.npz is given", "--out my-profile.npz")
    profile = _generated(options) if options["source"] else _measured(options["out"].stem, run_dirs)
    _write(options["out"], profile)
    _say(profile, as_json=as_json)


def _generated(options: dict[str, Any]) -> Profile:
    import sys

    from dynamo_mlperf.benchmark.model_shapes import PRECISION_BYTES, PUBLISHED, shape_of
    from dynamo_mlperf.errors import ConfigError
    from dynamo_mlperf.topology.memory import GPU_BYTES
    from dynamo_mlperf.tuning.profile_sources import Served, from_aiconfigurator, roofline

    shape = shape_of(PUBLISHED.get(options["model"], {}))
    if shape is None:
        raise ConfigError(f"the shape of {options['model']} is not known", f"--model {' or '.join(PUBLISHED)}")
    if options["gpu"] not in GPU_BYTES:
        raise ConfigError(f"--gpu {options['gpu']} is none that is known", f"one of {', '.join(GPU_BYTES)}")
    precision = options["precision"] or shape.precision
    if precision not in PRECISION_BYTES:
        raise ConfigError(f"--precision {precision} is none", f"one of {', '.join(PRECISION_BYTES)}")
    served = Served(options["model"], precision, options["gpu"], options["tensor_parallel"])
    if options["source"] == "analytic":
        return roofline(served, shape)
    return from_aiconfigurator(served, options["python"] or sys.executable, options["backend"])


def _measured(name: str, run_dirs: tuple[Path, ...]) -> Profile:
    from datetime import UTC, datetime

    from dynamo_mlperf.tuning.profile_fit import measured_profile

    runs: list[MeasuredRun] = []
    facts: dict[str, Any] = {}
    for directory in run_dirs:
        found, facts = _runs_of(directory, facts)
        runs += found
    return measured_profile(name, runs, {**facts, "date": datetime.now(UTC).date().isoformat()})


def _runs_of(directory: Path, before: dict[str, Any]) -> tuple[list[MeasuredRun], dict[str, Any]]:
    """The tests of one run directory, and what served them.

    Raises:
        ConfigError: It is no run directory, has no queries, or served something else than the ones before it.
    """
    from collections import Counter

    from dynamo_mlperf.errors import ConfigError, MeasureError
    from dynamo_mlperf.job.sweep_records import SWEEP_DIR
    from dynamo_mlperf.load.queries import CUT_FILE, read_queries
    from dynamo_mlperf.report.run_data import read_run
    from dynamo_mlperf.topology.spec import parse_topology
    from dynamo_mlperf.tuning.profile_fit import MeasuredRun

    run = read_run(directory)
    if run.topology is None or run.layout is None:
        raise ConfigError(f"{directory} has no topology.yaml or no plan.json", "name a whole run directory")
    topology = parse_topology(run.topology, directory / "topology.yaml")
    roles = topology.roles.present()
    facts: dict[str, Any] = {
        "gpu": topology.nodes.gpu,
        "model": topology.model.name,
        "engine": topology.engine,
        "precision": topology.model.precision,
        "tensor_parallel": {name: role.tensor_parallel for name, role in roles},
    }
    if before and facts != before:
        raise ConfigError(f"{directory} served {facts}, the runs before it {before}", "one profile per deployment")
    own = Counter(each.role for each in run.layout.workers)
    found = []
    for place in _tests_of(directory):
        file = next((place / name for name in ("queries.csv", CUT_FILE) if (place / name).is_file()), None)
        workers = own if place.parent.parent.parent.name != SWEEP_DIR else _workers_of(place.parent.parent, roles)
        if file is None or not workers:
            continue
        try:
            queries = read_queries(file)
        except MeasureError as problem:
            raise ConfigError(problem.what, "leave that run out") from problem
        first, last = (max(workers[name], 1) for name in (roles[0][0], roles[-1][0]))
        found.append(MeasuredRun(_name_of(place.parent, directory), queries, first, last))
    if not found:
        raise ConfigError(f"{directory} holds no loadgen/queries.csv", "name a run that measured with LoadGen")
    return found, facts


def _tests_of(directory: Path) -> list[Path]:
    """Where the tests of a run left what they measured: its own, and each probe of its search or sweep.

    What a run shows as its own after a search is one of the probes, and is taken once.
    """
    probes = [
        place for where in ("search/probe-*", "sweep/*/*") for place in sorted(directory.glob(f"{where}/loadgen"))
    ]
    own = directory / "loadgen"
    detail = own / "queries.csv"
    same = detail.is_file() and any(
        (place / detail.name).is_file() and detail.samefile(place / detail.name) for place in probes
    )
    return probes if same else [own, *probes]


def _workers_of(split: Path, roles: Sequence[tuple[str, Role]]) -> Counter[str]:
    """Workers of each role at one split of a sweep; none where a role's TP is another one than the file's.

    Raises:
        ConfigError: Its plan cannot be read.
    """
    import json
    from collections import Counter

    from dynamo_mlperf.errors import ConfigError

    path = split / "plan.json"
    try:
        workers = [(str(each["role"]), len(each["ranks"])) for each in json.loads(read_bounded(path))["workers"]]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise ConfigError(f"{path} cannot be read: {problem}", f"remove {split}") from problem
    usual = {name: role.tensor_parallel * role.data_parallel for name, role in roles}
    return Counter(name for name, _ in workers) if all(usual[name] == ranks for name, ranks in workers) else Counter()


def _name_of(test: Path, directory: Path) -> str:
    """Of a test, for people: the run, and which probe of it."""
    parts = () if test == directory else test.relative_to(directory).parts[1:]
    return "/".join((directory.name, *parts))


def _write(path: Path, profile: Profile) -> None:
    from dynamo_mlperf.errors import SetupError
    from dynamo_mlperf.tuning.profiles import write_profile

    try:
        write_profile(profile, path)
    except OSError as problem:
        raise SetupError(f"--out {path}: {problem.strerror}", "--out in a directory that can be written") from problem
    click.echo(f"{path} and {path.with_suffix('.yaml').name}: written", err=True)


def _list(*, as_json: bool) -> None:
    from dynamo_mlperf.benchmark.rules import BENCHMARKS
    from dynamo_mlperf.cli.output import json_text
    from dynamo_mlperf.tuning.profiles import read_profile, shipped_profiles

    found = [
        {"benchmark": benchmark, "name": path.stem, "source": str(facts.get("source")), "date": str(facts.get("date"))}
        for benchmark in BENCHMARKS
        for path in shipped_profiles(benchmark)
        for facts in (read_profile(path).facts,)
    ]
    if as_json:
        click.echo(json_text(found))
        return
    for one in found:
        click.echo("{benchmark}  {name}  {source}, {date}".format(**one))


def _say(profile: Profile, *, as_json: bool) -> None:
    import json

    prompts = {str(tokens): round(profile.prefill_at(tokens), 3) for tokens in (1_000, 4_000, 16_000)}
    steps = {str(batch): round(profile.itl_at(batch, 4_000), 3) for batch in (1, 8, 32, 128)}
    if as_json:
        value = {"name": profile.name, "facts": dict(profile.facts), "prefill_ms": prompts, "itl_ms_at_4000": steps}
        click.echo(json.dumps(value))
        return
    click.echo(f"{profile.name}: {profile.facts.get('origin', 'origin not said')}")
    click.echo("prefill     " + ", ".join(f"{ms} ms of {tokens} tokens" for tokens, ms in prompts.items()))
    click.echo(
        "decode step " + ", ".join(f"{ms} ms of {batch}" for batch, ms in steps.items()) + " at 4,000 tokens each"
    )
    for key in ("source", "seen", "fit_error_percent", "held_out_error_percent"):
        if key in profile.facts:
            click.echo(f"{key.replace('_', ' ')}: {profile.facts[key]}")
