"""Whose test a directory holds, and its verdict from what lies there: ours, any LoadGen's, or endpoints'.

A run of ours is judged by the settings that were asked for (`measure.json`), its class and its engines' counters
included, and so gets the verdict that the run itself gave. Anything else is judged by the full rules of a round.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.benchmark.rounds import CURRENT, round_of
from dynamo_mlperf.benchmark.rules import benchmark, check_scenario
from dynamo_mlperf.errors import ConfigError, MeasureError
from dynamo_mlperf.files import MOST_TOPOLOGY_BYTES, RunPaths, read_json, read_text
from dynamo_mlperf.load.as_recorded import with_what_it_recorded
from dynamo_mlperf.load.checks import PROOF
from dynamo_mlperf.load.endpoints_results import CONFIG, SUMMARY, is_endpoints, read_results
from dynamo_mlperf.load.endpoints_run import ACCOUNT, QUERIES, RECORD, REPORT_DIR, judge_run, read_record
from dynamo_mlperf.load.endpoints_verdict import judge_endpoints
from dynamo_mlperf.load.foreign import judge_loadgen
from dynamo_mlperf.load.guess import from_endpoints, from_log, from_path
from dynamo_mlperf.load.logs import DETAIL, read_logs
from dynamo_mlperf.load.side_results import RESULT_FILE
from dynamo_mlperf.load.spec import MeasureSpec, read_spec
from dynamo_mlperf.load.started import check_starts, missing_record, started_simulated
from dynamo_mlperf.load.verdict import judge
from dynamo_mlperf.record import Reason, TransferEvidence, Verdict, read_verdict, transfer_from_json
from dynamo_mlperf.topology.document import parse_document

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dynamo_mlperf.load.settings import LoadSettings
    from dynamo_mlperf.record import ResultClass

SPEC = "measure.json"
_PLACES = ("", "loadgen", "performance/run_1", "run_1", "performance", "accuracy")
"""Where LoadGen's logs may lie below the directory that a person names; the first that has them."""


UNREADABLE = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    OSError,
    ArithmeticError,
    RecursionError,
    MemoryError,
)
"""What reading a record with anything in it may raise."""


class UnendedRunError(MeasureError):
    """A run of ours has no verdict: it still runs, or nobody was left to record one.

    Attributes:
        root: Its run directory.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(f"the run in {root} did not come to its verdict", "wait for its end, or run it again")
        self.root = root


class RecordedFailureError(MeasureError):
    """A run of ours did not measure, and recorded why.

    Attributes:
        root: Its run directory.
        reason: Why.
    """

    def __init__(self, root: Path, reason: Reason) -> None:
        super().__init__(f"the run in {root} FAILED: {reason.got}", reason.action)
        self.root, self.reason = root, reason


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What the person said about the test; None where it is to be found out.

    Attributes:
        benchmark: Name in the submission tree.
        scenario: Offline, Server or Interactive.
        round_name: The round whose rules apply.
    """

    benchmark: str | None = None
    scenario: str | None = None
    round_name: str | None = None


def judge_directory(directory: Path, wanted: Wanted | None = None) -> Verdict:
    """The verdict of the test in `directory`, from that directory alone.

    Raises:
        MeasureError: There is no measurement to judge.
        ConfigError: No such directory, or which benchmark and scenario it is cannot be told and was not said.
    """
    asked = wanted or Wanted()
    # Path's own tests raise where a name is too long, or not to be read.
    if os.path.isfile(directory):  # noqa: PTH113
        raise ConfigError(f"{directory} is a file", f"name the directory that holds it: {directory.parent}")
    if not os.path.isdir(directory):  # noqa: PTH112
        raise ConfigError(
            f"there is no directory {directory}", "name a run directory, or one that holds LoadGen's logs"
        )
    try:
        return _judge(directory, asked)
    except UNREADABLE as error:
        # Files of others, and of ours that were cut: a value of the wrong kind can be anywhere in them.
        raise MeasureError(
            f"{directory} holds records that cannot be read ({type(error).__name__}: {error})",
            "copy the directory again, or run the measurement again",
        ) from error


def _judge(directory: Path, asked: Wanted) -> Verdict:
    if (directory / SPEC).is_file() and (directory / RESULT_FILE).is_file():
        raise ConfigError(
            f"{directory} is an accuracy or compliance test: it has no times to judge", f"read its {RESULT_FILE}"
        )
    if (root := _own_endpoints(directory)) is not None:
        return _judge_own_endpoints(root, asked)
    run = _own_run(directory)
    if is_endpoints(directory):
        _check_alone(directory, run is not None)
        return _judge_endpoints(directory, asked)
    if run is not None:
        return _judge_own(*run, asked)
    if (directory / RunPaths(directory).topology.name).exists():
        return _unfinished(directory)
    logs = next((directory / place for place in _PLACES if (directory / place / DETAIL).is_file()), None)
    if logs is None:
        raise MeasureError(
            f"{directory} holds no measurement: no {DETAIL}, and no performance/result_summary.json",
            "name the directory that LoadGen or endpoints wrote to, or a run directory",
        )
    ours = next((name for name in ("client.json", "queries.csv") if (logs / name).exists()), None)
    if ours is not None:
        raise MeasureError(
            f"{logs} is part of a run of ours ({ours}), and the run's {SPEC} is not beside it: LoadGen's logs alone "
            "hide failed requests and the class of the result, so a part of an INVALID run could pass, whatever "
            "--benchmark and --scenario say",
            "copy the whole run directory and judge that",
        )
    return _judge_loadgen(logs, asked)


def _check_alone(directory: Path, ours: bool) -> None:  # noqa: FBT001 - private, named at its one call
    """Results of endpoints lie beside no other test, which they would hide.

    Raises:
        ConfigError: They do.
    """
    paths = RunPaths(directory)
    others = [path for path in (paths.topology, paths.verdict) if path.exists()]
    others += [directory / place / DETAIL for place in _PLACES[:-1] if (directory / place / DETAIL).exists()]
    if ours or others:
        beside = others[0] if others else SPEC
        raise ConfigError(
            f"{directory} holds results of endpoints and another test ({beside})", "give each a directory of its own"
        )


# -- ours --


def _own_run(directory: Path) -> tuple[Path, MeasureSpec] | None:
    """The run directory and the settings of a test that our client made; None when it is none."""
    for root in (directory, directory.absolute().parent):
        if (root / SPEC).is_file():
            spec = _spec(root / SPEC)
            if root == directory or spec.out_dir.name == directory.absolute().name:
                return root, spec
    return None


def _spec(path: Path) -> MeasureSpec:
    """What a run was made with.

    Raises:
        MeasureError: The file is cut or garbage.
    """
    try:
        spec = read_spec(path)
        benchmark(spec.settings.benchmark, spec.settings.round_name)
    except ConfigError as error:
        raise MeasureError(f"{path}: {error.what}", "copy the directory again, or run the measurement again") from error
    return spec


def _judge_own(root: Path, spec: MeasureSpec, asked: Wanted) -> Verdict:
    load = root / spec.out_dir.name
    files = [load / name for name in (DETAIL, "queries.csv", "client.json")]

    def again(transfer: TransferEvidence | None, result_class: ResultClass) -> Verdict:
        return judge(load, spec.settings, transfer, result_class, str(root), compliance=spec.audit_config)

    return _judge_record(root, SPEC, spec.settings, asked, files=files, again=again)


def _own_endpoints(directory: Path) -> Path | None:
    """The run directory of a run of endpoints that was made here; None when it is none."""
    if (directory / RECORD).is_file():
        return directory
    root = directory.absolute().parent
    return root if directory.absolute().name == REPORT_DIR and (root / RECORD).is_file() else None


def _judge_own_endpoints(root: Path, asked: Wanted) -> Verdict:
    record, report = read_record(root / RECORD), root / REPORT_DIR
    files = [report / name for name in (CONFIG, SUMMARY, QUERIES, ACCOUNT)]

    def again(transfer: TransferEvidence | None, result_class: ResultClass) -> Verdict:
        return judge_run(report, record, transfer, result_class, str(root))

    return _judge_record(root, RECORD, record.settings, asked, files=files, again=again)


def _judge_record(
    root: Path,
    made_by: str,
    settings: LoadSettings,
    asked: Wanted,
    *,
    files: Sequence[Path],
    again: Callable[[TransferEvidence | None, ResultClass], Verdict],
) -> Verdict:
    """The verdict of a run of ours, whichever client made it.

    Args:
        root: The run directory.
        made_by: Name of the file that holds what was asked for.
        settings: What was asked for.
        asked: What the person said.
        files: What the client left.
        again: Judges these files by that.
    """
    said = {"--benchmark": asked.benchmark, "--scenario": asked.scenario, "--round": asked.round_name}
    ran = {"--benchmark": settings.benchmark, "--scenario": settings.scenario, "--round": settings.round_name}
    for flag, value in said.items():
        if value is not None and value != ran[flag]:
            raise ConfigError(f"this run was made for {flag} {ran[flag]}, not {value}", f"leave {flag} out")
    paths = RunPaths(root)
    recorded = read_verdict(paths)
    described = paths.topology.exists()
    if not described and not paths.endpoint.exists():
        raise missing_record(paths.topology, "the class of its result")
    if recorded is None or recorded["verdict"] == "FAILED":
        return _unfinished(root)
    for path in (paths.topology, paths.endpoint, paths.evidence, *files):
        if path.exists() and not path.is_file():
            raise MeasureError(f"{path} is no file", "copy the whole run directory")
    if not described:
        return with_what_it_recorded(again(None, _class_at_endpoint(paths, settings)), recorded, root)
    measured = _topology(paths)["measure"]
    for key, made in (("benchmark", settings.benchmark), ("scenario", settings.scenario)):
        if measured.get(key, made) != made:
            raise ValueError(f"{made_by} is for {key} {made}, {paths.topology.name} for {measured[key]}")
    verdict = again(_transfer(paths), _class(paths, settings))
    verdict = verdict if paths.evidence.exists() else _without_evidence(verdict, paths)
    return with_what_it_recorded(verdict, recorded, root)


def _without_evidence(verdict: Verdict, paths: RunPaths) -> Verdict:
    """The verdict with the true cause of a proof that is missing: the file, not the engine."""
    lost = Reason(PROOF, "engine counters", f"no {paths.evidence.name}", "copy the whole run directory")
    reasons = tuple(lost if reason.check == PROOF else reason for reason in verdict.reasons)
    return dataclasses.replace(verdict, reasons=reasons)


def _unfinished(root: Path) -> Verdict:
    """A run that failed, or never came to its verdict, measured nothing, whatever its logs look like.

    Raises:
        MeasureError: Always; a RecordedFailureError where the run recorded that it did not measure, an UnendedRunError
            where it recorded nothing.
    """
    recorded = read_verdict(RunPaths(root))
    if recorded is None:
        raise UnendedRunError(root)
    if recorded["verdict"] != "FAILED":
        raise MeasureError(f"{root} holds a run of ours without its {SPEC}", "copy the whole run directory")
    lost = Reason("run", "a measurement", "for no recorded reason", "run it again")
    raise RecordedFailureError(root, next(map(Reason.from_json, recorded["reasons"]), lost))


def _topology(paths: RunPaths) -> dict[str, Any]:
    """The topology file's content.

    Raises:
        ValueError: A run refuses it, for a key that is given twice for example; or it is empty, or cut.
    """
    try:
        document = parse_document(read_text(paths.topology, MOST_TOPOLOGY_BYTES), paths.topology)
    except ConfigError as error:
        raise ValueError(error.what) from error
    if document.problems:
        raise ValueError(f"{paths.topology.name}: {document.problems[0].name}: {document.problems[0].text}")
    found = document.value
    if lacks := [key for key in ("engine", "roles", "measure") if not found.get(key)]:
        raise ValueError(f"{paths.topology.name} has no {' and no '.join(lacks)}")
    return found


def _transfer(paths: RunPaths) -> TransferEvidence | None:
    """As recorded; prefill and decode workers without a record have proven nothing."""
    record = read_json(paths.evidence) if paths.evidence.exists() else {}
    value: dict[str, Any] | None = record.get("transfer")
    roles = _topology(paths)["roles"]
    disaggregated = "prefill" in roles or "decode" in roles
    if value is None:
        return TransferEvidence(disaggregated=True, proof="none") if disaggregated else None
    found = transfer_from_json(value)
    return dataclasses.replace(found, disaggregated=True) if disaggregated else found


def _class(paths: RunPaths, settings: LoadSettings) -> ResultClass:
    """As the job decides it: by its engine, then by `reduced:`."""
    topology, simulated = _topology(paths), started_simulated(paths)
    if topology.get("engine") == "mocker":
        return "rehearsal"
    if simulated:
        raise ValueError(f"{paths.topology.name} has another engine, and {paths.commands.name} started simulated ones")
    return "reduced" if settings.reduced or topology.get("reduced") else "official"


def _class_at_endpoint(paths: RunPaths, settings: LoadSettings) -> ResultClass:
    """Of a run of the verb `measure`: as it was said to be, and never more than its settings allow."""
    check_starts(paths)
    said: str = read_json(paths.endpoint)["class"]
    if said == "rehearsal":
        return "rehearsal"
    return "official" if said == "official" and not settings.reduced else "reduced"


# -- others' --


def _decided(directory: Path, asked: Wanted, inside: tuple[str | None, str | None]) -> tuple[str, str]:
    """Benchmark and scenario: as said, else by the directory's place in a submission tree, else by its content."""
    named, lies = from_path(directory)
    found, ran = inside
    name, scenario = asked.benchmark or named or found, asked.scenario or lies or ran
    missing = [flag for flag, value in (("--benchmark", name), ("--scenario", scenario)) if value is None]
    if name is None or scenario is None:
        unknown = " and ".join(flag.removeprefix("--") for flag in missing)
        raise ConfigError(
            f"{directory} does not tell its {unknown}: neither its path nor its settings single one out",
            f"say it with {' and '.join(missing)}",
        )
    return name, scenario


def _judge_loadgen(logs: Path, asked: Wanted) -> Verdict:
    rules_round = round_of(asked.round_name or CURRENT)
    name, scenario = _decided(logs, asked, from_log(read_logs(logs), rules_round))
    rules = benchmark(name, rules_round.name)
    return judge_loadgen(logs, rules, check_scenario(scenario, rules), rules_round)


def _judge_endpoints(directory: Path, asked: Wanted) -> Verdict:
    rules_round = round_of(asked.round_name or CURRENT)
    name, scenario = _decided(directory, asked, from_endpoints(read_results(directory), rules_round))
    rules = benchmark(name, rules_round.name)
    return judge_endpoints(directory, rules, check_scenario(scenario, rules), rules_round)


def failed_verdict(directory: Path, error: MeasureError) -> Verdict:
    """What `judge --json` shows where there is nothing to judge."""
    reason = Reason("measurement", "whole logs of a finished test", error.what, error.action)
    return Verdict("FAILED", "official", "unknown", "unknown", str(directory), reasons=(reason,))
