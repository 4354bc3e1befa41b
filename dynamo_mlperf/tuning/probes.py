"""What a search works on: settings, the probes made, the next step. Frozen values; no clock, no files."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from dynamo_mlperf.benchmark.early_stopping import allowed_over_limit, minimum_queries
from dynamo_mlperf.load.user_conf import in_whole_sets

Rule = Literal["loadgen", "endpoints"]
"""Whose early-stopping rule judges: LoadGen allows t of n over the limit, endpoints one fewer."""

_USUAL_TOLERANCE = 0.01
_A_LITTLE_LOWER = 0.97
_TOP_QPS = 300_000.0
_LONGEST_RUN = 20.0
"""Runs that are padded to whole data sets last longer the lower the rate; this many shortest runs at most."""
_LUCK = 4.0
"""Standard deviations by which the number of random arrivals is allowed to be off."""


@dataclass(frozen=True)
class SearchSettings:
    """What is searched, and how closely.

    Attributes:
        duration_s: Length of a full run in seconds.
        percentile: The judged percentile as a fraction, for example 0.99.
        tolerance: How closely the highest rate is sought, as a share of it; answers lie the lower the larger it is.
        low: Lowest target_qps that is probed; None = the lowest that a full run can certify.
        high: Highest target_qps that is probed; None = 300,000.
        start: A predicted answer in target_qps; None = no prediction.
        min_queries: Fewest queries that a full run must hold, beyond what the percentile itself asks for.
        time_budget_s: Engine time in seconds that the whole search may take; None = no bound.
        overhead_s: What a probe costs beyond its own time (warm-up, coming to rest), in seconds; for planning.
        pass_probability: Probability with which a full run at the answer passes.
        rule: Whose early-stopping rule judges.
        data_set: A full run is padded to whole multiples of this many queries (equal issue); 1 = it is not.
        at_least: Queries that a full run issues at least, however long that takes; 0 = as many as come.
        slack: Factor on the queries of a run beyond rate x length (LoadGen plans Offline with 1.1).
    """

    duration_s: float = 600.0
    percentile: float = 0.99
    tolerance: float = 0.01
    low: float | None = None
    high: float | None = None
    start: float | None = None
    min_queries: int = 0
    time_budget_s: float | None = None
    overhead_s: float = 15.0
    pass_probability: float = 0.9
    rule: Rule = "loadgen"
    data_set: int = 1
    at_least: int = 0
    slack: float = 1.0

    @property
    def placing(self) -> float:
        """How closely rates are placed, as a share: a tolerance beyond the usual one makes no rate worth less."""
        return min(self.tolerance, _USUAL_TOLERANCE)

    @property
    def padded(self) -> bool:
        """Whether a full run goes on to whole data sets, so that it lasts longer where the rate is low."""
        return self.data_set > 1 or self.at_least > 0

    def allowed(self, queries: int) -> int:
        """The most of so many queries that may be over a limit; below 0 when they are too few."""
        return allowed_over_limit(queries, self.percentile) - (self.rule == "endpoints")

    @property
    def random_arrivals(self) -> bool:
        """Whether the number of queries is left to chance, as in LoadGen's Server.

        It draws Poisson arrivals until the duration is reached, and pads what came of it; in Offline, and for
        endpoints, the rate and the duration alone say how many there are.
        """
        return not self.padded or (self.rule == "loadgen" and self.slack == 1.0)

    def run_queries(self, rate: float) -> float:
        """Queries of a full run at this rate, with as many arrivals as the rate says."""
        return self._in_whole_sets(rate * self.duration_s * self.slack)

    def most_queries(self, rate: float) -> float:
        """The most queries of a full run at this rate: by luck of the arrivals a whole data set more than expected."""
        by_rate = rate * self.duration_s * self.slack
        return self._in_whole_sets(by_rate + (_LUCK * math.sqrt(by_rate) if self.random_arrivals else 0.0))

    def _in_whole_sets(self, queries: float) -> float:
        if not self.padded:
            return queries
        return in_whole_sets(max(queries, self.at_least), self.data_set)

    def run_s(self, rate: float) -> float:
        """Length of a full run at this rate in seconds, with as many queries as it may hold."""
        return max(self.duration_s, self.most_queries(rate) / rate) if self.padded else self.duration_s

    def lowest_within(self, seconds: float) -> float:
        """Lowest rate at which a full run takes no longer than so many seconds; 0 where the rate does not matter."""
        return self.run_queries(1e-9) / max(seconds, 1e-9) if self.padded else 0.0

    @property
    def needed_queries(self) -> int:
        """Queries below which no full run is VALID, however fast it was."""
        return max(self.min_queries, minimum_queries(1 if self.rule == "endpoints" else 0, self.percentile))

    @property
    def floor_qps(self) -> float:
        """Lowest target_qps at which a full run holds enough queries, with some room for the luck of arrivals.

        A run that is padded to whole data sets holds as many at any rate: there it is the rate at which it lasts
        20 times the shortest run.
        """
        if not self.padded:
            return (self.needed_queries + 2.0 * math.sqrt(self.needed_queries)) / self.duration_s
        fewest = self.run_queries(1e-9)
        sets_short = math.ceil(self.needed_queries / self.data_set) - 1
        enough = 0.0 if fewest >= self.needed_queries else (sets_short * self.data_set + 0.01) / self.duration_s
        return max(enough, fewest / (_LONGEST_RUN * self.duration_s))

    @property
    def lowest_qps(self) -> float:
        """Lowest target_qps that can be an answer."""
        return max(self.floor_qps, self.low or 0.0)

    @property
    def highest_qps(self) -> float:
        """Highest target_qps that is probed."""
        return self.high or _TOP_QPS


@dataclass(frozen=True)
class Sample:
    """One line of a probe's stream: counts since its begin.

    Attributes:
        t_s: Seconds since the first query.
        issued: Queries issued.
        completed: Queries completed.
        over: Constraint -> completed queries over its limit.
        over_in_flight: Constraint -> queries in flight that are over its limit however they end.
        known_in_flight: Constraint -> queries in flight of which that is certain, either way.
    """

    t_s: float
    issued: int
    completed: int
    over: dict[str, int] = field(default_factory=dict, hash=False)
    over_in_flight: dict[str, int] = field(default_factory=dict, hash=False)
    known_in_flight: dict[str, int] = field(default_factory=dict, hash=False)

    def known(self, constraint: str) -> int:
        """Queries whose side of the limit is certain: completed ones, and some that are in flight."""
        return self.completed + self.known_in_flight.get(constraint, 0)

    def over_of(self, constraint: str) -> int:
        """Those of them that are over it."""
        return self.over.get(constraint, 0) + self.over_in_flight.get(constraint, 0)


@dataclass(frozen=True)
class Final:
    """The last line of a probe that ran to its end.

    Attributes:
        valid: The probe's own verdict.
        n: Queries that count.
        over: Constraint -> queries over its limit.
        seconds: Length of the run in seconds.
        percentiles: Whatever the probe tells of its latencies; recorded, not used.
        reasons: Why it is not valid, for people.
    """

    valid: bool
    n: int
    over: dict[str, int] = field(hash=False)
    seconds: float
    percentiles: dict[str, object] = field(default_factory=dict, hash=False)
    reasons: tuple[str, ...] = ()


Ended = Literal[
    "complete",
    "cannot pass",
    "unlikely to pass",
    "too low",
    "no more time",
    "too long",
    "as before",
    "not valid",
    "interrupted",
    "running",
]
"""How a probe ended: at its planned end, or stopped and why (`as before`: a check for drift found none; `not valid`: it
broke a rule other than a limit, so that no course of the rest could make it VALID); `running` for one in progress."""


@dataclass(frozen=True)
class ProbeRecord:
    """One probe as it was made.

    Attributes:
        rate: target_qps.
        planned_s: Planned length in seconds.
        samples: The stream.
        ended: How it ended.
        final: The last line of a probe that ran to its end.
        begin_s: Engine seconds of the search before it.
        cost_s: Engine seconds that it took.
        purpose: Why it was made.
        refused: Why it was stopped as `not valid`.
        generated: Queries that the load client has made up its mind to issue; None = it has not said so.
    """

    rate: float
    planned_s: float
    samples: tuple[Sample, ...]
    ended: Ended
    final: Final | None = None
    begin_s: float = 0.0
    cost_s: float = 0.0
    purpose: str = ""
    refused: str = ""
    generated: int | None = None

    @property
    def whole_queries(self) -> float:
        """Queries of the whole run: as they were generated, else as planned."""
        return self.rate * self.planned_s if self.generated is None else self.generated

    @property
    def whole_s(self) -> float:
        """Length of the whole run in seconds, by what was generated where that is fewer than planned."""
        return min(self.planned_s, self.whole_queries / self.rate)

    @property
    def constraints(self) -> tuple[str, ...]:
        """Names of the constraints that it counted."""
        if self.final is not None:
            return tuple(sorted(self.final.over))
        return tuple(sorted({name for sample in self.samples for name in sample.over}))

    @property
    def tells(self) -> bool:
        """Whether it says anything of its rate: it ended, or a query was answered or is over a limit."""
        if self.final is not None or not self.samples:
            return self.final is not None
        last = self.samples[-1]
        return last.completed > 0 or any(last.over_in_flight.values())

    @property
    def seconds(self) -> float:
        """Seconds of the run that were seen."""
        if self.final is not None:
            return self.final.seconds
        return self.samples[-1].t_s if self.samples else 0.0


History = tuple[ProbeRecord, ...]


def extra_s(history: History, settings: SearchSettings) -> float:
    """What a probe costs beyond its own time, in seconds: the most that was seen, or what is expected."""
    return max([settings.overhead_s, *(record.cost_s - record.seconds for record in history)])


def confirm_s(settings: SearchSettings, rate: float) -> float:
    """Length in seconds of the run that will confirm a rate near this one; a little lower it may be longer."""
    return settings.run_s(confirm_rate(settings, rate))


def confirm_rate(settings: SearchSettings, rate: float) -> float:
    """A rate a little below this one; outside of the range nothing is confirmed, wherever the estimate is."""
    return max(min(_A_LITTLE_LOWER * rate, settings.high or math.inf), settings.lowest_qps)


@dataclass(frozen=True)
class Probe:
    """Next step: make this probe.

    Attributes:
        rate: target_qps.
        planned_s: Planned length in seconds: always a full run.
        max_s: Seconds after which it is stopped all the same, because the confirmation must still fit the budget.
        must_finish: Run on unless it cannot pass: no time is left for another one.
        purpose: Why, in a few words.
    """

    rate: float
    planned_s: float
    max_s: float
    must_finish: bool
    purpose: str


@dataclass(frozen=True)
class Answer:
    """The search is over: this rate holds.

    Attributes:
        rate: The answer in target_qps.
        probe: Index of the full-length VALID run that confirms it.
        located: Whether nothing much higher holds: a rate not far above was seen to fail, and the estimate is near.
        binding: The constraint that limits the rate; None where the upper end of the range passes.
        pass_probability: Fitted probability that a repeat passes.
        reason: Why this is the answer.
        within: No rate more than this share above it passes as it does, with probability 0.9 by the fit; None where
            nothing above it is of use.
    """

    rate: float
    probe: int
    located: bool
    binding: str | None
    pass_probability: float
    reason: str
    within: float | None = None


NoAnswerKind = Literal["impossible", "too few queries", "budget", "invalid", "no agreement"]


@dataclass(frozen=True)
class NoAnswer:
    """The search is over without an answer.

    Attributes:
        kind: Which of the ways to have none.
        reason: What was found, with the numbers.
        action: What would help.
        binding: The constraint that could not be met, if one.
    """

    kind: NoAnswerKind
    reason: str
    action: str
    binding: str | None = None


Step = Probe | Answer | NoAnswer
