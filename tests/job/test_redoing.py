"""A search that has its answer, resumed with other settings: refused with what differs, or looked for again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.job.redoing import changes, search_changes, sought
from dynamo_mlperf.job.resuming import check_same
from dynamo_mlperf.topology.spec import Topology, parse_topology
from tests.topology.topology_texts import role, topology_text

if TYPE_CHECKING:
    from pathlib import Path

IDENTITY: dict[str, Any] = {"engine": "mocker"}


def searched(search: str, more: str = "") -> Topology:
    text = topology_text(engine="mocker", prefill=role(4, 2), decode=role(8))
    return parse_topology(f"{text}search: {search}\n{more}")


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A search from 2 on, located within 5 %."""
    (tmp_path / "search.json").write_text(json.dumps(IDENTITY))
    (tmp_path / "settings.json").write_text(json.dumps({"tolerance": 0.05, "low": 2.0, "high": None, "overhead_s": 10}))
    (tmp_path / "answer.json").write_text(json.dumps({"answer_qps": 12.5, "located": True}))
    return tmp_path


def changed(old: Path, search: str) -> list[str]:
    return search_changes(old / "settings.json", searched(search))


def test_an_answer_found_with_another_tolerance_is_refused_until_it_is_to_be_redone(old: Path) -> None:
    differ = changed(old, "{low: 2, tolerance: 0.01}")
    with pytest.raises(ConfigError, match=r"answer, 12.5 QPS, found with other settings: search.tolerance 0.05 there, 0.01 now") as refused:  # fmt: skip
        check_same(old, IDENTITY, differ)
    assert "--redo" in refused.value.action
    check_same(old, IDENTITY, differ, redo=True)
    with pytest.raises(ConfigError, match="something else: engine"):
        check_same(old, {"engine": "vllm"}, differ, redo=True)


def test_an_answer_found_with_the_same_settings_has_nothing_to_redo(old: Path) -> None:
    same = changed(old, "{low: 2, tolerance: 0.05, time_budget_s: 100}")
    assert same == []
    for redo in (False, True):
        with pytest.raises(ConfigError, match="has its answer: 12"):
            check_same(old, IDENTITY, same, redo=redo)


@pytest.mark.parametrize("settings", [None, "{", "[]", "[" * 9999, b"\xff"])
def test_an_answer_whose_settings_are_not_known_is_kept_no_more_than_a_splits(
    old: Path, settings: str | bytes | None
) -> None:
    path = old / "settings.json"
    path.unlink()
    if settings is not None:
        path.write_bytes(settings if isinstance(settings, bytes) else settings.encode())
    differ = changed(old, "{low: 2, tolerance: 0.05}")
    assert differ == changes(None, {}, located=True)
    with pytest.raises(ConfigError, match=r"answer, 12.5 QPS, found with other settings: .* not recorded") as refused:
        check_same(old, IDENTITY, differ)
    assert "--redo" in refused.value.action
    check_same(old, IDENTITY, differ, redo=True)


def test_a_search_without_an_answer_goes_on_with_other_settings(old: Path) -> None:
    (old / "answer.json").unlink()
    check_same(old, IDENTITY, changed(old, "{low: 3, tolerance: 0.01}"))


def test_what_an_answer_depends_on_is_the_rates_or_the_searchs_settings() -> None:
    assert sought(searched("{low: 2}")) == {
        "search.low": 2.0,
        "search.high": None,
        "search.tolerance": 0.01,
        "search.time_budget_s": None,
    }
    assert sought(searched("{}", "sweep: {rates: [5, 3]}\n")) == {"sweep.rates": [3.0, 5.0]}
    assert sought(searched("{}", "sweep: {time_budget_s: 9}\n"))["sweep.time_budget_s"] == 9.0
