"""`rehearse`: what a topology's splits would do, by simulation, before GPUs are booked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from dynamo_mlperf.job.rehearsal import Compared, Stage
    from dynamo_mlperf.topology.spec import Topology
    from dynamo_mlperf.tuning.calibration import Calibration
    from dynamo_mlperf.tuning.own_lengths import OwnLengths
    from dynamo_mlperf.tuning.prediction import Prediction

_PATH = click.Path(dir_okay=False, path_type=Path)
_JSON_NAME, _SVG_NAME = "prediction.json", "rehearsal.svg"


@click.command(name="rehearse")
@click.argument("file", type=_PATH, required=False)
@click.option("--splits", help="Splits to rehearse, such as 6P4D,5P6D,4P8D; default: the file's own.")
@click.option("--all", "every", is_flag=True, help="Rehearse every split of the file's GPUs.")
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    help="Timing profile: an NPZ file or a shipped one's name, for all roles or as ROLE=PROFILE; may be repeated.",
)
@click.option("--calibration", help="Fitted factors (JSON), or none; default: those that come with the profiles.")
@click.option(
    "--calibrate",
    type=_PATH,
    metavar="POINTS",
    help="Instead of a rehearsal: fit the factors to the points of this file and show predicted beside published.",
)
@click.option("--live", is_flag=True, help="Real Dynamo and LoadGen with simulated engines, on this machine.")
@click.option("--only-write", is_flag=True, help="With --live: write the derived topology and run nothing.")
@click.option("--run-dir", type=click.Path(path_type=Path), help="With --live: where to record. [default: runs/ID]")
@click.option(
    "--seconds",
    type=click.FloatRange(1, 86_400),
    default=60.0,
    show_default=True,
    help="With --live: shortest measurement; longer where 256 queries take longer. p99 needs 459: seconds times --qps.",
)
@click.option("--qps", type=click.FloatRange(0, 1e6, min_open=True), help="With --live: rate; default: the file's.")
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    default=0,
    show_default=True,
    help="Which requests are drawn and when they arrive, to see how far the answer depends on it; not with --live.",
)
@click.option(
    "--prompt-tokens",
    metavar="MEAN[:SPREAD]",
    help="Your own figures where a benchmark's prompts are not published: mean and standard deviation, in tokens.",
)
@click.option("--answer-tokens", metavar="MEAN[:SPREAD]", help="The same of answers; default: as published.")
@click.option("--site", help="Site file or name: says which Python runs the engines.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@click.option("--out", type=_PATH, help="Also write the prediction (with --calibrate: the factors) into this file.")
@click.option("--svg", type=_PATH, help="Also draw the rates of the splits into this SVG file.")
def command(file: Path | None, *, calibrate: Path | None, live: bool, **options: Any) -> int:  # noqa: ANN401 - click's values
    """Rehearse FILE's measurement with simulated engines: the rate of each split, what binds, which role runs out.

    Offline by default, by Dynamo's replay. Every figure is rehearsed: it ranks splits before GPUs are booked, and no
    measurement has to repeat it. Ends with 5 where no split passes at any rate.
    """
    from dynamo_mlperf.errors import ConfigError, ExitCode, SetupError
    from dynamo_mlperf.topology.spec import load_topology

    if (file is None) == (calibrate is None):
        raise ConfigError("wanted either a topology FILE or --calibrate POINTS", "dynamo-mlperf rehearse FILE --all")
    _check_combination(options, calibrate=calibrate, live=live)
    _check_outputs(options)
    if calibrate is not None:
        return _calibrate(calibrate, options)
    topology = load_topology(file) if file else None
    if file is None or topology is None:
        raise AssertionError(file)
    if live:
        from dynamo_mlperf.cli.rehearse_live import rehearse_live

        return rehearse_live(file, topology, _stage(topology, options), _given(options["calibration"]), options)
    prediction = _rehearse(topology, options)
    try:
        _write(prediction, options)
    except SetupError:  # what took minutes is not lost with it
        if not options["as_json"]:
            _show(prediction, as_json=False)
        raise
    _show(prediction, as_json=options["as_json"])
    return int(ExitCode.DONE if prediction.best else ExitCode.INVALID)


def _check_combination(options: dict[str, Any], *, calibrate: Path | None, live: bool) -> None:
    from dynamo_mlperf.errors import ConfigError

    offline = {"--splits": options["splits"], "--all": options["every"], "--svg": options["svg"]}
    offline["--seed"] = options["seed"]
    only_live = {"--run-dir": options["run_dir"], "--qps": options["qps"], "--only-write": options["only_write"]}
    wrong = [name for name, given in (offline if live or calibrate else {}).items() if given]
    wrong += [name for name, given in ({} if live else only_live).items() if given]
    wrong += ["--live"] if live and calibrate else []
    wrong += ["--out"] if live and options["out"] else []
    wrong += ["--calibration"] if calibrate and options["calibration"] else []
    if options["splits"] and options["every"]:
        wrong = ["--splits"]
    if wrong:
        mode = "--calibrate" if calibrate else ("--live" if live else "--all" if options["every"] else "a rehearsal")
        raise ConfigError(f"{wrong[0]} does not go with {mode}", f"leave {wrong[0]} out")


def _stage(topology: Topology | None, options: dict[str, Any]) -> Stage:
    from dynamo_mlperf.job.rehearsal import Stage
    from dynamo_mlperf.process.signals import StopFlag
    from dynamo_mlperf.site import load_site
    from dynamo_mlperf.tuning.simulation import usable_programs

    stop = StopFlag()
    stop.install()
    site = load_site(options["site"] or (topology.site if topology else None), base=Path.cwd())
    chosen = _profiles(options["profiles"])
    own = _own_lengths(options)
    return Stage(Path.cwd(), site.engine_python, usable_programs(), _tell, chosen, stop.check, options["seed"], own)


def _own_lengths(options: dict[str, Any]) -> OwnLengths:
    from dynamo_mlperf.tuning.own_lengths import OwnLengths, token_lengths

    given = (("--prompt-tokens", options["prompt_tokens"]), ("--answer-tokens", options["answer_tokens"]))
    return OwnLengths(*(token_lengths(option, text) if text is not None else None for option, text in given))


def _profiles(given: tuple[str, ...]) -> dict[str, str]:
    """Profile by role.

    Raises:
        ConfigError: A role that there is not, or one that is named twice.
    """
    from dynamo_mlperf.errors import ConfigError
    from dynamo_mlperf.topology.spec import ROLE_NAMES

    found: dict[str, str] = {}
    for text in given:
        role, named, profile = text.partition("=")
        roles: tuple[str, ...] = (role,) if named else tuple(ROLE_NAMES)
        if named and role not in ROLE_NAMES:
            raise ConfigError(f"--profile {text[:60]}: no role {role[:20]!r}", f"one of {', '.join(ROLE_NAMES)}")
        if any(each in found for each in roles):
            raise ConfigError(f"--profile {text[:60]}: its role has a profile already", "name each role once")
        found |= dict.fromkeys(roles, profile if named else text)
    return found


def _rehearse(topology: Topology, options: dict[str, Any]) -> Prediction:
    from dynamo_mlperf.job.rehearsal import rehearse
    from dynamo_mlperf.topology.role_splits import all_splits, own_split, parse_split

    if options["every"] and topology.disaggregated:
        splits = list(all_splits(topology))
    elif options["splits"]:
        named = dict.fromkeys(text.strip() for text in options["splits"].split(","))
        splits = [parse_split(text, topology) for text in named]
    else:
        splits = [own_split(topology)]
    given = _given(options["calibration"])
    return rehearse(topology, splits, _stage(topology, options), given, calibrated=options["calibration"] != "none")


def _check_outputs(options: dict[str, Any]) -> None:
    from dynamo_mlperf.cli.output import check_output

    for option, key, example in (("--out", "out", _JSON_NAME), ("--svg", "svg", _SVG_NAME)):
        if options[key]:
            check_output(option, options[key], example)


def _write(prediction: Prediction, options: dict[str, Any]) -> None:
    from dynamo_mlperf.cli.output import write_output
    from dynamo_mlperf.report.predicted import as_svg

    if options["out"]:
        _write_json(options["out"], prediction.as_json())
    if options["svg"]:
        write_output("--svg", options["svg"], as_svg(prediction), _SVG_NAME)
        _tell(f"{options['svg']}: written")


def _given(calibration: str | None) -> Calibration | None:
    from dynamo_mlperf.tuning.calibration import read_calibration

    return None if calibration in {None, "none"} else read_calibration(Path(str(calibration)))


def _write_json(path: Path, value: dict[str, Any]) -> None:
    import json

    from dynamo_mlperf.cli.output import write_output

    write_output("--out", path, json.dumps(value, indent=2) + "\n", _JSON_NAME)
    _tell(f"{path}: written")


def _calibrate(path: Path, options: dict[str, Any]) -> int:
    import json

    from dynamo_mlperf.job.rehearsal import calibrate
    from dynamo_mlperf.tuning.calibration import read_points

    found, compared = calibrate(read_points(path), _stage(None, options))
    value = found.as_json()
    if options["out"]:
        _write_json(options["out"], value)
    if options["as_json"]:
        click.echo(json.dumps({**value, "class": "rehearsal", "points": [_point(each) for each in compared]}))
        return 0
    _show_compared(compared)
    factors = found.factors
    click.echo(f"prefill x {factors.prefill}, ITL x {factors.itl}, overhead {factors.overhead_ms} ms; "
               f"{100 * found.rms:.1f} % of the latencies fitted to is left")  # fmt: skip
    return 0


def _point(compared: Compared) -> dict[str, Any]:
    point, predicted = compared.point, compared.predicted
    return {
        "name": point.name,
        "published_qps": point.qps,
        "at_least": point.at_least,
        "fitted": point.fit,
        "rehearsed_qps": predicted.rate_qps,
        "binding": predicted.binding,
        "bottleneck": predicted.bottleneck,
        "error_percent": None if compared.error is None else round(100 * compared.error, 1),
        "latency_percent_of_limit": None if compared.latency is None else round(100 * compared.latency, 1),
    }


def _show_compared(compared: list[Compared]) -> None:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("point")
    for title in ("published", "rehearsed", "error", "latency"):
        table.add_column(title, justify="right")
    table.add_column("bottleneck")
    for each in compared:
        published = f"{'>= ' if each.point.at_least else ''}{each.point.qps:.2f}"
        rate = "none passes" if each.predicted.rate_qps is None else f"{each.predicted.rate_qps:.2f}"
        error = "" if each.error is None else f"{100 * each.error:+.1f} %"
        if not error and each.predicted.rate_qps is not None:
            error = "above"
        name = f"{each.point.name}{' (fitted to)' if each.point.fit else ''}"
        latency = "-" if each.latency is None else f"{100 * each.latency:.0f} %"
        table.add_row(name, published, rate, error, latency, each.predicted.bottleneck or "-")
    _print(table)
    click.echo("latency: the judged one, rehearsed at the published rate, as a share of its limit; above: the floor")


def _show(prediction: Prediction, *, as_json: bool) -> None:
    import json

    from dynamo_mlperf.report.predicted import basis, splits_table, too_close

    if as_json:
        click.echo(json.dumps(prediction.as_json()))
        return
    click.echo(f"{prediction.name}: {prediction.benchmark} {prediction.scenario}, rehearsed (simulated engines)")
    _print(splits_table(prediction))
    for line in (*too_close(prediction), basis(prediction), *prediction.notes):
        click.echo(f"note: {line}")


def _print(table: object) -> None:
    from rich.console import Console

    from dynamo_mlperf.report.terminal import trimmed

    console = Console(highlight=False)
    with trimmed(console):
        console.print(table)


def _tell(line: str) -> None:
    click.echo(line, err=True)
