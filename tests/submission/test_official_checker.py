"""The official checker from a checkout: its verdict, and a crash told apart from it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.submission.gate import check_tree
from dynamo_mlperf.submission.official import MODULE, run_official
from dynamo_mlperf.submission.package import PackageRequest, package
from tests.submission.made_runs import description, log_line, make_run, set_values
from tests.submission.test_package_refusals import edit

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynamo_mlperf.submission.official import Official

ROW = 'print("Organization,Scenario", file=csv); print("ACME,Server", file=csv)'
OPEN = 'import sys\ncsv = open(sys.argv[sys.argv.index("--csv") + 1], "w")\n'


def stand_in(place: Path, program: str) -> Path:
    """A checkout whose checker is a program of the test's."""
    path = place / "any name" / MODULE
    path.parent.mkdir(parents=True)
    path.write_text(program)
    return place / "any name"


def ask(tmp_path: Path, program: str, deadline_s: float = 60) -> Official:
    (tmp_path / "tree" / "closed").mkdir(parents=True)
    return run_official(tmp_path / "tree", stand_in(tmp_path, program), "v6.1", ["ACME/x/y/Server"], deadline_s)


def test_its_ok_counts_when_every_result_passed(tmp_path: Path) -> None:
    told = ask(tmp_path, f'{OPEN}{ROW}\nprint(sys.argv); print("INFO SUMMARY: submission looks OK")')
    assert (told.outcome, told.errors, told.rows[0]["Scenario"]) == ("pass", (), "Server")


@pytest.mark.parametrize(
    ("program", "outcome", "said"),
    [
        (f'{OPEN}print("SUMMARY: submission looks OK")', "fail", "it passed 0 results of 1"),
        (
            f'{OPEN}print("[x ERROR] NoResults a/b"); print("SUMMARY: submission has errors"); sys.exit(1)',
            "fail",
            "NoResults a/b",
        ),
        ('raise TypeError("NoneType is not iterable")', "crashed", "TypeError: NoneType is not iterable"),
        ("raise SystemExit(0)", "crashed", "exit status 0"),
        ('print("SUMMARY: submission looks OK"); raise SystemExit(1)', "crashed", "exit status 1"),
        ("import os; os.kill(os.getpid(), 9)", "crashed", "exit status -9"),
    ],
)
def test_anything_but_its_own_two_endings_is_a_crash(tmp_path: Path, program: str, outcome: str, said: str) -> None:
    told = ask(tmp_path, program)
    assert told.outcome == outcome
    assert said in "\n".join(told.errors)


def test_a_checker_that_hangs_has_crashed(tmp_path: Path) -> None:
    told = ask(tmp_path, "import time; time.sleep(60)", deadline_s=1)
    assert told.outcome == "crashed"
    assert "did not answer in 1 s" in told.errors[0]


def test_it_is_told_the_round_and_reached_whatever_lies_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its default is v5.1; a folder called inference where the person stands must not be taken for the checkout."""
    (tmp_path / "here" / "inference").mkdir(parents=True)
    (tmp_path / "here" / "inference" / "__init__.py").write_text("raise RuntimeError('the wrong one')")
    monkeypatch.chdir(tmp_path / "here")
    told = ask(
        tmp_path,
        f'{OPEN}{ROW}\nassert sys.argv[sys.argv.index("--version") + 1] == "v6.1"\nprint("SUMMARY: submission looks OK")',
    )
    assert told.outcome == "pass"
    with pytest.raises(ConfigError, match="is no checkout of mlcommons/inference") as caught:
        run_official(tmp_path / "tree", tmp_path / "here", "v6.1", [])
    assert "git clone" in caught.value.action


# -- the real one --


@pytest.fixture
def checkout() -> Path:
    return Path(os.environ["DYNAMO_MLPERF_CHECKER"])


def official(tree: Path, checkout: Path) -> Official:
    return run_official(tree, checkout, "v6.1", check_tree(tree, "v6.1").results)


ALL = (
    ("qwen3-vl-235b-a22b", "endpoints"),
    ("gpt-oss-120b", "loadgen"),
    ("deepseek-r1", "loadgen"),
    ("llama2-70b-99.9", "loadgen"),
)


@pytest.mark.checker
@pytest.mark.parametrize("engine", ["vllm", "mocker"])
def test_trees_of_every_benchmark_pass(tmp_path: Path, checkout: Path, engine: str) -> None:
    """As measurements and as a rehearsal, which passes as a form alone."""
    rehearsal = engine == "mocker"
    runs = tuple(
        make_run(tmp_path / f"{name}-{scenario}", benchmark=name, scenario=scenario, client=client, engine=engine)
        for name, client in ALL
        for scenario in ("Offline", "Server", "Interactive")
    )
    submitter = "REHEARSAL" if rehearsal else "ACME"
    tree = package(PackageRequest(runs, description(tmp_path), submitter, tmp_path / "tree", rehearsal)).tree
    told = official(tree, checkout)
    assert (told.outcome, told.errors) == ("pass", ())
    assert sorted({(row["MlperfModel"], row["Scenario"]) for row in told.rows}) == sorted(
        (name, scenario) for name, _ in ALL for scenario in ("Offline", "Server", "Interactive")
    )
    assert {row["total_accelerators"] for row in told.rows} == {"8"}
    assert bool(check_tree(tree, "v6.1").findings) == rehearsal


@pytest.mark.checker
@pytest.mark.parametrize("name", ["gpt-oss-120b", "deepseek-r1"])
def test_endpoints_form_of_the_language_models_passes(tree_of: Callable[..., Path], checkout: Path, name: str) -> None:
    tree = tree_of("Offline", "Server", "Interactive", benchmark=name, client="endpoints")
    assert official(tree, checkout).outcome == "pass"


@pytest.mark.checker
def test_what_it_lets_through_our_gate_does_not(tree_of: Callable[..., Path], checkout: Path) -> None:
    tree = tree_of("Offline", "Interactive")
    logs = tree / "closed/ACME/results/two-nodes/deepseek-r1/Interactive/performance/run_1"
    set_values(logs, requested_server_tpot_latency=80_000_000)
    shares = ("99__00", "99__90")
    set_values(logs, **{f"result_time_per_output_token_{share}_percentile_ns": 40_000_000 for share in shares})
    set_values(logs, result_time_to_output_token_max=40_000_000)
    with (logs / "mlperf_log_detail.txt").open("a") as log:
        log.write(log_line("error_runtime", "lost", error=True) + "\n")
    assert official(tree, checkout).outcome == "pass", "an error, and an Interactive run under Server limits"
    found = "\n".join(finding.text() for finding in check_tree(tree, "v6.1").findings)
    assert "error entries in LoadGen's log" in found
    assert "requested_server_tpot_latency: wanted 15000000 or less" in found


@pytest.mark.checker
def test_what_it_lets_through_of_endpoints_our_gate_does_not(tree_of: Callable[..., Path], checkout: Path) -> None:
    tree = tree_of("Offline", "Server", benchmark="deepseek-r1", client="endpoints")
    place = tree / "closed/ACME/results/two-nodes/deepseek-r1/Server"
    edit(place / "performance/result_summary.json", n_samples_failed=100)
    edit(place / "accuracy/accuracy_results.json", accuracy_scores=[{"score": 1.0, "total_samples": 4388}])
    assert official(tree, checkout).outcome == "pass", "failed samples, and an accuracy of 1 %"
    found = "\n".join(finding.text() for finding in check_tree(tree, "v6.1").findings)
    assert "failed requests: wanted 0, got 100" in found
    assert "exact_match: wanted >= 80.544618" in found


@pytest.mark.checker
def test_an_unknown_model_makes_it_crash_and_that_is_no_verdict(packaged: Path, checkout: Path) -> None:
    """R15."""
    results = packaged / "closed/ACME/results/two-nodes"
    shutil.copytree(results / "deepseek-r1", results / "llama9-1b")
    told = official(packaged, checkout)
    assert told.outcome == "crashed"
    assert any("Error" in line for line in told.errors)


@pytest.mark.checker
def test_a_failing_tree_fails_with_its_errors(packaged: Path, checkout: Path) -> None:
    edit(packaged / "closed/ACME/systems/two-nodes.json", cooling="")
    told = official(packaged, checkout)
    assert told.outcome == "fail"
    assert any("cooling" in line for line in told.errors)
