"""What a file says about a sweep, on another node count and beside a search."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.job.predictions import predicted_qps, prediction_file, predictions_of, starts_of
from dynamo_mlperf.job.sweep_start import sweep_start
from dynamo_mlperf.topology.capacity import scaled
from dynamo_mlperf.topology.spec import Topology, parse_topology
from dynamo_mlperf.topology.sweeping import splits_of
from dynamo_mlperf.tuning.prediction import Prediction, SplitPrediction, read_prediction, write_prediction
from tests.topology.topology_texts import role, topology_text


def swept(splits: str, *, more: str = "", head: str = "first", nodes: int = 4) -> Topology:
    text = topology_text(
        nodes=nodes, head=head, engine="mocker", prefill=role(4, 2), decode=role(4, 2 if nodes < 4 else 1)
    )
    return parse_topology(f"{text}sweep: {{splits: {splits}{more}}}\n")


def names(topology: Topology) -> list[str]:
    return [split.name for split in splits_of(topology)]


def test_listed_splits_scale_with_the_node_count_as_the_files_own_does() -> None:
    topology = swept("[4P4D, 6P4D, 4P8D, 2P4x8D]")
    assert names(scaled(topology, 8)) == ["8P8D", "12P8D", "8P16D", "4P4x16D"]
    assert names(scaled(topology, 2)) == ["2P2D", "3P2D", "2P4D", "1P4x4D"]
    start, plan = sweep_start(scaled(topology, 8), Path.cwd())
    assert (len(plan.nodes), len(plan.workers)) == (8, 16)
    assert start.sweep is not None
    assert start.sweep.splits == ["8P8D", "12P8D", "8P16D", "4P4x16D"]


def test_a_dedicated_head_stays_one_node() -> None:
    topology = swept("[4P4D, 2P8D]", head="dedicated", nodes=5)
    assert names(scaled(topology, 9)) == ["8P8D", "4P16D"]


def test_all_splits_are_those_of_the_other_node_count() -> None:
    assert set(names(scaled(swept("all"), 8))) == {f"{first}P{32 - 2 * first}D" for first in range(1, 16)}


def test_a_split_that_leaves_no_whole_workers_is_refused_and_the_way_out_works() -> None:
    topology = swept("[4P4D, 5P6D]")
    with pytest.raises(ConfigError, match="5P6D on 4 nodes does not scale to 6 in whole workers") as refused:
        scaled(topology, 6)
    counts = [int(word) for word in refused.value.action.removeprefix("--nodes ").partition(", or")[0].split(", ")]
    assert counts == [4, 8]
    for count in counts:
        assert len(names(scaled(topology, count))) == 2


@pytest.fixture
def predictions(tmp_path: Path) -> Path:
    for file, rates in (("order.json", {"4P4D": 7.0, "6P4D": 9.0}), ("starts.json", {"6P4D": 11.0, "4P8D": None})):
        splits = tuple(SplitPrediction(name, {"prefill": 4}, {"prefill": 2}, 16, rate) for name, rate in rates.items())
        write_prediction(tmp_path / file, Prediction("x", "qwen3-vl-235b-a22b", "Interactive", 16, splits))
    return tmp_path


def with_search(topology_more: str, search: str) -> Topology:
    text = topology_text(engine="mocker", prefill=role(4, 2), decode=role(4))
    return parse_topology(f"{text}sweep: {{splits: [4P4D, 6P4D, 4P8D]{topology_more}}}\nsearch: {search}\n")


def test_a_searchs_prediction_starts_the_search_of_each_split_that_it_knows(predictions: Path) -> None:
    alone = with_search("", "{prediction: starts.json}")
    assert starts_of(alone, predictions) == {"6P4D": 11.0}
    assert (predictions_of(alone, predictions), prediction_file(alone)) == ({}, "starts.json")
    both = with_search(", prediction: order.json", "{prediction: starts.json}")
    assert starts_of(both, predictions) == {"4P4D": 7.0, "6P4D": 11.0}
    assert predictions_of(both, predictions) == {"4P4D": 7.0, "6P4D": 9.0}, "the order is the sweep's"
    assert prediction_file(both) == "order.json"


def test_the_files_own_split_is_searched_from_what_is_predicted_of_it(predictions: Path) -> None:
    text = f"{topology_text(engine='mocker', prefill=role(6, 2), decode=role(4))}search: {{prediction: starts.json}}\n"
    assert predicted_qps(parse_topology(text), predictions) == 11.0
    other = text.replace("prefill: {workers: 6", "prefill: {workers: 4")
    assert other != text
    assert predicted_qps(parse_topology(other), predictions) is None


def test_a_prediction_of_another_test_is_refused(predictions: Path) -> None:
    file = with_search(", prediction: order.json", "{prediction: starts.json}")
    for name in ("order.json", "starts.json"):
        path = predictions / name
        before = read_prediction(path)
        write_prediction(path, replace(before, scenario="Server"))
        with pytest.raises(ConfigError, match=r"predicts qwen3-vl-235b-a22b Server, the file measures .* Interactive"):
            starts_of(file, predictions)
        write_prediction(path, before)
    assert starts_of(file, predictions)


def test_a_searchs_prediction_beside_given_rates_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"search.prediction: with sweep.rates nothing is searched"):
        with_search(", rates: [5]", "{prediction: starts.json}")
