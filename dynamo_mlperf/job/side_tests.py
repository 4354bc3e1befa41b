"""Which accuracy and compliance tests go with a performance test, and what each of them sends.

They run on the same deployment, with the settings of the performance test and the same `user.conf`. What may differ is
what the rules let differ: the mode, what `audit.config` says, and for gpt-oss-120b the data set of the accuracy test
(4395 samples, answers of up to 32,768 tokens) and of TEST07 (990 samples). Those two data sets lie in `accuracy` and
`compliance` below the performance test's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from dynamo_mlperf.benchmark.rules import WITH_IMAGES, Benchmark, benchmark
from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.job.measurement import LoadTest
from dynamo_mlperf.job.workload import REQUESTS_FILE, load_samples, sample_messages
from dynamo_mlperf.load.audit import ComplianceTest, compliance_test
from dynamo_mlperf.load.bodies import IdsFrom, chat_body
from dynamo_mlperf.load.requests import write_requests
from dynamo_mlperf.load.side_results import ACCURACY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from dynamo_mlperf.load.settings import LoadSettings
    from dynamo_mlperf.record import ResultClass

TRUTH_FILE = "truth.jsonl"
"""Beside `prompts.jsonl`: what the right answers are."""

WITH_TOKEN_IDS = ("TEST06", "TEST09")
"""Compliance tests whose answers are read as token ids."""


@dataclass(frozen=True)
class SideTest:
    """An accuracy or compliance test.

    Attributes:
        name: `accuracy` or the compliance test's name; its folder in the run directory.
        settings: What LoadGen is told, by `user.conf` and its mode.
        data_set: Directory of its data set.
        max_tokens: Cap on output tokens.
        own_requests: Whether its requests differ from the performance test's.
        compliance: Which compliance test; None for the accuracy test.
    """

    name: str
    settings: LoadSettings
    data_set: Path
    max_tokens: int
    own_requests: bool
    compliance: ComplianceTest | None = None

    @property
    def keep_token_ids(self) -> bool:
        """Whether its answers are kept as token ids."""
        return self.name in WITH_TOKEN_IDS

    @property
    def scored(self) -> bool:
        """Whether its answers are held against the truth."""
        return self.name in {ACCURACY, "TEST07"}

    def load_test(self, root: Path) -> LoadTest:
        """What LoadGen's process is given, in the run directory `root`."""
        directory = root / self.name
        return LoadTest(
            name=f"loadgen-{self.name}",
            directory=directory,
            load_dir=directory,
            settings=self.settings,
            requests=(directory if self.own_requests else root) / REQUESTS_FILE,
            keep_text=not self.keep_token_ids,
            keep_token_ids=self.keep_token_ids,
            audit_config=self.compliance is not None,
        )

    def write_requests(self, root: Path, model: str, ids_from: IdsFrom) -> None:
        """Write the requests of its own, before anything is timed; those of the performance test are there already."""
        path = self.load_test(root).requests
        if self.own_requests or not path.exists():
            samples = load_samples(self.settings.benchmark, self.data_set)
            write_requests(path, self._bodies(samples, model, ids_from))

    def _bodies(self, samples: Sequence[object], model: str, ids_from: IdsFrom) -> Iterator[bytes]:
        rules = benchmark(self.settings.benchmark, self.settings.round_name)
        asked = partial(
            chat_body,
            token_ids=self.keep_token_ids,
            ids_from=ids_from,
            effort=rules.reasoning_effort.get(self.name),
        )
        for sample in samples:
            yield asked(model, sample_messages(sample), self.max_tokens)  # type: ignore[arg-type]


def names_of_side_tests(rules: Benchmark, *, accuracy: bool, compliance: bool) -> tuple[str, ...]:
    """The names of the tests that go with a performance test, in the order in which they run."""
    return (*((ACCURACY,) if accuracy else ()), *(rules.compliance_tests if compliance else ()))


def plan_side_test(name: str, performance: LoadSettings, data_set: Path, result_class: ResultClass) -> SideTest:
    """One accuracy or compliance test beside a performance test.

    Args:
        name: `accuracy` or a compliance test of the benchmark.
        performance: The settings of the performance test.
        data_set: Directory of the performance test's data set.
        result_class: What the result will be; one that is not official may lack samples and truth.

    Raises:
        ConfigError: The benchmark has no such test, or its data set is missing, too small, or has no truth.
    """
    official = result_class == "official"
    rules = benchmark(performance.benchmark, performance.round_name)
    if name == ACCURACY:
        planned = _accuracy(rules, performance, data_set, official=official)
    elif name in rules.compliance_tests:
        planned = _compliance(rules, compliance_test(name), performance, data_set, official=official)
    else:
        has = f"it has {', '.join(rules.compliance_tests)}" if rules.compliance_tests else "it has none"
        raise ConfigError(f"{rules.name} has no compliance test {name} in round {performance.round_name}", has)
    if official:
        _check_truth(planned)
    return planned


def _accuracy(rules: Benchmark, performance: LoadSettings, data_set: Path, *, official: bool) -> SideTest:
    apart = rules.accuracy_sample_count[performance.scenario] != rules.performance_sample_count[performance.scenario]
    directory = data_set / ACCURACY if apart else data_set
    have = _count(rules, directory, ACCURACY) if apart else performance.dataset_samples
    wanted = performance.accuracy_sample_count if official else min(performance.accuracy_sample_count, have)
    _check_size(directory, have, wanted, ACCURACY)
    settings = replace(performance, mode="accuracy", dataset_samples=have, accuracy_sample_count=wanted)
    own = apart or rules.accuracy_max_new_tokens != rules.max_new_tokens
    return SideTest(ACCURACY, settings, directory, rules.accuracy_max_new_tokens, own)


def _compliance(
    rules: Benchmark, test: ComplianceTest, performance: LoadSettings, data_set: Path, *, official: bool
) -> SideTest:
    directory, settings = data_set, performance
    if test.samples is not None:
        directory = data_set / "compliance"
        have = _count(rules, directory, test.name)
        wanted = test.samples if official else min(test.samples, have)
        _check_size(directory, have, wanted, test.name)
        settings = replace(performance, dataset_samples=have, performance_sample_count=wanted)
    if not official:
        test = test.lowered(settings.performance_sample_count)
    own = test.samples is not None or test.name in WITH_TOKEN_IDS
    return SideTest(test.name, settings, directory, rules.max_new_tokens, own, test)


def _count(rules: Benchmark, directory: Path, test: str) -> int:
    try:
        return len(load_samples(rules.name, directory))
    except ConfigError as problem:
        raise ConfigError(
            f"{rules.name}: the {test} test has a data set of its own, and {problem.what}",
            f"put it into {directory} (see `dynamo-mlperf dataset --help`)",
        ) from problem


def _check_size(directory: Path, have: int, wanted: int, test: str) -> None:
    if have < wanted:
        raise ConfigError(
            f"{directory} has {have} samples, and the {test} test needs {wanted}", "name the whole data set"
        )


def _check_truth(test: SideTest) -> None:
    """An official test that is scored has what to score against."""
    images = test.settings.benchmark == WITH_IMAGES
    if test.scored and not images and not (test.data_set / TRUTH_FILE).is_file():
        raise ConfigError(
            f"{test.data_set} has no {TRUTH_FILE}, and the {test.name} test is scored against it",
            "make the data set from its published form (`dynamo-mlperf dataset --help`)",
        )


def check_side_tests(
    performance: LoadSettings, data_set: Path, result_class: ResultClass, *, accuracy: bool, compliance: bool
) -> None:
    """Refuse before a job what its accuracy and compliance tests could not do.

    Raises:
        ConfigError: See `plan_side_test`.
    """
    rules = benchmark(performance.benchmark, performance.round_name)
    for name in names_of_side_tests(rules, accuracy=accuracy, compliance=compliance):
        plan_side_test(name, performance, data_set, result_class)
