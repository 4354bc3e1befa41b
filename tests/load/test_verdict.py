"""The verdict: VALID when everything agrees, and each rule alone makes it INVALID or FAILED."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dynamo_mlperf.benchmark.rules import Reduction, benchmark
from dynamo_mlperf.errors import MeasureError
from dynamo_mlperf.load.account import QUERIES_HEADER
from dynamo_mlperf.load.checks import duration, tokens_out_of_range, tokens_per_sample
from dynamo_mlperf.load.loadgen_schedule import gaps_ns, scheduled_ns
from dynamo_mlperf.load.logs import DETAIL
from dynamo_mlperf.load.queries import Queries
from dynamo_mlperf.load.settings import LoadSettings, Mode, build_settings
from dynamo_mlperf.load.verdict import _length, _tokens, judge
from dynamo_mlperf.record import ResultClass, TransferEvidence, Verdict
from tests.fakes.loadgen_logs import write_summary

GOLDEN = (Path(__file__).parent / "golden" / "interactive_valid_detail.txt").read_text()
"""A real run: qwen3-vl Interactive, 16 samples, 25 QPS for 3 s, p90: 80 queries, of which one may be over 1500 ms."""

SETTINGS = build_settings(
    benchmark("qwen3-vl-235b-a22b"), "Interactive", 25, 16, Reduction(min_duration_s=3, samples=16, percentile=90)
)
QUERIES = 80
ISSUED_MS = [round(at_ns / 1e6, 3) for at_ns in scheduled_ns(gaps_ns(SETTINGS.seeds.schedule, 25, QUERIES)).tolist()]
"""As the run's log says that they were scheduled."""

PROVEN = TransferEvidence(
    disaggregated=True,
    proof="kv-counters",
    requests=QUERIES,
    prefill_requests=QUERIES,
    remote_prefills=QUERIES,
    prompt_tokens=17 * QUERIES,
    external_tokens=17 * QUERIES,
    kv_bytes=1_000_000,
    transfers=QUERIES,
)
ROUTED = TransferEvidence(disaggregated=True, proof="routing only", requests=QUERIES, prefill_requests=QUERIES)
CLIENT: dict[str, Any] = {
    "requests": QUERIES,
    "failed": [],
    "issue_delay_ms": {"p50": 0.3, "p99": 1.0, "max": 2.0},
    "processes": [
        {"name": "loadgen", "role": "loadgen", "cpu_s": 0.2},
        {"name": "client worker 0", "role": "http", "cpu_s": 0.1},
    ],
    "max_in_flight": 3,
    "retried_connections": 0,
    "wall_s": 3.5,
    "client_limited": None,
}


def row(order: int, **changes: object) -> dict[str, object]:
    """One query: issued in time, 5 ms to the first token, 8 tokens in 12 ms."""
    issued = ISSUED_MS[order]
    values: dict[str, object] = {
        "sample": order % 16,
        "issued_ms": issued,
        "first_token_ms": issued + 5,
        "completed_ms": issued + 12,
        "output_tokens": 8,
        "prompt_tokens": 17,
        "error": "",
    }
    return {"order": order, **values, **changes}


class Run:
    """A load directory that a test spoils in one place."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log = GOLDEN
        self.rows = [row(order) for order in range(QUERIES)]
        self.client = json.loads(json.dumps(CLIENT))
        self.settings: LoadSettings = SETTINGS
        self.transfer: TransferEvidence | None = PROVEN
        self.result_class: ResultClass = "reduced"

    def set_log(self, key: str, value: str) -> None:
        lines = self.log.splitlines(keepends=True)
        found = [index for index, line in enumerate(lines) if f'"key": "{key}", ' in line]
        assert len(found) == 1, key
        before, _, rest = lines[found[0]].partition('"value": ')
        after = rest[rest.index(', "time_ms"') :]
        lines[found[0]] = f'{before}"value": {value}{after}'
        self.log = "".join(lines)

    def change(self, order: int, **changes: object) -> None:
        self.rows[order] = row(order, **changes)

    def late(self, *orders: int, by_ms: float = 1500.5) -> None:
        for order in orders:
            self.change(order, completed_ms=ISSUED_MS[order] + by_ms)

    def judge(self) -> Verdict:
        (self.directory / DETAIL).write_text(self.log)
        with contextlib.suppress(MeasureError):
            write_summary(self.directory)
        lines = [QUERIES_HEADER, *(",".join(str(value) for value in entry.values()) for entry in self.rows)]
        (self.directory / "queries.csv").write_text("\n".join(lines) + "\n")
        (self.directory / "client.json").write_text(json.dumps(self.client))
        return judge(self.directory, self.settings, self.transfer, self.result_class, "runs/x")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def texts(verdict: Verdict) -> str:
    return "\n".join(reason.text() for reason in verdict.reasons)


def test_everything_agrees(run: Run) -> None:
    verdict = run.judge()
    assert (verdict.verdict, verdict.reasons, verdict.failed_requests, verdict.requests) == ("VALID", (), 0, QUERIES)
    assert verdict.duration_s == pytest.approx((ISSUED_MS[-1] + 12) / 1000)
    assert verdict.completed_qps == 23.0472, "LoadGen's own figure, which a submission reports"
    assert verdict.tokens_per_second == pytest.approx(640 / (verdict.duration_s or 0))
    assert verdict.client["issued_late_ms"] == {"p50": 0, "p99": 0, "max": 0}
    latency = verdict.latency_p99_ms["end_to_end"]
    assert (latency.limit, latency.percentile, latency.over_limit, latency.over_limit_allowed) == (1500, 0.9, 0, 1)
    assert latency.plain == pytest.approx(18.267766), (
        "LoadGen counts from the scheduled time, our client from the issue"
    )
    json.dumps(verdict.as_json(), allow_nan=False)


def test_plain_is_p99_and_the_judged_percentile_is_the_runs_own(run: Run) -> None:
    run.late(79, by_ms=900)
    for order in range(70, 79):
        run.late(order, by_ms=500 + order)
    latency = run.judge().latency_p99_ms["end_to_end"]
    assert latency.plain == pytest.approx(900)
    assert latency.at_percentile == pytest.approx(572)  # sorted[72] of 80: 70 below, then 570, 571, 572
    assert latency.early_stopping == pytest.approx(578)  # one may be over


def test_one_over_the_limit_is_allowed_and_two_are_not(run: Run) -> None:
    run.late(3)
    assert run.judge().verdict == "VALID"
    run.late(3, 4)
    verdict = run.judge()
    assert verdict.verdict == "INVALID"
    assert texts(verdict).startswith("end_to_end within 1500 ms: wanted at most 1 of 80 over, got 2 over")


def issued_late(run: Run, *orders: int) -> None:
    """Issued 20 ms late, and ended 1480.5 ms later."""
    for order in orders:
        issued = ISSUED_MS[order] + 20
        run.change(order, issued_ms=issued, first_token_ms=issued + 5, completed_ms=issued + 1480.5)


def test_queries_issued_late_are_the_clients_fault_and_count_from_their_schedule(run: Run) -> None:
    issued_late(run, 3, 4)
    verdict = run.judge()
    assert [reason.check for reason in verdict.reasons] == ["client-limited", "end_to_end within 1500 ms"]
    assert texts(verdict).startswith(
        "client-limited: wanted samples issued within 15 ms of their schedule (p99), got 20.0 ms. LoadGen's process was "
    )
    assert verdict.latency_p99_ms["end_to_end"].over_limit == 2
    assert verdict.client["issued_late_ms"] == {"p50": 0, "p99": 20, "max": 20}


@pytest.mark.parametrize(("late_ms", "check"), [(4.9, []), (5.1, ["client-limited"])])
def test_late_issue_counts_where_first_tokens_do(run: Run, late_ms: float, check: list[str]) -> None:
    token_run(run)
    for order in range(2, QUERIES):
        issued = ISSUED_MS[order] + late_ms
        run.change(order, issued_ms=issued, first_token_ms=issued + 5, completed_ms=issued + 12)
    verdict = run.judge()
    assert [reason.check for reason in verdict.reasons] == check
    assert verdict.latency_p99_ms["ttft"].plain == pytest.approx(5 + late_ms)


def test_where_the_schedule_is_not_known_latencies_count_from_the_issue(run: Run) -> None:
    run.set_log("generated_query_duration", "3450695032")
    issued_late(run, 3, 4)
    verdict = run.judge()
    assert (verdict.verdict, verdict.client["issued_late_ms"]) == ("VALID", {})
    assert "LoadGen's log shows another schedule than its seed gives: latencies count from the issue of each query" in (
        verdict.notes
    )


def test_ends_that_loadgen_was_told_late_are_the_clients_fault(run: Run) -> None:
    run.set_log("result_90.00_percentile_latency_ns", "1400000000")
    verdict = run.judge()
    assert verdict.verdict == "INVALID"
    assert verdict.latency_p99_ms["end_to_end"].at_percentile == pytest.approx(1400)
    assert texts(verdict).startswith(
        "client-limited: wanted latencies of LoadGen within 15 ms of the client's, "
        "got p90 1400.0 ms by LoadGen, 12.0 ms by the client."
    )


def test_queries_over_the_limit_by_loadgens_clock_count(run: Run) -> None:
    run.set_log("result_overlatency_query_count", "2")
    verdict = run.judge()
    assert verdict.verdict == "INVALID"
    assert texts(verdict).startswith("end_to_end within 1500 ms: wanted at most 1 of 80 over, got 2 over")


def test_exactly_the_limit_is_within_it(run: Run) -> None:
    exact = [order for order, issued in enumerate(ISSUED_MS) if (issued + 1500) - issued == 1500]
    run.late(*exact[:2], by_ms=1500)
    assert run.judge().verdict == "VALID"


def test_loadgens_own_result_is_the_last_reason(run: Run) -> None:
    run.late(3, 4)
    run.set_log("result_validity", '"INVALID"')
    run.set_log("num_errors", "1")
    checks = [reason.check for reason in run.judge().reasons]
    assert checks == ["end_to_end within 1500 ms", "error entries in LoadGen's log", "LoadGen's result"]


@pytest.mark.parametrize(
    ("target_qps", "seconds", "number", "rate"),
    [
        (25, 2, 80, "44"),  # 80 in 2 s are 40 per second
        (100, 2, 80, "150"),  # it planned by 100 and was done in two thirds of the time
        (1.5, 2, 8, "4.4"),
    ],
)
def test_an_offline_run_that_is_too_short_says_which_rate_is_enough(
    target_qps: float, seconds: float, number: int, rate: str
) -> None:
    settings = dataclasses.replace(SETTINGS, scenario="Offline", target_qps=target_qps)
    none, ends_ms = np.zeros(number, dtype=np.int64), np.full(number, seconds * 1000)
    queries = Queries(none, np.zeros(number), ends_ms, ends_ms, none, none, ("",) * number)
    (reason,) = duration(queries, settings)
    assert reason.action == f"set target_qps to about {rate}: LoadGen plans an Offline run by it"


def test_a_server_run_without_room_for_the_luck_of_arrivals_says_how_much_slower_is_enough() -> None:
    """Whole data sets at a rate that just fills the time: the fixed seed ends them at the same second each time."""
    settings = dataclasses.replace(SETTINGS, target_qps=40.96, min_duration_ms=600_000)
    none, ends_ms = np.zeros(100, dtype=np.int64), np.linspace(10.0, 597_000.0, 100)
    queries = Queries(none, np.zeros(100), ends_ms, ends_ms, none, none, ("",) * 100)
    (reason,) = duration(queries, settings)
    assert (reason.check, reason.got) == ("duration", "597.000 s")
    assert reason.action.startswith("set target_qps to 40.551 or less: the queries of the run, whole data sets, ")
    slower = dataclasses.replace(queries, issued_ms=queries.issued_ms, completed_ms=ends_ms * 40.96 / 40.551)
    assert duration(slower, dataclasses.replace(settings, target_qps=40.551)) == []


SPOILED: list[tuple[str, Callable[[Run], object], str]] = [
    ("result", lambda run: run.set_log("result_validity", '"INVALID"'), "LoadGen's result: wanted VALID, got INVALID"),
    ("errors", lambda run: run.set_log("num_errors", "1"), "error entries in LoadGen's log: wanted 0, got 1"),
    (
        "rate",
        lambda run: run.set_log("effective_target_qps", "1"),
        "setting effective_target_qps: wanted 25.0, got 1.",
    ),
    (
        "limit",
        lambda run: run.set_log("effective_target_latency_ns", "10000000"),
        "setting effective_target_latency_ns: wanted 1500000000, got 10000000",
    ),
    (
        "seed",
        lambda run: run.set_log("effective_qsl_rng_seed", "42"),
        "effective_qsl_rng_seed: wanted 2085463073848966840",
    ),
    ("seed2", lambda run: run.set_log("effective_schedule_rng_seed", "16159082839903944937"), "schedule_rng_seed"),
    ("permutation", lambda run: run.set_log("effective_sample_concatenate_permutation", "false"), "got False"),
    ("mode", lambda run: run.set_log("effective_test_mode", '"SubmissionRun"'), "effective_test_mode"),
    (
        "setting not logged",
        lambda run: setattr(run, "log", run.log.replace('"effective_min_duration_ms"', '"effective_min_dur"')),
        "setting effective_min_duration_ms: wanted 3000, got nothing",
    ),
    (
        "audit",
        lambda run: setattr(
            run,
            "log",
            run.log + ':::MLLOG {"key": "warning_generic_message", "value": "Found Audit Config file", '
            '"metadata": {"is_error": false, "is_warning": true}}\n',
        ),
        "audit.config: wanted none, got one was applied",
    ),
    (
        "duration",
        lambda run: setattr(
            run, "rows", [row(n, issued_ms=n, first_token_ms=n + 5, completed_ms=n + 9) for n in range(80)]
        ),
        "duration: wanted 3 s or more, got 0.088 s",
    ),
    ("lost queries", lambda run: run.rows.pop(), "queries that LoadGen issued: wanted 80, got 79 in queries.csv"),
    ("client count", lambda run: run.client.update(requests=81), "got 80 in queries.csv, 81 in client.json"),
    ("equal issue", lambda run: run.change(5, sample=6), "equal issue: wanted 16 samples, equally often"),
    (
        "sample outside",
        lambda run: run.change(5, sample=16),
        "equal issue: wanted 16 samples, equally often, got sample 16, where the last is 15. copy the directory again",
    ),
    (
        "failure",
        lambda run: run.change(5, error="HTTP 500: boom", output_tokens=0),
        "failed requests: wanted 0, got 1 of 80 (sample 5: HTTP 500: boom)",
    ),
    ("no token", lambda run: run.change(5, output_tokens=0), "got 1 without, the first of sample 5"),
    (
        "issue delay",
        lambda run: run.client["issue_delay_ms"].update(p99=15.1),
        "client-limited: wanted a client faster than the system under test, got issue delay p99 15.1 ms",
    ),
    (
        "busy",
        lambda run: run.client["processes"][1].update(cpu_s=3.2),
        "client worker 0 used 91% of a core. raise client_workers",
    ),
    (
        "client says",
        lambda run: run.client.update(client_limited="of a cap of 3: raise it"),
        "got of a cap of 3. raise it",
    ),
    (
        "class",
        lambda run: setattr(run, "result_class", "official"),
        "class of the result: wanted reduced, got official",
    ),
]


@pytest.mark.parametrize(("spoil", "text"), [entry[1:] for entry in SPOILED], ids=[entry[0] for entry in SPOILED])
def test_each_rule_alone_makes_it_invalid(run: Run, spoil: Callable[[Run], object], text: str) -> None:
    spoil(run)
    verdict = run.judge()
    assert verdict.verdict == "INVALID"
    assert text in texts(verdict)
    assert all(reason.action for reason in verdict.reasons)


def test_what_is_just_within_the_rules_is_valid(run: Run) -> None:
    run.client["issue_delay_ms"]["p99"] = 14.9
    run.client["processes"][1]["cpu_s"] = 3.1
    run.client["processes"][0]["cpu_s"] = 9.9
    run.set_log("effective_target_qps", "25.00001")
    assert run.judge().verdict == "VALID"


TRANSFERS: list[tuple[dict[str, object], ResultClass, str]] = [
    ({"remote_prefills": 0}, "reduced", "prompts prefilled remotely: wanted 80 of 80, got 0 of 80"),
    ({"remote_prefills": 79}, "reduced", "got 79 of 80"),
    ({"local_tokens": 1}, "reduced", "prompt tokens that decode workers computed: wanted 0, got 1"),
    ({"external_tokens": 1359}, "reduced", "prompt tokens that came by KV transfer: wanted 1360, got 1359"),
    ({"failed_transfers": 1}, "reduced", "failed KV transfers: wanted 0, got 1"),
    ({"prompt_tokens": 0, "external_tokens": 0}, "reduced", "decode workers took in: wanted 80 or more, got 0"),
    ({"proof": "none"}, "reduced", "proof of disaggregation: wanted engine counters, got none"),
    ({"proof": "routing only"}, "reduced", "requests per role only"),
    ({"proof": "routing only", "prefill_requests": 79}, "rehearsal", "got 79 of 80"),
]


@pytest.mark.parametrize(("changes", "result_class", "text"), TRANSFERS)
def test_disaggregation_is_proved_or_the_run_is_invalid(
    run: Run, changes: dict[str, Any], result_class: ResultClass, text: str
) -> None:
    run.transfer, run.result_class = dataclasses.replace(PROVEN, **changes), result_class
    verdict = run.judge()
    assert verdict.verdict == "INVALID"
    assert text in texts(verdict)


def test_simulated_and_aggregated_runs_need_no_kv_counters(run: Run) -> None:
    run.transfer, run.result_class = ROUTED, "rehearsal"
    assert run.judge().verdict == "VALID"
    run.transfer, run.result_class = TransferEvidence(disaggregated=False, proof="none"), "reduced"
    assert run.judge().verdict == "VALID"
    run.transfer = None
    verdict = run.judge()
    assert verdict.verdict == "VALID"
    assert "nothing is said about disaggregation" in verdict.notes[0]


def test_too_few_queries_say_how_many_are_needed(run: Run) -> None:
    run.settings = dataclasses.replace(SETTINGS, percentile=0.99)
    run.set_log("effective_target_latency_percentile", "0.99")
    verdict = run.judge()
    assert texts(verdict).startswith("too few queries for p99: wanted 459 with none over, got 80.")
    latency = verdict.latency_p99_ms["end_to_end"]
    assert (latency.early_stopping, latency.over_limit_allowed) == (None, -1)


def test_every_failure_is_named_up_to_ten(run: Run) -> None:
    for order in range(12):
        run.change(order, error="reset", output_tokens=0)
    verdict = run.judge()
    assert "got 12 of 80 (sample 0: reset; " in texts(verdict)
    assert "sample 9: reset; and 2 more)" in texts(verdict)
    assert verdict.failed_requests == 12
    assert verdict.completed_qps is not None
    assert verdict.duration_s is not None
    assert verdict.completed_qps == pytest.approx(68 / verdict.duration_s), "LoadGen's figure would count the failed"
    assert verdict.latency_p99_ms["end_to_end"].over_limit == 12


def test_when_all_failed_there_is_no_throughput(run: Run) -> None:
    for order in range(QUERIES):
        run.change(order, error="refused", output_tokens=0, first_token_ms="")
    verdict = run.judge()
    assert (verdict.verdict, verdict.failed_requests) == ("INVALID", QUERIES)
    assert (verdict.completed_qps, verdict.tokens_per_second, verdict.latency_p99_ms) == (None, None, {})
    json.dumps(verdict.as_json(), allow_nan=False)


def token_run(run: Run) -> None:
    """The same queries under limits of TTFT 450 ms and TPOT 40 ms."""
    run.settings = dataclasses.replace(
        SETTINGS, target_latency_ms=None, ttft_ms=450, tpot_ms=40, use_token_latencies=True
    )
    run.set_log("effective_target_latency_ns", "0")
    shown = {"use_token_latencies": "true", "server_ttft_latency": "450000000", "server_tpot_latency": "40000000"}
    for key, value in shown.items():
        run.log += f':::MLLOG {{"key": "requested_{key}", "value": {value}, "metadata": {{}}}}\n'


def test_ttft_and_tpot_are_judged_where_they_count(run: Run) -> None:
    token_run(run)
    verdict = run.judge()
    assert (verdict.verdict, list(verdict.latency_p99_ms)) == ("VALID", ["ttft", "tpot"])
    assert verdict.latency_p99_ms["ttft"].plain == pytest.approx(5)
    assert verdict.latency_p99_ms["tpot"].plain == pytest.approx(1)
    run.late(3, 4, by_ms=5 + 7 * 40)
    assert run.judge().verdict == "VALID"
    run.late(3, 4, by_ms=5 + 7 * 40.1)
    assert texts(run.judge()).startswith("tpot within 40 ms: wanted at most 1 of 80 over, got 2 over")


def test_late_first_tokens_are_judged(run: Run) -> None:
    token_run(run)
    for order in (3, 4):
        run.change(order, first_token_ms=ISSUED_MS[order] + 450.5, completed_ms=ISSUED_MS[order] + 460)
    assert texts(run.judge()).startswith("ttft within 450 ms: wanted at most 1 of 80 over, got 2 over")


@pytest.mark.parametrize("name", [DETAIL, "queries.csv", "client.json"])
def test_a_missing_or_cut_file_is_no_measurement(run: Run, name: str) -> None:
    run.judge()
    path = run.directory / name
    whole = path.read_text()
    for text in (whole[: len(whole) // 2], whole[:-1] if name == "queries.csv" else whole[:-300], None):
        path.unlink() if text is None else path.write_text(text)
        verdict = judge(run.directory, SETTINGS, PROVEN, "reduced", "runs/x")
        assert verdict.verdict == "FAILED"
        assert name in verdict.reasons[0].got
        figures = (verdict.completed_qps, verdict.tokens_per_second, verdict.duration_s, verdict.latency_p99_ms)
        assert figures == (None, None, None, {})


def test_a_run_without_queries_is_no_measurement(run: Run) -> None:
    run.rows = []
    assert run.judge().verdict == "FAILED"


def test_the_last_sample_that_loadgen_passes_is_one_too_many_for_endpoints(run: Run) -> None:
    run.late(3)
    verdict = run.judge()
    assert verdict.verdict == "VALID"
    assert (
        "end_to_end: 1 of 80 over the limit is the last number that LoadGen passes; the endpoints client wants one less"
    ) in verdict.notes


@pytest.mark.parametrize(("tokens", "valid"), [(265, False), (266, True), (323, True), (324, False)])
def test_an_official_accuracy_run_answers_at_the_length_of_the_reference(tokens: int, valid: bool) -> None:  # noqa: FBT001
    rules = benchmark("llama2-70b-99.9")
    found = tokens_out_of_range(float(tokens), rules)
    assert (found is None) == valid
    if found is not None:
        assert found.wanted == "265.005 to 323.895"
        assert tokens_per_sample(float(tokens), rules)[0].startswith("an accuracy run like this one would not pass")
    assert tokens_out_of_range(10_998.9, benchmark("gpt-oss-120b")) is None
    assert tokens_out_of_range(10_999.0, benchmark("gpt-oss-120b")) is not None
    assert tokens_out_of_range(1.0, benchmark("qwen3-vl-235b-a22b")) is None


@pytest.mark.parametrize(("mode", "result_class", "wanted"), [("accuracy", "official", 1), ("accuracy", "reduced", 0), ("performance", "official", 0)])  # fmt: skip
def test_length_of_answers_counts_in_official_accuracy_runs_alone(
    mode: Mode, result_class: ResultClass, wanted: int
) -> None:
    settings = build_settings(benchmark("llama2-70b-99.9"), "Offline", 10, 24_576, mode=mode)
    number = 3
    times = np.arange(number, dtype=np.float64)
    tokens = np.full(number, 150, dtype=np.int64)
    queries = Queries(tokens, times, times, times, tokens, tokens, ("",) * number)
    found = _tokens(queries, settings, result_class)
    noted = _length(queries, settings, result_class)
    assert len(noted) == (mode == "performance"), "a performance run is not judged by it, and told"
    assert _length(queries, settings, "rehearsal") == []
    assert [reason.text() for reason in found] == wanted * [
        (
            "mean output tokens per sample: wanted 265.005 to 323.895, got 150.0. check the chat template, the end-of-text "
            "token and the cap on output tokens"
        )
    ]
