"""Evidence that was put together from other tests, or edited in one place alone, does not pass."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dynamo_mlperf.benchmark.rules import benchmark
from dynamo_mlperf.submission import build
from dynamo_mlperf.submission.finding import RefusedError
from dynamo_mlperf.submission.gate import check_tree
from dynamo_mlperf.submission.package import package
from dynamo_mlperf.submission.proofs import compliance_findings
from dynamo_mlperf.submission.results import collect
from dynamo_mlperf.submission.secret_scan import secrets_in
from tests.submission.conftest import request_of
from tests.submission.made_runs import Made, answers, make_run, score

if TYPE_CHECKING:
    from collections.abc import Callable

LOG = "mlperf_log_accuracy.json"


def _scores_gone(run: Path) -> None:
    path = run / "accuracy" / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "scores": {}}))


def _rescored(text: str) -> Callable[[Path], None]:
    """Another log with scores and a hash that are its own."""

    def spoil(run: Path) -> None:
        (run / "accuracy" / LOG).write_text(text)
        score(run / "accuracy", Made(scenario="Server"))

    return spoil


def _another_mean(run: Path) -> None:
    for name in ("accuracy.txt", "result.json"):
        path = run / "accuracy" / name
        path.write_text(path.read_text().replace("3886.0", "3800.0"))


def _audit(text: str | None) -> Callable[[Path], None]:
    def spoil(run: Path) -> None:
        used = run / "TEST06" / "audit.config.used"
        used.unlink()
        if text is not None:
            used.write_text(text)

    return spoil


def _client(key: str, value: Any) -> Callable[[Path], None]:
    def spoil(run: Path) -> None:
        path = run / "TEST06" / "client.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))

    return spoil


def _other_lengths(place: Path) -> tuple[Path, str]:
    """TEST09 with one answer left out."""
    run = make_run(place, benchmark="gpt-oss-120b", scenario="Server", tests=("compliance",))
    log = run / "TEST09" / LOG
    with log.open("r+") as file:
        text = file.read()
        file.seek(0)
        file.write(text[: text.rindex(",\n{")] + "\n]\n")
        file.truncate()
    return run, "answers: wanted 6396, as queries.csv has, got 6395"


FORGED = {
    "scores that result.json does not have": (_scores_gone, "exact_match: wanted None (result.json), got 81.0"),
    "a part of the answers": (_rescored(answers(3, 3886, as_text=True)), "answers: wanted 4388, as queries.csv has"),
    "answers of another model": (
        _rescored(answers(4388, 1278, as_text=True)),
        "answers: wanted those that queries.csv counted, got 4388 others, the first to sample 0 of 1278 tokens",
    ),
    "an answer twice": (
        _rescored(answers(4388, 3886, as_text=True).replace('"qsl_idx": 9,', '"qsl_idx": 8,')),
        "got 1 others, the first to sample 8",
    ),
    "another mean": (_another_mean, "TOKENS_PER_SAMPLE: wanted 3886, the mean of the log, got 3800"),
    "no audit.config": (_audit(None), "wanted the audit.config of TEST06, got none"),
    "another audit.config": (_audit("*.*.mode = 2\n"), "wanted the audit.config of TEST06, got another"),
    "a client's account of another kind": (_client("failed", None), "wanted whole records, got TypeError"),
    "a client's account too deep": (
        lambda run: (run / "TEST06" / "client.json").write_text("[" * 100_000),
        "wanted whole records, got RecursionError",
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_logs_scores_and_counts_bear_each_other_out(base: Path, name: str) -> None:
    spoil, said = FORGED[name]
    spoil(base / "Server")
    with pytest.raises(RefusedError) as caught:
        package(request_of(base))
    assert said in str(caught.value)


def test_a_part_of_the_lengths_is_not_all_of_them(tmp_path: Path) -> None:
    run, said = _other_lengths(tmp_path / "run")
    results, _ = collect((run,))
    found = compliance_findings(results[0], benchmark("gpt-oss-120b"))
    assert [said in finding.text() for finding in found] == [True]


def test_one_test_is_not_two_results(base: Path, packaged: Path) -> None:
    same = base / "Server" / "TEST06" / "mlperf_log_detail.txt"
    shutil.copy(base / "Server" / "loadgen" / "mlperf_log_detail.txt", same)
    with pytest.raises(RefusedError, match="evidence: wanted a test of its own, got the same as"):
        package(request_of(base))
    results = packaged / "closed/ACME/results/two-nodes/deepseek-r1"
    log = "performance/run_1/mlperf_log_detail.txt"
    shutil.copy(results / "Server" / log, results / "Offline" / log)
    (results / "Server" / "more").symlink_to(results / "Offline")
    said = [finding.text() for finding in check_tree(packaged, "v6.1").findings]
    assert any("evidence: wanted a test of its own, got the same as" in line for line in said)
    assert any("files of the tree's own, got a link" in line for line in said)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("serve --api-key abcdefgh12345678", True),
        ("serve --hf-token=abcdefgh12345678", True),
        ("  db_password: hunter2hunter2", True),
        ('{"access_token": "abcdefgh12345678"}', True),
        ("serve --tokenizer /models/llama-2-70b --max-num-batched-tokens 16384", False),
        ('{"token_count": 3886, "first_token_latency": 123456789012}', False),
        ("api_key: ${MY_API_KEY}  password: null", False),
    ],
)
def test_secrets_in_small_letters_are_found_too(tmp_path: Path, text: str, found: bool) -> None:  # noqa: FBT001
    (tmp_path / "file").write_text(text)
    assert bool(secrets_in([tmp_path / "file"], {})) == found


def test_what_a_killed_call_left_is_taken_up(base: Path) -> None:
    request = request_of(base)
    assert package(request).changed
    left = base / ".tree.package-killed"
    left.mkdir()
    request.out.rename(left / "before")
    assert not package(request).changed, "the tree that was being replaced is back"
    assert not left.exists()


def test_a_signal_leaves_nothing_and_another_call_is_left_alone(base: Path) -> None:
    """A call that was ended removes what it made; what a living one makes is not ours to remove."""
    program = (
        "import sys, pathlib, time\n"
        "from dynamo_mlperf.cli import main\n"
        "from dynamo_mlperf.submission import package\n"
        "from dynamo_mlperf.submission import build\n"
        "def wait(part, content):\n    print('begun', flush=True)\n    time.sleep(60)\n"
        "build._fill = wait\n"
        "package.admit = lambda *a, **k: ([], [])\n"
        "main(sys.argv[1:])\n"
    )
    argv = ["package", *map(str, request_of(base).runs), "--system", str(base / "system.yaml")]
    argv += ["--submitter", "ACME", "--out", str(base / "tree")]
    with subprocess.Popen([sys.executable, "-c", program, *argv], stdout=subprocess.PIPE, text=True) as living:
        assert living.stdout is not None
        assert living.stdout.readline() == "begun\n"
        made = list(base.glob(".tree.package-*"))
        build._take_up(base / "tree", ".tree.package-")
        assert list(base.glob(".tree.package-*")) == made != []
        living.send_signal(signal.SIGTERM)
        assert living.wait(timeout=60) == 143
    assert not list(base.glob(".tree.package-*"))
