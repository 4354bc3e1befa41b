"""A person's own user.conf: every line has an effect, none lowers the rules, and LoadGen confirms it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from dynamo_mlperf.benchmark.rules import Reduction, benchmark
from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.load.given_conf import with_user_conf
from dynamo_mlperf.load.logs import DETAIL, read_logs
from dynamo_mlperf.load.settings import LoadSettings, build_settings
from dynamo_mlperf.load.user_conf import expected_effective, parse_user_conf, user_conf
from tests.fakes.stub_sut import StubPlan

LLAMA = build_settings(benchmark("llama2-70b-99.9"), "Server", 7, 24_576)
SMALL = build_settings(benchmark("llama2-70b-99.9"), "Server", 200, 64, Reduction(min_duration_s=0.3, samples=32))


def _given(directory: Path, text: str, settings: LoadSettings = LLAMA) -> LoadSettings:
    path = directory / "user.conf"
    path.write_text(text)
    return with_user_conf(settings, path)


def test_what_it_raises_is_in_the_settings(tmp_path: Path) -> None:
    text = (
        "# by hand\n\nllama2-70b.Server.target_qps = 7\n*.Server.min_duration = 900000\n*.Server.tpot_latency = 150\n"
        "*.*.sample_concatenate_permutation = 1\n*.Server.min_query_count = 24577\n*.Server.max_duration = 0\n"
    )
    found = _given(tmp_path, text)
    assert found == dataclasses.replace(LLAMA, min_duration_ms=900_000, tpot_ms=150.0, min_query_count=24_577)
    assert parse_user_conf(user_conf(found), found)["min_duration"] == 900_000


def test_offline_is_judged_by_no_percentile(tmp_path: Path) -> None:
    offline = build_settings(benchmark("llama2-70b-99.9"), "Offline", 7, 24_576)
    with pytest.raises(ConfigError, match="Offline is not judged by it"):
        _given(tmp_path, "*.Offline.target_latency_percentile = 99.9\n", offline)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("*.Server.target_qps=7", "line 2 has no effect: '*.Server.target_qps=7'"),
        ("*.Server.target_qp = 7", "line 2 has no effect: '*.Server.target_qp = 7'"),
        ("llama3.1-8b.Server.target_qps = 7", "the test's model is llama2-70b"),
        ("#note", "a comment needs a blank after #"),
        ("*.Server.min_duration = 600000\n*.Server.min_duration = 700000", "line 3 has no effect, or an earlier one"),
        ("*.Server.target_qps = 8", "target_qps is 8, and this run wants the same as measure.target_qps, 7"),
        ("*.Server.min_duration = 60000", "min_duration is 60000, and this run wants 600000 or more"),
        ("*.Server.ttft_latency = 2001", "ttft_latency is 2001, and this run wants 2000 or less"),
        ("*.Server.ttft_latency = 0", "ttft_latency is 0, and this run wants 2000 or less"),
        ("*.Server.target_latency = 100", "target_latency is 100, and llama2-70b-99.9 Server is not judged by it"),
        ("*.Server.target_latency_percentile = 97", "target_latency_percentile is 97, and this run wants 99 or more"),
        ("*.*.use_token_latencies = 0", "use_token_latencies is 0, and this run wants 1"),
        ("*.Server.target_latency_percentile = 100", "99 or more, and less than 100"),
        ("*.Server.target_latency_percentile = inf", "'inf' is no number"),
        ("*.Server.min_duration = 600_001", "'600_001' is no whole number"),
        ("*.Server.min_query_count = 99999999999999999999", "min_query_count is 1e+20"),
        ("*.Server.max_query_count = 100", "max_query_count is 100, and this run wants 0"),
        ("*.*.performance_sample_count_override = 100", "wants 24576 or more"),
        ("*.*.performance_sample_count_override = 30000", "and the data set has 24576 samples"),
    ],
)
def test_a_line_that_does_nothing_or_lowers_the_rules_is_refused(tmp_path: Path, line: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _given(tmp_path, f"# mine\n{line}\n")
    assert text in caught.value.what
    assert str(tmp_path / "user.conf") in caught.value.what


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        with_user_conf(LLAMA, tmp_path / "none")


@pytest.mark.loadgen
def test_loadgen_confirms_every_line(tmp_path: Path) -> None:
    settings = _given(
        tmp_path,
        "*.Server.min_query_count = 120\n*.Server.ttft_latency = 1500\n*.*.performance_sample_count_override = 64\n",
        SMALL,
    )
    logs = StubPlan(settings.loadgen_model, user_conf(settings), 64).run(tmp_path / "logs")
    values = read_logs(logs).values
    wanted = expected_effective(settings)
    assert {key: values[key] for key in wanted} == pytest.approx(wanted)
    assert (wanted["effective_min_query_count"], wanted["requested_server_ttft_latency"]) == (120, 1_500_000_000)


@pytest.mark.loadgen
@pytest.mark.parametrize(
    ("line", "key", "wanted"),
    [
        ("*.Server.target_qps=7", "effective_target_qps", 1),
        ("*.Server.target_qp = 7", "effective_target_qps", 1),
        ("llama3.1-8b.Server.target_qps = 7", "effective_target_qps", 1),
        ("#note", "effective_target_qps", 1),
    ],
)
def test_loadgen_itself_says_nothing_of_such_a_line(tmp_path: Path, line: str, key: str, wanted: float) -> None:
    """Why they are refused: the run goes on with the default, and no error entry tells of it."""
    conf = (
        f"{line}\n*.Server.min_duration = 1\n*.Server.min_query_count = 1\n*.*.performance_sample_count_override = 1\n"
    )
    logs = StubPlan("llama2-70b", conf, 1).run(tmp_path / "logs")
    log = read_logs(logs)
    assert (log.values[key], log.error_count, (logs / DETAIL).exists()) == (wanted, 0, True)
