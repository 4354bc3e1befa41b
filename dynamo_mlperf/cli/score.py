"""`dynamo-mlperf score`: what the answers of an accuracy log are worth, against the floors of the rules."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dynamo_mlperf.errors import ConfigError, ExitCode
from dynamo_mlperf.files import MOST_TOPOLOGY_BYTES, read_text

if TYPE_CHECKING:
    from dynamo_mlperf.benchmark.accuracy.scores import Scores, Shortfall
    from dynamo_mlperf.benchmark.shapes import Benchmark

_TOKEN_BYTES = (4, 8)


@dataclass(frozen=True)
class _What:
    """What is scored; None where nobody has said it yet."""

    log: Path
    benchmark: str | None = None
    scenario: str | None = None
    round_name: str | None = None
    data_set: Path | None = None


@click.command("score", short_help="Score the answers of an accuracy log against the floors of the rules.")
@click.argument("place", metavar="RUN|DIR|LOG")
@click.option(
    "--data-set",
    type=click.Path(path_type=Path),
    help="Directory of the data set, with its truth; left out, what the run's topology names.",
)
@click.option("--benchmark", help="Benchmark, as `schema rules` names it; left out, found from settings or path.")
@click.option("--scenario", help="Offline, Server or Interactive; left out, found from settings or path.")
@click.option("--round", "round_name", help="Round whose floors apply, such as v6.0; left out, the run's or current.")
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    help="The model's tokenizer.json, where the log holds token ids; left out, the log holds text.",
)
@click.option(
    "--token-bytes", type=int, default=_TOKEN_BYTES[0], show_default=True, help="Bytes of a token id: 4 or 8."
)
@click.option("--no-code", is_flag=True, help="Do not run the code that the model wrote; exact_match is then missing.")
@click.option("--workers", type=click.IntRange(0, 1024), default=0, help="Processes to score with; default: the cores.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File for accuracy.txt, as the checker wants it.")
@click.option("--json", "as_json", is_flag=True, help="Print scores, floors and verdict as JSON.")
def command(
    place: str,
    *,
    data_set: Path | None,
    benchmark: str | None,
    scenario: str | None,
    round_name: str | None,
    tokenizer: Path | None,
    token_bytes: int,
    no_code: bool,
    workers: int,
    output: Path | None,
    as_json: bool,
) -> int:
    """Score mlperf_log_accuracy.json of a run, of a directory, or the file itself.

    The log has to be whole, with one answer to each sample of the data set. Code that a model wrote is run in confined
    processes. The exit code is 0 where every floor (and bound of tokens per sample) is met, 5 where one is not, and 4
    where the log cannot be scored.
    """
    from dynamo_mlperf.benchmark.accuracy.scoring import score_accuracy_log
    from dynamo_mlperf.benchmark.rules import ROUND
    from dynamo_mlperf.benchmark.rules import benchmark as rules_of
    from dynamo_mlperf.cli.bar import bar
    from dynamo_mlperf.cli.output import write_output

    if token_bytes not in _TOKEN_BYTES:
        raise ConfigError(f"--token-bytes {token_bytes}", "write 4 or 8")
    found = _found(place)
    name = benchmark or found.benchmark
    if name is None:
        raise ConfigError(f"which benchmark {found.log} is of cannot be told", "name it: --benchmark")
    rules = rules_of(name, round_name or found.round_name or ROUND)
    floors_of = _scenario(rules, scenario or found.scenario)
    samples = data_set or found.data_set
    if samples is None:
        raise ConfigError(f"the data set of {found.log} is not known", "name its directory: --data-set DIR")
    with bar("score") as report:
        scores = score_accuracy_log(
            name,
            found.log,
            samples,
            tokenizer,
            token_bytes=token_bytes,
            run_code=not no_code,
            workers=workers,
            progress=report,
        )
    short = scores.shortfalls(rules, floors_of)
    if output is not None:
        write_output("-o", output, scores.text(), "accuracy.txt")
    click.echo(_as_json(scores, short, rules, floors_of) if as_json else _shown(scores, short, rules, floors_of))
    return ExitCode.INVALID if short else ExitCode.DONE


def _found(place: str) -> _What:
    """The log that `place` means, and what lies around it says about the test."""
    from dynamo_mlperf.benchmark.accuracy.answers import ACCURACY_LOG
    from dynamo_mlperf.cli.run_directory import run_directory
    from dynamo_mlperf.load.guess import from_path

    path = Path(place)
    if path.is_file():
        log = path
    else:
        root = path if "/" in place else run_directory(place)
        logs = [directory / ACCURACY_LOG for directory in (root, root / "accuracy", root / "loadgen")]
        log = next((candidate for candidate in logs if candidate.is_file()), logs[1])
    if not log.is_file():
        raise ConfigError(f"there is no {ACCURACY_LOG} in {place}", "name a directory of an accuracy test, or the log")
    by_path = from_path(log.parent)
    settings = _settings(log.parent) or _settings(log.parent.parent)
    return _What(
        log,
        settings.get("benchmark", by_path[0]),
        settings.get("scenario", by_path[1]),
        settings.get("round_name"),
        _data_set(log.parent.parent / "topology.yaml"),
    )


def _settings(directory: Path) -> dict[str, Any]:
    """What `measure.json` says of the test; empty where there is none of ours."""
    from dynamo_mlperf.load.directory import SPEC
    from dynamo_mlperf.load.spec import read_spec

    spec = directory / SPEC
    return read_spec(spec).settings.to_json() if spec.is_file() else {}


def _data_set(topology: Path) -> Path | None:
    """The data set that a run's topology names, where it is seen from here; gpt-oss-120b has one of its own inside."""
    import yaml

    from dynamo_mlperf.benchmark.accuracy.truth import TRUTH_FILE

    try:
        named = yaml.safe_load(read_text(topology, MOST_TOPOLOGY_BYTES))["measure"]["dataset"]
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        return None
    if not isinstance(named, str) or not Path(named).is_dir():
        return None
    inside = Path(named) / "accuracy"
    return inside if (inside / TRUTH_FILE).is_file() else Path(named)


def _scenario(rules: Benchmark, scenario: str | None) -> str:
    from dynamo_mlperf.benchmark.rules import check_scenario

    if scenario is not None:
        return check_scenario(scenario, rules)
    first, *others = rules.scenarios
    if any(rules.accuracy_floor[other] != rules.accuracy_floor[first] for other in others):
        raise ConfigError(f"the floors of {rules.name} differ by scenario", "name it: --scenario")
    return first


def _bounds(rules: Benchmark, scenario: str) -> dict[str, list[float | None]]:
    """Lowest and highest value of each metric; None where there is no such bound."""
    from dynamo_mlperf.benchmark.accuracy.scores import TOKENS_PER_SAMPLE

    bounds: dict[str, list[float | None]] = {
        name: [floor, None] for name, floor in rules.accuracy_floor[scenario].items()
    }
    if rules.tokens_per_sample != (None, None):
        bounds[TOKENS_PER_SAMPLE] = list(rules.tokens_per_sample)
    return bounds


def _as_json(scores: Scores, short: tuple[Shortfall, ...], rules: Benchmark, scenario: str) -> str:
    import json
    from dataclasses import asdict

    answer = {
        "verdict": "INVALID" if short else "VALID",
        "scenario": scenario,
        **scores.as_json(),
        "targets": _bounds(rules, scenario),
        "shortfalls": [asdict(one) for one in short],
    }
    return json.dumps(answer, indent=2)


def _shown(scores: Scores, short: tuple[Shortfall, ...], rules: Benchmark, scenario: str) -> str:
    from dynamo_mlperf.benchmark.accuracy.scores import plain_number

    lines = [f"{'INVALID' if short else 'VALID'}: {scores.benchmark} {scenario}, {scores.samples} answers"]
    for name, (lowest, highest) in _bounds(rules, scenario).items():
        value = plain_number(scores.metrics[name]) if name in scores.metrics else "not scored"
        bounds = [f">= {lowest:.10g}"] if lowest is not None else []
        bounds += [f"<= {highest:.10g}"] if highest is not None else []
        missed = any(one.metric == name for one in short)
        lines.append(f"  {name}: {value}, wanted {' and '.join(bounds)}{': not met' if missed else ''}")
    lines += [f"  not scored: {count} answers of {subset}" for subset, count in scores.not_scored.items()]
    for subset, counts in scores.details.get("subsets", {}).items():
        lines.append(
            f"  {subset}: {counts['right']} of {counts['asked']} right, {counts['without_answer']} without an answer"
        )
    if "unreadable_answers" in scores.details:
        lines.append(f"  {scores.details['unreadable_answers']} answers are not the wanted JSON")
    return "\n".join(lines)
