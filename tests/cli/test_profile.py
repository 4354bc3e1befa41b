from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from dynamo_mlperf.cli.profile import command
from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.load.account import QUERIES_HEADER
from dynamo_mlperf.load.queries import CUT_FILE, Queries
from dynamo_mlperf.tuning.profiles import read_profile
from tests.report.run_builder import build_run
from tests.tuning.test_profile_fit import busy_run, idle_run, prefill_law


def call(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments, catch_exceptions=False)


def write_queries(path: Path, queries: Queries) -> None:
    columns = (queries.samples, queries.issued_ms, queries.first_token_ms, queries.completed_ms)
    rows = zip(*columns, queries.output_tokens, queries.prompt_tokens, strict=True)
    lines = [QUERIES_HEADER, *(",".join(map(str, (order, *row, ""))) for order, row in enumerate(rows))]
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    """An idle run, and one with a busy probe of a search; the law is that of two workers, the plan has four and eight."""
    idle, busy = build_run(tmp_path / "idle"), build_run(tmp_path / "busy")
    write_queries(idle.load / "queries.csv", idle_run().queries)
    write_queries(busy.load / "queries.csv", busy_run(12).queries)
    probe = busy.root / "search" / "probe-001" / "loadgen"
    probe.mkdir(parents=True)
    write_queries(probe / "queries.csv", busy_run(40).queries)
    return [str(idle.root), str(busy.root)]


def test_a_profile_is_fitted_to_runs_and_says_what_it_saw(runs: list[str], tmp_path: Path) -> None:
    out = tmp_path / "mine.npz"
    done = call(*runs, "--out", str(out), "--json")
    assert done.exit_code == 0
    found = read_profile(out)
    for tokens in (1_000.0, 8_000.0):
        assert found.prefill_at(tokens) == pytest.approx(float(prefill_law(np.array(tokens))), rel=0.02)
    assert found.facts["origin"] == "measured"
    assert found.facts["source"] == "idle, busy, busy/probe-001"
    assert found.facts["tensor_parallel"] == {"prefill": 2, "decode": 1}
    assert found.facts["seen"]["batch"][1] == pytest.approx(40 * 2 / 8, rel=0.02)  # over eight decode workers
    assert json.loads(done.stdout.splitlines()[-1])["facts"]["origin"] == "measured"


def test_probes_of_a_sweep_count_with_their_own_splits_workers(tmp_path: Path) -> None:
    """A whole probe and one that was stopped; a split of another TP is another deployment."""
    run = build_run(tmp_path / "swept")
    write_queries(run.load / "queries.csv", idle_run().queries)
    for split, ranks, name in (("2P2D", 1, "queries.csv"), ("2P4D", 1, CUT_FILE), ("2P1x2D", 2, "queries.csv")):
        place = run.root / "sweep" / split / "probe-001" / "loadgen"
        place.mkdir(parents=True)
        write_queries(place / name, busy_run(40).queries)
        counts = (("prefill", 2, 2), ("decode", 4 if split == "2P4D" else 2, ranks))
        workers = [{"role": role, "ranks": [{}] * many} for role, count, many in counts for _ in range(count)]
        (place.parents[1] / "plan.json").write_text(json.dumps({"workers": workers}))
    done = call(str(run.root), "--out", str(tmp_path / "mine.npz"), "--json")
    facts = json.loads(done.stdout.splitlines()[-1])["facts"]
    assert facts["source"] == "swept, swept/2P2D/probe-001, swept/2P4D/probe-001"
    assert facts["seen"]["batch"] == pytest.approx([1.0, 40.0], rel=0.02), "40 on each of two workers"
    (run.root / "sweep" / "2P2D" / "plan.json").write_text("{")
    with pytest.raises(ConfigError, match=r"plan\.json cannot be read"):
        call(str(run.root), "--out", str(tmp_path / "mine.npz"))


def test_runs_of_two_deployments_make_no_profile(runs: list[str], tmp_path: Path) -> None:
    other = Path(runs[1]) / "topology.yaml"
    other.write_text(
        other.read_text().replace(
            "decode:  {workers: 8, tensor_parallel: 1", "decode:  {workers: 4, tensor_parallel: 2"
        )
    )
    with pytest.raises(ConfigError, match="one profile per deployment"):
        call(*runs, "--out", str(tmp_path / "mine.npz"))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "wanted one of RUN_DIR"),
        (["--list", "--from", "analytic"], "wanted one of RUN_DIR"),
        (["--from", "analytic"], "no --out NAME.npz"),
        (["--from", "analytic", "--out", "x.json"], "no --out NAME.npz"),
        (["--from", "analytic", "--out", "x.npz"], "--gpu None is none"),
        (
            ["--from", "analytic", "--gpu", "gb200", "--model", "mine", "--out", "x.npz"],
            "the shape of mine is not known",
        ),
        (["--from", "analytic", "--gpu", "gb200", "--precision", "int3", "--out", "x.npz"], "--precision int3 is none"),
        (["--check", "no.npz"], "no.npz: No such file"),
        (["no-run", "--out", "x.npz"], "no-run is not a directory"),
    ],
)
def test_what_makes_no_profile_is_refused(arguments: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        call(*arguments)


def test_a_run_that_did_not_measure_is_refused(tmp_path: Path) -> None:
    run = build_run(tmp_path / "failed", "failed")
    with pytest.raises(ConfigError, match=r"holds no loadgen/queries\.csv"):
        call(str(run.root), "--out", str(tmp_path / "x.npz"))


def test_a_roofline_is_written_with_its_origin_and_the_shipped_ones_are_listed(tmp_path: Path) -> None:
    out = tmp_path / "roof.npz"
    done = call("--from", "analytic", "--gpu", "mi355x", "--tensor-parallel", "8", "--out", str(out))
    assert done.output.splitlines()[-4].startswith("qwen3") or "analytic" in done.output
    assert read_profile(out).facts["origin"] == "analytic"
    assert call("--check", str(out)).exit_code == 0
    listed = call("--list").output.splitlines()
    assert len(listed) >= 6
    assert all("aiconfigurator" in line for line in listed)
