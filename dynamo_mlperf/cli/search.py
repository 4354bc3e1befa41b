"""`search`: the highest rate that holds, with a topology's own deployment or an external program as the probe."""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from dynamo_mlperf.cli.call import Call

if TYPE_CHECKING:
    from dynamo_mlperf.errors import ExitCode
    from dynamo_mlperf.tuning.probes import Answer, NoAnswer, SearchSettings

_POSITIVE = click.FloatRange(min=0, min_open=True)
_MOST = {"low": 1e6, "high": 1e6, "start": 1e6, "tolerance": 0.2, "duration_s": 1e7, "percentile": 99.999}
_MOST |= {"min_queries": 1e9, "time_budget_s": 1e9}
_FREE = ("time_budget_s", "overhead_s")
"""Settings that may differ when a search is resumed."""
_OF_FILE = ("run_dir", "site", "nodes", "resume", "redo", "attach", "prediction", "rest_s")
_OF_COMMAND = ("scenario", "duration_s", "percentile", "min_queries", "stall_s", "record_dir", "rule")
_BLOCK = ("low", "high", "start", "tolerance", "time_budget_s", "prediction", "rest_s")
"""Options that are keys of the file's `search:` block too."""
_GOES_ON = "the same command again: it goes on with the probes in its --record-dir"
_NOT_KEPT = "begin with --record-dir DIR: there the same command goes on with its probes; of this one nothing is kept"


@click.command(name="search")
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--probe-command",
    help="Program that makes the probes, instead of FILE: called with --target-qps X --duration-s S, it prints JSON "
    "lines to stdout. Split like a shell's words, never run by a shell.",
)
@click.option("--low", type=_POSITIVE, help="Lowest target_qps to probe.")
@click.option("--high", type=_POSITIVE, help="Highest target_qps to probe.")
@click.option("--start", type=_POSITIVE, help="A prediction of the answer.")
@click.option(
    "--tolerance",
    type=click.FloatRange(0.001, 0.2),
    default=0.01,
    show_default=True,
    help="How closely rates are placed, as a share: no promise, the answer says how far above it the highest rate may "
    "be; a smaller one costs more runs.",
)
@click.option("--time-budget-s", type=_POSITIVE, help="Time for the whole search, in s, its confirmation included.")
@click.option("--run-dir", type=click.Path(path_type=Path), help="FILE: where to record the run. [default: runs/ID]")
@click.option("--site", help="FILE: site file or name. [default: the file's, else $DYNAMO_MLPERF_SITE]")
@click.option("--nodes", type=int, help="FILE: another node count than the file's; workers scale in proportion.")
@click.option("--resume", metavar="RUN", help="FILE: go on with the search of an interrupted run, in a new one.")
@click.option("--redo", is_flag=True, help="FILE: with --resume, an answer found with other settings is sought again.")
@click.option("--attach", metavar="JOBID|RUN", help="FILE: in this live Slurm job instead, or on RUN's held engines.")
@click.option("--prediction", type=click.Path(), help="FILE: a prediction.json of a rehearsal, instead of --start.")
@click.option("--rest-s", type=_POSITIVE, help="FILE: time for the engines to come to rest between probes, in s.")
@click.option(
    "--scenario",
    type=click.Choice(["Server", "Interactive", "Offline"]),
    default="Server",
    show_default=True,
    help="Command: MLPerf scenario.",
)
@click.option(
    "--duration-s", type=_POSITIVE, default=600.0, show_default=True, help="Command: length of a full run, in s."
)
@click.option(
    "--percentile",
    type=click.FloatRange(50, 100, max_open=True),
    default=99.0,
    show_default=True,
    help="Command: percentage of queries that must be within each limit.",
)
@click.option("--min-queries", type=click.IntRange(min=0), default=0, help="Command: fewest queries of a full run.")
@click.option(
    "--rule",
    type=click.Choice(["loadgen", "endpoints"]),
    default="loadgen",
    show_default=True,
    help="Command: whose early-stopping rule decides; endpoints allows one query fewer over a limit.",
)
@click.option(
    "--stall-s",
    type=_POSITIVE,
    help="Command: a probe without a new line for this long has hung; default: 45 to 150.",
)
@click.option(
    "--record-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Command: keeps each probe; the same command resumes there. Default: a temporary directory.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@click.pass_context
def command(
    context: click.Context,
    /,
    *,
    file: Path | None,
    probe_command: str | None,
    as_json: bool,
    **options: Any,  # noqa: ANN401 - click's values
) -> int:
    """Find the highest target_qps at which a full-length run is VALID, and confirm it by one.

    With FILE the topology is served on this machine, as `run FILE` does, and searched with real runs; its `search:`
    block holds the same options, and `sbatch FILE` or `submit FILE` searches in a Slurm job. A FILE with `sweep:` is
    swept, each split searched. With --probe-command any program is the probe. The answer is chosen to pass again with
    probability 0.9 and is confirmed by a full-length VALID run, which is the result; no further full run is spent on
    what a few tolerances more would gain, and the answer says by how much the highest rate may be above it. Exit code 5
    when there is none, with the reason; 4 when a probe does not measure.
    """
    from dynamo_mlperf.errors import ConfigError

    if (file is None) == (probe_command is None):
        raise ConfigError("search wants a topology FILE or --probe-command, one of the two", "name one")
    given = {name for name in options if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    foreign = sorted(given & set(_OF_COMMAND if file is not None else _OF_FILE))
    if foreign:
        mode = "FILE" if file is not None else "--probe-command"
        resuming = "repeat the same command with the --record-dir of then: it goes on with its probes"
        action = resuming if foreign == ["resume"] else "leave it out"
        raise ConfigError(f"--{foreign[0].replace('_', '-')} does not go with {mode}", action)
    if file is not None:
        block = {name: options[name] for name in _BLOCK if name in given}
        for name, other in (("start", "prediction"), ("prediction", "start")):
            if name in block and other not in block:
                block[other] = None  # the one that is named here counts, not the file's other one
        return _search_file(file, block, options, as_json=as_json)
    kept = {name: value for name, value in options.items() if name not in _OF_FILE}
    return _search_command(probe_command or "", kept, as_json=as_json)


def _search_file(file: Path, block: dict[str, object], options: dict[str, Any], *, as_json: bool) -> int:
    """Serve the file's topology here, and search."""
    from dynamo_mlperf.cli.run import run_here

    call = Call(
        file=file,
        site=options["site"],
        run_dir=options["run_dir"],
        nodes=options["nodes"],
        resume=options["resume"],
        redo=options["redo"],
        blocks={"search": block},
        as_json=as_json,
    )
    return run_here(call, options["attach"])


def _search_command(probe_command: str, options: dict[str, Any], *, as_json: bool) -> int:
    """Search with an external program."""
    from dynamo_mlperf.errors import ConfigError, Stopped
    from dynamo_mlperf.process.secret_words import redacted_words
    from dynamo_mlperf.process.signals import StopFlag
    from dynamo_mlperf.tuning.conduct import Conduct, answer_json, exit_code
    from dynamo_mlperf.tuning.probe_command import ProbeCommand
    from dynamo_mlperf.tuning.records import RecordDirectory

    argv = _split(probe_command)
    stall_s, scenario, record_dir = options.pop("stall_s"), options.pop("scenario"), options.pop("record_dir")
    if stall_s is not None and not stall_s <= _MOST["duration_s"]:  # NaN is not
        raise ConfigError(f"--stall-s is {stall_s:g}", f"give at most {_MOST['duration_s']:g}")
    settings = _settings(options)
    stop = StopFlag()
    stop.install()
    with ExitStack() as stack:
        root = record_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dynamo-mlperf-search-")))
        kept = {key: value for key, value in asdict(settings).items() if key not in _FREE}
        records = RecordDirectory(root, {"command": redacted_words(argv), "scenario": scenario, **kept})
        stack.callback(records.close)
        offline = scenario == "Offline"
        conduct = Conduct(settings, offline, ProbeCommand(argv, stop, stall_s, offline), records, stop.check, _tell)
        try:
            step, history = conduct.search()
        except Stopped as stopped:
            stopped.action = _GOES_ON if record_dir else _NOT_KEPT
            raise
        answer = answer_json(step, history, settings, offline=offline)
        records.keep_answer(answer)
    _print(step, answer, as_json=as_json)
    code: ExitCode = exit_code(step)
    return int(code)


def _split(text: str) -> tuple[str, ...]:
    """The words of the probe command; its program must exist."""
    from dynamo_mlperf.errors import ConfigError

    try:
        argv = tuple(shlex.split(text))
    except ValueError as problem:
        raise ConfigError(f"--probe-command {text!r} cannot be split: {problem}", "close its quotes") from problem
    if shutil.which(argv[0]) is None:
        raise ConfigError(
            f"--probe-command: {argv[0]} is no program on PATH", "give its path, and make it executable (chmod +x)"
        )
    return argv


def _settings(options: dict[str, Any]) -> SearchSettings:
    """The settings, checked against each other."""
    from dynamo_mlperf.errors import ConfigError
    from dynamo_mlperf.tuning.probes import SearchSettings

    for name, most in _MOST.items():
        if options[name] is not None and not options[name] <= most:  # NaN is not
            raise ConfigError(f"--{name.replace('_', '-')} is {options[name]:g}", f"give at most {most:g}")
    percentile = options.pop("percentile") / 100.0
    settings = SearchSettings(percentile=percentile, **options)
    low, high, start = settings.low, settings.high, settings.start
    if high is not None and high < settings.floor_qps:
        raise ConfigError(
            f"--high {high:g} is below {settings.floor_qps:.4g}: a run of {settings.duration_s:g} s at less holds "
            f"fewer than the {settings.needed_queries} queries that it needs",
            "raise --high or --duration-s",
        )
    if low is not None and high is not None and low >= high:
        raise ConfigError(f"--low {low:g} is not below --high {high:g}", "swap them")
    if start is not None and not (low or 0.0) <= start <= (high or start):
        raise ConfigError(f"--start {start:g} is outside --low and --high", "leave --start or widen the range")
    return settings


def _tell(line: str) -> None:
    from dynamo_mlperf.cli.progress import fitted

    fits = sys.stderr.isatty()
    click.echo(fitted(line, shutil.get_terminal_size().columns) if fits else line, err=True)


def _print(step: Answer | NoAnswer, answer: dict[str, Any], *, as_json: bool) -> None:
    """The answer on stdout; why there is none on stderr."""
    from dynamo_mlperf.cli.output import json_text

    if as_json:
        click.echo(json_text(answer))
    if answer["answer_qps"] is None:
        click.echo(f"error: no answer ({answer['kind']}): {step.reason}\n  Try: {answer['action']}", err=True)
        return
    cost = answer["engine_seconds"] / answer["full_run_s"]
    click.echo(f"{step.reason}; {len(answer['probes'])} probes, {cost:.2f} full runs of engine time", err=True)
    if not as_json:
        click.echo(f"{answer['answer_qps']:.5g}")
