"""A language model judged by TTFT and TPOT through the whole chain: text prompts, real Dynamo, simulated engines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dynamo_mlperf.load.logs import read_logs
from tests.job.chain import Place

pytestmark = [pytest.mark.dynamo, pytest.mark.loadgen]

MEASURE = {
    "benchmark": "llama2-70b-99.9",
    "scenario": "Server",
    "target_qps": 5,
    "dataset": "assets/tiny-prompts",
    "user_conf": "mine.conf",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("chain"))


def test_llama2_server_is_rehearsed_with_token_latencies_and_judged_again_from_its_directory(place: Place) -> None:
    (place.root / "mine.conf").write_text("llama2-70b.Server.min_duration = 4000\n*.Server.ttft_latency = 1900\n")
    topology = place.topology(
        {"measure": MEASURE, "reduced": {"latency_limit_ms": None}}, role={"args": {"speedup-ratio": 1000}}
    )
    with place.run(topology) as run:
        ended = run.end()
        verdict = run.verdict()
    # A busy machine may hold up the client and the answers, and the run says so: no other reason is accepted.
    busy = {"client-limited", "ttft within 1900 ms", "tpot within 200 ms", "LoadGen's result"}
    assert {reason["check"] for reason in verdict["reasons"]} <= busy, ended.stderr
    assert ended.status == (5 if verdict["reasons"] else 0)
    assert (verdict["class"], verdict["benchmark"], verdict["requests"]) == ("rehearsal", "llama2-70b-99.9", 44)
    limits = {name: entry["limit"] for name, entry in verdict["latency_p99_ms"].items()}
    assert limits == {"ttft": 1900, "tpot": 200}, "his own user.conf made one of them stricter"
    assert verdict["tokens_per_second"] == pytest.approx(1024 * 44 / verdict["duration_s"]), (
        "the mocker's answers are long"
    )
    values = read_logs(run.paths.load).values
    assert values["requested_use_token_latencies"] is True
    assert values["effective_min_duration_ms"] == 4000
    judged = place.command("judge", str(run.paths.root), "--json")
    assert (judged.returncode, json.loads(judged.stdout)) == (ended.status, json.loads(run.paths.verdict.read_text()))


@pytest.mark.parametrize(
    ("measure", "text"),
    [
        (
            {"dataset": "assets/tiny-product-catalogue"},
            "holds catalogue.jsonl, and llama2-70b-99.9 takes prompts.jsonl",
        ),
        ({"user_conf": "low.conf"}, "min_duration is 1000, and this run wants 3000 or more"),
        ({"round": "v6.0"}, "the LoadGen wheel has the seeds of round v6.1 (qsl 2085463073848966840"),
        ({"round": "v5.0"}, "no rules of round 'v5.0'; there are v6.1, v6.0, v5.1"),
    ],
)
def test_what_cannot_be_measured_so_is_refused_before_anything_starts(
    place: Place, measure: dict[str, str], text: str
) -> None:
    Path(place.root / "mine.conf").write_text("*.Server.min_query_count = 50\n")
    Path(place.root / "low.conf").write_text("*.Server.min_duration = 1000\n")
    topology = place.topology({"measure": {**MEASURE, **measure}, "reduced": {"latency_limit_ms": None}})
    with place.run(topology) as run:
        ended = run.end()
    assert ended.status == (3 if "seeds" in text else 2)
    assert text in " ".join(ended.stderr.split())
    assert not run.paths.root.exists()
