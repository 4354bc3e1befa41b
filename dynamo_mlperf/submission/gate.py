"""Our gate for a whole tree: every submitter, system and result in it, and what must lie beside them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.benchmark.rounds import round_of
from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.load.endpoints_results import SUMMARY
from dynamo_mlperf.load.logs import DETAIL
from dynamo_mlperf.submission import layout, marks
from dynamo_mlperf.submission.description import KEYS, MUST_BE_FILLED
from dynamo_mlperf.submission.finding import Finding
from dynamo_mlperf.submission.gate_scenario import ScenarioGate, config_says_so, parse_json, unknown_benchmark
from dynamo_mlperf.submission.manifest import changed_files, is_evidence
from dynamo_mlperf.submission.rescoring import scores_as_recorded
from dynamo_mlperf.submission.secret_scan import secrets_in
from dynamo_mlperf.submission.twice import used_twice

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dynamo_mlperf.benchmark.rounds import Round

_ROUNDS = ("v6.1", "v6.0")
"""The rounds whose trees have this layout."""

_STATUS = ("available", "preview", "rdi")
_NOT_OURS = ("open", "network")


@dataclass(frozen=True)
class Gate:
    """What our gate found.

    Attributes:
        findings: Each thing that stands in the way.
        notes: What a reader should know all the same.
        results: Every result of the tree, as `submitter/system/benchmark/scenario`.
    """

    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    results: tuple[str, ...]


def check_tree(tree: Path, round_name: str, *, rehearsal: bool = False) -> Gate:
    """Hold the tree against the rules of a round.

    Args:
        tree: Holds `closed/`.
        round_name: Such as v6.1.
        rehearsal: Whether a rehearsal is what the tree is meant to be: its marks are then none.

    Raises:
        ConfigError: There is no tree, or its round has another layout.
    """
    rules_round = round_of(round_name)
    if round_name not in _ROUNDS:
        raise ConfigError(f"trees of {round_name} have folders of another kind", f"write one of {', '.join(_ROUNDS)}")
    division = tree / layout.DIVISION
    submitters = _folders(division)
    if not submitters:
        raise ConfigError(f"{tree} is no submission: no folder below {division}", "name the folder that holds closed/")
    findings: list[Finding] = []
    results: list[str] = []
    notes = [f"not checked: {tree / name}" for name in _NOT_OURS if (tree / name).is_dir()]
    for folder in submitters:
        part = _SubmitterGate(layout.Submitter(folder), rules_round, rehearsal=rehearsal)
        try:
            findings += part.findings()
        except OSError as problem:
            where, why = str(problem.filename or folder), problem.strerror or str(problem)
            findings.append(Finding(where, "files", "files that can be read", why, "package the runs again"))
        results += part.results
        notes += part.notes
    return Gate(tuple(dict.fromkeys(findings)), tuple(notes), tuple(results))


def _folders(place: Path) -> list[Path]:
    return sorted(path for path in place.iterdir() if path.is_dir()) if place.is_dir() else []


class _SubmitterGate:
    """One submitter's part; `results` and `notes` are filled by `findings`."""

    def __init__(self, part: layout.Submitter, rules_round: Round, *, rehearsal: bool) -> None:
        self._part, self._round, self._rehearsal = part, rules_round, rehearsal
        self.results: list[str] = []
        self.notes: list[str] = []

    def findings(self) -> Iterator[Finding]:
        root = self._part.root
        ours = self._is_ours()
        systems = _folders(root / "results")
        if not systems:
            yield Finding(str(root / "results"), "results", "one system or more", "none", "package the runs again")
        yield from self._beside()
        for folder in systems:
            yield from self._system(folder.name)
            for benchmark in _folders(folder):
                yield from self._benchmark(benchmark, ours=ours)
        described = {path.stem for path in (root / "systems").glob("*.json")}
        for name in sorted(described - {folder.name for folder in systems}):
            yield Finding(str(self._part.system(name)), "system", "results of it", "none", "take the file out")
        if self._part.manifest.is_file():
            yield from self._since_packaging()
        yield from self._rehearsed()
        yield from self._own_files()
        files = [path for path in root.rglob("*") if path.is_file() and path.suffix != ".py"]
        yield from secrets_in(files)

    def _is_ours(self) -> bool:
        """Whether any place says that `package` made this: one is enough, so that none can be left out."""
        root = self._part.root
        signs = (self._part.manifest, root / layout.SOURCES / "dynamo_mlperf")
        texts = [*root.glob("src/*/README.md"), *root.glob(f"results/*/*/*/{layout.README}")]
        return (
            any(sign.exists() for sign in signs)
            or any(root.glob(f"results/*/*/*/{layout.RECORD}"))
            or any("dynamo_mlperf" in marks.text_of(path) for path in texts)
            or self._says_rehearsal()
        )

    def _says_rehearsal(self) -> bool:
        root = self._part.root
        small = [*root.glob("systems/*.json"), *root.glob("results/*/*/*/*.*"), *root.glob("results/*/*/*/*/*.txt")]
        return any(marks.marks_in_file(path) for path in small if not path.name.startswith("mlperf_log_"))

    def _beside(self) -> Iterator[Finding]:
        for name in (layout.CALIBRATION, layout.SOURCES):
            path = self._part.root / name
            if not path.exists() or (path.is_file() and not path.stat().st_size):
                yield Finding(str(path), "file" if path.suffix else "folder", "there", "missing", "package again")

    def _system(self, name: str) -> Iterator[Finding]:
        path = self._part.system(name)
        try:
            value = parse_json(path)
        except ConfigError as problem:
            yield Finding(str(path), "system", "its description", problem.what, problem.action)
            return
        yield from (self._wrong(path, key, "the key", "missing") for key in KEYS if key not in value)
        for key in MUST_BE_FILLED:
            if key in value and not str(value[key] or "").strip():
                yield self._wrong(path, key, "a value", "nothing")
        wanted: dict[str, Any] = {"division": layout.DIVISION, "submitter": self._part.name}
        for key, said in wanted.items():
            if key in value and value[key] != said:
                yield self._wrong(path, key, f"{said}, as the folder is called", str(value[key]))
        if value.get("status") not in _STATUS:
            yield self._wrong(path, "status", " or ".join(_STATUS), str(value.get("status")))
        if value.get("system_type") != "datacenter":
            yield self._wrong(path, "system_type", "datacenter", str(value.get("system_type")))
        for key in ("number_of_nodes", "accelerators_per_node"):
            if not re.fullmatch(r"[1-9][0-9]{0,8}", str(value.get(key))):
                yield self._wrong(path, key, "a whole number", str(value.get(key)))

    @staticmethod
    def _wrong(path: Path, key: str, wanted: str, got: str) -> Finding:
        return Finding(str(path), key, wanted, got, "correct the system's description, and package again")

    def _benchmark(self, folder: Path, *, ours: bool) -> Iterator[Finding]:
        rules = self._round.benchmarks.get(folder.name)
        if rules is None:
            known = ", ".join(self._round.benchmarks)
            yield unknown_benchmark(folder, ConfigError(f"{folder.name}; known here are {known}"))
            return
        scenarios = _folders(folder)
        names = [scenario.name for scenario in scenarios]
        for scenario in scenarios:
            if scenario.name not in rules.scenarios:
                wanted = ", ".join(rules.scenarios)
                yield Finding(str(scenario), "scenario", wanted, scenario.name, "name the folder as the rules do")
                continue
            self.results.append(str(scenario.relative_to(self._part.root.parent)).replace("/results/", "/", 1))
            self.notes += [f"{self.results[-1]}: {note}" for note in scores_as_recorded(scenario / layout.RECORD)]
            yield from ScenarioGate(scenario, rules, self._round, ours=ours, rehearsal=self._rehearsal).findings()
        yield from scenario_findings(str(folder), names)

    def _since_packaging(self) -> Iterator[Finding]:
        """Evidence is as it was packaged; documents may be edited."""
        try:
            changed = changed_files(self._part)
        except ConfigError as problem:
            yield Finding(str(self._part.manifest), "digests", "those of package", problem.what, "package again")
            return
        for name, how in changed:
            if is_evidence(name):
                action = "put back the original, or package the runs again"
                yield Finding(str(self._part.root / name), "evidence", "as packaged", how, action)

    def _own_files(self) -> Iterator[Finding]:
        """No link, whose target may be anywhere, and no test that stands for two results."""
        root = self._part.root
        for path in sorted(path for path in root.rglob("*") if path.is_symlink()):
            yield Finding(str(path), "files", "files of the tree's own", "a link", "put the file itself there")
        names = (DETAIL, Path(SUMMARY).name)
        yield from used_twice(sorted(path for name in names for path in root.glob(f"results/**/{name}")))

    def _rehearsed(self) -> Iterator[Finding]:
        """The submitter's name, its systems' notes, its documents and its records."""
        if self._rehearsal:
            return
        root = self._part.root
        action = "a rehearsal cannot be submitted: measure with real engines"
        if self._part.name.upper() == marks.SUBMITTER:
            yield Finding(str(root), "submitter", "a submitter", self._part.name, action)
        documents = [
            root / layout.CALIBRATION,
            *sorted(root.glob("src/*/README.md")),
            *sorted(root.glob("systems/*.json")),
        ]
        for path in (*documents, self._part.manifest):
            if marks.marks_in_file(path):
                yield Finding(str(path), "what the file says", "a measurement", marks.SUBMITTER, action)
        for path in sorted(root.glob("results/*/*/*/config.yaml")):
            if config_says_so(path):
                yield Finding(str(path), "what the file says", "a measurement", "rehearsal", action)


def scenario_findings(where: str, names: list[str]) -> Iterator[Finding]:
    """Which scenarios a benchmark lacks: Offline, and one of Server and Interactive."""
    if "Offline" not in names:
        got = ", ".join(names) or "none"
        yield Finding(where, "scenarios", "Offline", got, "run Offline too, and name that run")
    if not {"Server", "Interactive"} & set(names):
        got = ", ".join(names) or "none"
        yield Finding(where, "scenarios", "Server or Interactive", got, "run one of them too, and name that run")
