"""Whether runs may become a submission: every reason why not, each with the run and the remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynamo_mlperf import __version__
from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.process.checkout import own_commit
from dynamo_mlperf.submission.consistency import runs_of, shared_findings
from dynamo_mlperf.submission.finding import Finding
from dynamo_mlperf.submission.gate import scenario_findings
from dynamo_mlperf.submission.performance import class_of, client_findings, failure_findings, judge_performance
from dynamo_mlperf.submission.proofs import accuracy_findings, compliance_findings
from dynamo_mlperf.submission.records import PERFORMANCE
from dynamo_mlperf.submission.rescoring import score_again
from dynamo_mlperf.submission.scenario import Judged
from dynamo_mlperf.submission.truth_at_hand import SCORED, check_named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dynamo_mlperf.benchmark.rounds import Round
    from dynamo_mlperf.benchmark.shapes import Benchmark
    from dynamo_mlperf.record import Verdict
    from dynamo_mlperf.submission.description import System
    from dynamo_mlperf.submission.records import Run
    from dynamo_mlperf.submission.results import Result
    from dynamo_mlperf.submission.truth_at_hand import Rescoring


def admit(
    results: Sequence[Result],
    system: System,
    rules_round: Round,
    say: Callable[[str], None],
    how: Rescoring,
    *,
    rehearsal: bool,
) -> tuple[list[Judged], list[Finding]]:
    """The results, judged anew, and every reason why they cannot be packaged together.

    Args:
        results: As the run directories hold them.
        system: The site's description.
        rules_round: The round of the submission.
        say: Told what is being looked at.
        how: How scores are made again.
        rehearsal: Whether the runs are meant to be rehearsals.

    Raises:
        NamedDataSetError: A data set that the caller named cannot be used.
    """
    check_named([record for result in results for record in result.tests.values()], how)
    judged, findings = _judge_all(results, rules_round, say, how)
    runs = runs_of(results)
    findings += [
        *_classes(results, judged, rehearsal=rehearsal),
        *_complete(results),
        *shared_findings(results, rehearsal=rehearsal),
        *_own_code(runs, rehearsal=rehearsal),
        *_described(system, results, runs),
    ]
    return judged, findings


def _judge_all(
    results: Sequence[Result], rules_round: Round, say: Callable[[str], None], how: Rescoring
) -> tuple[list[Judged], list[Finding]]:
    """Every result judged anew; those that passed, and why the others did not."""
    judged: list[Judged] = []
    findings: list[Finding] = []
    for number, result in enumerate(results, start=1):
        say(f"judging {number} of {len(results)}: {result.name}")
        rules = rules_round.benchmarks.get(result.benchmark)
        if rules is None or result.scenario not in rules.scenarios:
            known = ", ".join(rules_round.benchmarks if rules is None else rules.scenarios)
            what = "benchmark" if rules is None else "scenario"
            got = result.benchmark if rules is None else result.scenario
            findings.append(Finding(result.where, what, known, got, "leave this run out"))
            continue
        verdict: Verdict | None = None
        if result.performance is None:
            action = "run the same file without --mode, and name that run too"
            findings.append(Finding(result.where, f"{result.name} performance", "a performance test", "none", action))
        else:
            verdict, more = judge_performance(result.performance)
            findings += more
        wrong = [*accuracy_findings(result, rules), *compliance_findings(result, rules)]
        # Answers that are not the test's own are not worth scoring.
        said, more = ({}, []) if wrong else _score_again(result, rules, how, say)
        findings += [*wrong, *more]
        if verdict is not None:
            judged.append(Judged(result, rules, verdict, said))
    return judged, findings


def _score_again(
    result: Result, rules: Benchmark, how: Rescoring, say: Callable[[str], None]
) -> tuple[dict[str, str], list[Finding]]:
    """What became of the scores of each test that has some, and what stands in the way."""
    said: dict[str, str] = {}
    findings: list[Finding] = []
    for name in (name for name in SCORED if name in result.tests):
        record = result.tests[name]
        again = score_again(record, rules, how)
        said[name] = again.said
        findings += again.findings
        say(f"{record.what}: {again.said}")
    return said, findings


def hopeless(results: Sequence[Result], *, rehearsal: bool) -> list[Finding]:
    """Why these runs are no submission by their own word, whatever the system is; none where they may be one."""
    wrong = list(_classes(results, (), rehearsal=rehearsal))
    if not wrong:
        return []
    measured = [result.performance for result in results if result.performance is not None]
    failed = [finding for record in measured for finding in failure_findings(record)]
    # Told now, lest the next run be of no use either.
    clients = [finding for record in measured for finding in client_findings(record)]
    return [*failed, *wrong, *clients, *_complete(results)]


def _classes(results: Sequence[Result], judged: Sequence[Judged], *, rehearsal: bool) -> Iterator[Finding]:
    """Official runs alone; for a rehearsal, rehearsed ones alone. Where none is judged yet, their own word counts."""
    wanted = "rehearsal" if rehearsal else "official"
    by_result = {entry.result.name: entry.verdict.result_class for entry in judged}
    for result in results:
        for name, record in result.tests.items():
            try:
                got = by_result.get(result.name) if name == PERFORMANCE and judged else class_of(record)
            except ConfigError as problem:
                yield Finding(record.run.name, record.what, f"class {wanted}", problem.what, problem.action)
                continue
            if got not in (wanted, None):
                action = _way_out(str(got), rehearsal=rehearsal)
                yield Finding(record.run.name, record.what, f"class {wanted}", str(got), action)


def _way_out(got: str, *, rehearsal: bool) -> str:
    if rehearsal and got == "reduced":
        return "rehearse it without a reduced: block (engine: mocker, or measure --rehearsal)"
    return {
        "rehearsal": "measure with real engines; to try the form of the tree: --rehearsal",
        "reduced": "take the reduced: block out of the file, and run again",
        "official": "leave --rehearsal out: these are measurements",
    }[got]


def _complete(results: Sequence[Result]) -> Iterator[Finding]:
    by_benchmark: dict[str, list[Result]] = {}
    for result in results:
        by_benchmark.setdefault(result.benchmark, []).append(result)
    for benchmark, entries in by_benchmark.items():
        where = f"{entries[0].where} ({benchmark})"
        yield from scenario_findings(where, [entry.scenario for entry in entries])


def _own_code(runs: Sequence[Run], *, rehearsal: bool) -> list[Finding]:
    """The sources that go into the tree are those that made the runs."""
    made, mine = (str(runs[0].versions.get("dynamo_mlperf")), runs[0].commit), (__version__, own_commit())
    if rehearsal or made == mine:
        return []
    wanted, got = (f"{version} {commit}".strip() for version, commit in (made, mine))
    action = f"git checkout {made[1] or 'the version that ran'}, make setup, and package with that"
    return [Finding(runs[0].name, "sources of dynamo_mlperf", f"{wanted}, which made the run", got, action)]


def _described(system: System, results: Sequence[Result], runs: Sequence[Run]) -> Iterator[Finding]:
    for benchmark in sorted({result.benchmark for result in results} - system.measurements.keys()):
        action = f"write measurements: {{{benchmark}: ...}} with its five keys"
        yield Finding(system.name, f"measurements.{benchmark}", "its five keys", "nothing", action)
    for run in runs:
        if not run.topology and not system.serving:
            action = "write serving: how the endpoint was served, so that others can"
            yield Finding(system.name, f"serving ({run.name})", "how it was served", "nothing", action)
