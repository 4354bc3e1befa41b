"""A full run of an earlier search or sweep whose records spoil the result is refused before anything starts."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest

from dynamo_mlperf.benchmark.rules import Reduction, benchmark
from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.job.confirmed import check_confirmed_probes, check_finished_split, damage_of
from dynamo_mlperf.job.sweep_records import SweepRecords, check_takeover
from dynamo_mlperf.load.settings import build_settings
from dynamo_mlperf.topology.role_splits import RoleCount, RoleSplit
from tests.fakes.oracle import Script
from tests.load.test_judge_directory import ROUTED, run_to_judge

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.loadgen

SPLIT = RoleSplit("1P1D", (RoleCount("prefill", 1, 1), RoleCount("decode", 1, 1)))
KNOWN = {"rate_qps": 40.0, "confirmed_in": "probe-001"}
TRIES = 5


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run that is VALID; one that a busy machine spoils is made anew."""
    lowered = Reduction(min_duration_s=0.5, samples=64, percentile=90, latency_limit_ms=5000)
    settings = build_settings(benchmark("qwen3-vl-235b-a22b"), "Interactive", 40, 64, lowered)
    for _ in range(TRIES):
        root = tmp_path_factory.mktemp("valid")
        run_to_judge(root, settings, Script(ttft_ms=20, tpot_ms=1, tokens=3), [f"sample {n}" for n in range(64)])
        evidence = {"transfer": asdict(ROUTED), "stragglers": {"decode-1": 1.7}}
        (root / "evidence.json").write_text(json.dumps(evidence))
        (root / "metrics").mkdir()
        if damage_of(root) is None:
            return root
    raise AssertionError(damage_of(root))


@pytest.fixture
def split(valid: Path, tmp_path: Path) -> Path:
    """A finished split's folder whose answer is that run."""
    folder = tmp_path / "old" / "1P1D"
    shutil.copytree(valid, folder / "probe-001")
    for name in ("plan.json", "evidence.json", "identity.json"):
        (folder / name).write_text("{}")
    (folder / "split.json").write_text(json.dumps(KNOWN))
    (folder / "probe-001" / "record.json").write_text('{"final": {"valid": true}}')
    return folder


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def emptied(path: Path) -> None:
    path.write_text("{}")


def without_numbers(path: Path) -> None:
    evidence = json.loads(path.read_text())
    evidence["transfer"]["prefill_requests"] = float("nan")
    path.write_text(json.dumps(evidence))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("evidence.json", cut),
        ("evidence.json", emptied),
        ("evidence.json", without_numbers),
        ("measure.json", cut),
        ("loadgen/queries.csv", cut),
        ("loadgen/client.json", emptied),
        ("loadgen", shutil.rmtree),
        ("metrics", shutil.rmtree),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_run_that_makes_no_result_any_more_is_refused_with_what_to_remove(
    split: Path, name: str, damage: Callable[[Path], None]
) -> None:
    check_finished_split(split, KNOWN)
    check_confirmed_probes(split)
    probe = split / "probe-001"
    damage(probe / name)
    with pytest.raises(ConfigError, match=str(probe)) as refused:
        check_finished_split(split, KNOWN)
    assert refused.value.action == f"remove {split}/split.json and {probe}; its split is then measured again"
    with pytest.raises(ConfigError, match=str(probe)) as refused:
        check_confirmed_probes(split)
    assert refused.value.action == f"remove {probe}: the search then goes on without that probe"
    shutil.rmtree(probe)
    check_confirmed_probes(split)


def test_an_aborted_probe_needs_no_evidence(split: Path) -> None:
    shutil.rmtree(split / "probe-001" / "loadgen")
    (split / "probe-001" / "record.json").write_text('{"final": null}')
    check_confirmed_probes(split)


@pytest.mark.parametrize("name", ["plan.json", "evidence.json"])
@pytest.mark.parametrize("text", [None, "", "[1, 2]"])
def test_a_split_whose_own_records_are_damaged_is_refused_before_it_wins(
    split: Path, name: str, text: str | None
) -> None:
    (split / name).unlink()
    if text is not None:
        (split / name).write_text(text)
    with pytest.raises(ConfigError, match=name) as refused:
        check_finished_split(split, KNOWN)
    assert refused.value.action == f"remove {split}/split.json; its split is then measured again"
    check_finished_split(split, KNOWN | {"rate_qps": None})


def test_a_cut_split_whose_search_could_not_go_on_is_refused(split: Path) -> None:
    (split / "split.json").unlink()
    (split / "search.json").write_text('{"model.name": "ti')
    with pytest.raises(ConfigError, match=r"search\.json is no JSON") as refused:
        check_takeover(split.parent, {"1P1D": {}})
    assert refused.value.action == f"remove {split}; its split is then measured anew"
    (split / "search.json").write_text('{"model.name": "other"}')
    with pytest.raises(ConfigError, match=r"measured with something else: model\.name 'other' there"):
        check_takeover(split.parent, {"1P1D": {}})


def test_what_nobody_knows_the_identity_of_is_not_taken_over(split: Path) -> None:
    wanted: dict[str, dict[str, Any]] = {"1P1D": {}}
    check_takeover(split.parent, wanted)
    (split / "identity.json").write_text("{")
    with pytest.raises(ConfigError, match=r"identity\.json is no JSON") as refused:
        check_takeover(split.parent, wanted)
    assert refused.value.action == f"remove {split}; its split is then measured anew"
    (split / "identity.json").unlink()
    with pytest.raises(ConfigError, match="nobody can tell what was measured"):
        check_takeover(split.parent, wanted)
    shutil.rmtree(split)
    check_takeover(split.parent, wanted)


def test_a_valid_run_at_a_rate_is_taken_over_while_it_is_whole(split: Path, tmp_path: Path) -> None:
    for name in ("plan.json", "evidence.json", "split.json"):
        (split / name).unlink()
    whole, damaged = split / "rate-001", split / "rate-002"
    (split / "probe-001").rename(whole)
    verdict = {"verdict": "VALID", "target_qps": 40.0, "latency_p99_ms": {}}
    (whole / "verdict.json").write_text(json.dumps(verdict))
    shutil.copytree(whole, damaged)
    cut(damaged / "evidence.json")
    records = SweepRecords(tmp_path / "new", {})
    records.take_over(split.parent, (SPLIT,), {})
    assert [one.name for one in records.folder(SPLIT).iterdir()] == ["rate-001"]
