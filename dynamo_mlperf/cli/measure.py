"""`measure`: one test against any endpoint that is up already, recorded and judged as in a job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dynamo_mlperf.cli.numbers import FiniteRange

if TYPE_CHECKING:
    from dynamo_mlperf.benchmark.rules import Reduction
    from dynamo_mlperf.job.endpoint_run import EndpointTest
    from dynamo_mlperf.load.settings import LoadSettings
    from dynamo_mlperf.record import ResultClass
    from dynamo_mlperf.topology.measuring import Timeouts

_REDUCED = {"min_duration_s": float, "samples": int, "percentile": float, "latency_limit_ms": float}
_MOST_QPS = 1e6
_MOST_WARM_UP = 100_000


@click.command(name="measure")
@click.argument("urls", nargs=-1, required=True, metavar="URL...")
@click.option("--model", required=True, help="Name that the endpoint serves the model under.")
@click.option("--topology", type=click.Path(dir_okay=False, path_type=Path), help="Take what follows from this file.")
@click.option("--benchmark", help="MLPerf benchmark, as `schema rules` names it.")
@click.option("--scenario", help="Offline, Server or Interactive.")
@click.option("--dataset", type=click.Path(path_type=Path), help="Directory of the data set.")
@click.option(
    "--target-qps",
    type=FiniteRange(min=0, min_open=True, max=_MOST_QPS),
    help="Queries per second that LoadGen issues (Offline: expects).",
)
@click.option(
    "--mode", type=click.Choice(["performance", "accuracy", "compliance"]), default="performance", show_default=True
)
@click.option("--test", "compliance_test", help="Compliance test, such as TEST06; left out where there is only one.")
@click.option(
    "--reduced",
    multiple=True,
    metavar="KEY=VALUE",
    help=f"Lower a rule ({', '.join(_REDUCED)}); the result's class is then reduced. Repeatable. Given once, none of "
    "the file's own reduced: block counts.",
)
@click.option("--rehearsal", is_flag=True, help="The endpoint simulates a model: the result's class is rehearsal.")
@click.option(
    "--tokenizer", type=click.Path(path_type=Path), help="The model's directory: TEST06 needs its end-of-text ids."
)
@click.option(
    "--request-timeout-s",
    type=FiniteRange(min=0.1, max=1e6),
    help="Seconds until a request counts as failed. [default: the file's, else 600]",
)
@click.option(
    "--client",
    type=click.Choice(["loadgen", "endpoints"]),
    help="Load client, of a performance test. [default: the file's, else loadgen]",
)
@click.option(
    "--endpoints-python", metavar="PYTHON", help="Python that has MLCommons endpoints. [default: the site file's]"
)
@click.option(
    "--warmup-requests",
    type=click.IntRange(min=0, max=_MOST_WARM_UP),
    help="Requests sent before the timed test, after a canary to each URL; 0 leaves the warm-up out. "
    "[default: the file's, else 8]",
)
@click.option("--with-accuracy", is_flag=True, help="With --client endpoints: run its accuracy phase, too.")
@click.option("--run-dir", type=click.Path(path_type=Path), help="Where to record the run. [default: runs/ID]")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict or result as one JSON object.")
def command(*, as_json: bool, **options: Any) -> int:  # noqa: ANN401 - click's values
    """Measure the OpenAI-compatible endpoint at URL (several are used in turn): one test, without a deployment.

    A canary to each URL and a warm-up come before the timed test. An accuracy or compliance test is put into the run
    directory of its performance test where --run-dir names that; it has to be given the same values. Ends with 0 for
    VALID, 5 for INVALID, 4 for FAILED.
    """
    from dynamo_mlperf.cli.launch import verdict_line
    from dynamo_mlperf.cli.output import flush_stdout, json_text, quiet_stdout
    from dynamo_mlperf.cli.progress import TerminalProgress
    from dynamo_mlperf.job.endpoint_run import measure_endpoint
    from dynamo_mlperf.record import Verdict

    test = _test(options)
    progress = TerminalProgress()
    try:
        result, code = measure_endpoint(test, progress)
    finally:
        progress.close()
    try:
        line = verdict_line(result) if isinstance(result, Verdict) else result.line()
        click.echo(json_text(result.as_json()) if as_json else line)
        flush_stdout()
    except BrokenPipeError:  # the reader has seen enough; the exit code still tells how the test ended
        quiet_stdout()
    if result.verdict == "FAILED":
        for reason in result.reasons:
            click.echo(f"error: {reason.got}\n  Try: {reason.action}", err=True)
    return int(code)


def _test(options: dict[str, Any]) -> EndpointTest:
    """What is asked for, whole and checked."""
    from dynamo_mlperf.job.context import local_run_id, new_nonce
    from dynamo_mlperf.job.endpoint import endpoint_of
    from dynamo_mlperf.job.endpoint_run import EndpointTest
    from dynamo_mlperf.job.expected import refuse_too_few
    from dynamo_mlperf.load.wheel import check_wheel

    endpoint = endpoint_of(options["urls"], options["model"])
    settings, data_set, result_class = _asked(options)
    if options["client"] != "endpoints":
        check_wheel(settings.round_name)
    name = _name(options, settings)
    given_class = "rehearsal" if options["rehearsal"] else result_class
    endpoints_python = _endpoints(options, settings, name)
    if name == "performance":
        client = "loadgen" if endpoints_python is None else "endpoints"
        if (few := refuse_too_few(settings, client, given_class)) is not None:
            click.echo(f"warning: {few}", err=True)
    run_id = local_run_id(f"measure-{settings.benchmark}-{settings.scenario}".lower(), new_nonce())
    run_dir = options["run_dir"] or Path.cwd() / "runs" / run_id
    tokenizer, given, timeouts = options["tokenizer"], options["warmup_requests"], _timeouts(options)
    return EndpointTest(
        endpoint=endpoint,
        name=name,
        settings=settings,
        data_set=data_set.resolve(),
        result_class=given_class,
        run_dir=run_dir.resolve(),
        warmup_requests=timeouts.warmup_requests if given is None else given,
        scoring_s=timeouts.scoring_s,
        tokenizer=None if tokenizer is None else tokenizer.resolve(),
        endpoints_python=endpoints_python,
        with_accuracy=options["with_accuracy"],
    )


def _timeouts(options: dict[str, Any]) -> Timeouts:
    """Those of the file, else as a file has them by default."""
    from dynamo_mlperf.topology.measuring import Timeouts
    from dynamo_mlperf.topology.spec import load_topology

    return Timeouts() if options["topology"] is None else load_topology(options["topology"]).timeouts


def _endpoints(options: dict[str, Any], settings: LoadSettings, name: str) -> str | None:
    """Python of the environment with endpoints where that is the client; None where LoadGen is."""
    from dynamo_mlperf.benchmark.rules import benchmark
    from dynamo_mlperf.errors import ConfigError
    from dynamo_mlperf.load.endpoints_config import check_settings
    from dynamo_mlperf.load.endpoints_program import python_of
    from dynamo_mlperf.site import load_site
    from dynamo_mlperf.topology.measuring import NOT_SCORED_BY_ENDPOINTS, SCORED_BY_ENDPOINTS
    from dynamo_mlperf.topology.spec import load_topology

    file = None if options["topology"] is None else load_topology(options["topology"])
    client = options["client"] or ("loadgen" if file is None else file.measure.client)
    if client == "loadgen":
        if options["with_accuracy"]:
            raise ConfigError("--with-accuracy is for --client endpoints", "run --mode accuracy after this test")
        return None
    if name != "performance":
        raise ConfigError(f"--mode {options['mode']} is LoadGen's", "with endpoints: --with-accuracy in the same run")
    clients = benchmark(settings.benchmark, settings.round_name).clients
    if client not in clients:
        raise ConfigError(f"{settings.benchmark} is not measured with endpoints", "--client loadgen")
    if options["with_accuracy"] and settings.benchmark not in SCORED_BY_ENDPOINTS:
        raise ConfigError(
            f"endpoints by itself cannot score the accuracy of {settings.benchmark}: "
            f"{NOT_SCORED_BY_ENDPOINTS[settings.benchmark]}",
            "--client loadgen, for the performance test too: a submission has one client",
        )
    check_settings(settings)
    site = load_site(file.site if file is not None else None)
    return python_of(options["endpoints_python"] or site.endpoints_python, settings.round_name)


def _asked(options: dict[str, Any]) -> tuple[LoadSettings, Path, ResultClass]:
    """Settings, data set and class: from the flags, and where they say nothing, from the file."""
    from dynamo_mlperf.benchmark.rules import ROUND, benchmark
    from dynamo_mlperf.errors import ConfigError
    from dynamo_mlperf.job.workload import load_samples
    from dynamo_mlperf.load.given_conf import with_user_conf
    from dynamo_mlperf.load.settings import DEFAULT_REQUEST_TIMEOUT_S, TooFewSamplesError, build_settings
    from dynamo_mlperf.topology.spec import load_topology

    file = None if options["topology"] is None else load_topology(options["topology"])
    measure = file.measure if file is not None else None
    given = {
        name: options[name] if options[name] is not None or measure is None else getattr(measure, name)
        for name in ("benchmark", "scenario", "target_qps", "dataset")
    }
    missing = [f"--{name.replace('_', '-')}" for name, value in given.items() if value is None]
    if missing:
        raise ConfigError(f"not given: {', '.join(missing)}", "give them, or a file that says them (--topology)")
    data_set = Path(given["dataset"]).absolute()
    reduction = _reduction(options["reduced"])
    if reduction is None and file is not None and file.reduced is not None:
        reduction = file.reduced.reduction()
    rules = benchmark(given["benchmark"], measure.round if measure is not None else ROUND)
    timeout_s = file.timeouts.request_s if file is not None else DEFAULT_REQUEST_TIMEOUT_S
    try:
        settings = build_settings(
            rules,
            given["scenario"],
            given["target_qps"],
            len(load_samples(rules.name, data_set)),
            reduction,
            request_timeout_s=options["request_timeout_s"] or timeout_s,
            round_name=measure.round if measure is not None else ROUND,
        )
    except TooFewSamplesError as problem:
        flag = f"--reduced samples={problem.have} (the result's class is then reduced)"
        raise ConfigError(problem.what, f"stage the full data set, or add {flag}") from None
    if measure is not None and measure.user_conf is not None:
        settings = with_user_conf(settings, Path(measure.user_conf).absolute())
    simulated = file is not None and file.engine == "mocker"
    return settings, data_set, "rehearsal" if simulated else "reduced" if settings.reduced else "official"


def _name(options: dict[str, Any], settings: LoadSettings) -> str:
    """The test by its name: `performance`, `accuracy` or a compliance test."""
    from dynamo_mlperf.benchmark.rules import benchmark
    from dynamo_mlperf.errors import ConfigError

    mode, name = options["mode"], options["compliance_test"]
    if mode != "compliance":
        if name is not None:
            raise ConfigError(f"--test {name} is for compliance tests, and --mode is {mode}", "--mode compliance")
        return str(mode)
    tests = benchmark(settings.benchmark, settings.round_name).compliance_tests
    if not tests:
        raise ConfigError(
            f"{settings.benchmark} has no compliance test in round {settings.round_name}", "none is needed"
        )
    if name is None and len(tests) > 1:
        raise ConfigError(
            f"{settings.benchmark} has {len(tests)} compliance tests", f"--test {tests[0]} (or {tests[1]})"
        )
    return str(name or tests[0])


def _reduction(given: tuple[str, ...]) -> Reduction | None:
    """The `reduced:` block as flags."""
    import math

    from dynamo_mlperf.benchmark.rules import Reduction
    from dynamo_mlperf.errors import ConfigError

    values: dict[str, Any] = {}
    for entry in given:
        key, _, text = entry.partition("=")
        if key not in _REDUCED or key in values:
            why = "is given twice" if key in values else "is no rule that can be lowered"
            raise ConfigError(f"--reduced {entry}: {key} {why}", f"there are {', '.join(_REDUCED)}")
        try:
            values[key] = _REDUCED[key](text)
        except ValueError as error:
            raise ConfigError(f"--reduced {entry}: {text!r} is no number", f"--reduced {key}=1") from error
        if not math.isfinite(values[key]):
            raise ConfigError(f"--reduced {entry}: no finite number", f"--reduced {key}=1")
    return Reduction(**values) if values else None
