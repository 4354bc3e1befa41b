"""Files and sites that cannot be measured with endpoints are refused before anything starts; mended, they are not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from dynamo_mlperf.benchmark.rules import benchmark
from dynamo_mlperf.errors import ConfigError, SetupError
from dynamo_mlperf.job.endpoints_data import check_client
from dynamo_mlperf.job.rate_search import search_settings
from dynamo_mlperf.job.workload import check_workload
from dynamo_mlperf.load.endpoints_config import sample_count
from dynamo_mlperf.load.endpoints_program import RELEASES
from dynamo_mlperf.load.settings import build_settings
from dynamo_mlperf.site import Site
from dynamo_mlperf.topology.spec import Topology, load_topology
from tests.job.chain import TEMPLATE, merged

GPT_OSS = {"benchmark": "gpt-oss-120b", "scenario": "Server", "dataset": "assets/tiny-prompts"}


def _file(tmp_path: Path, **edits: Any) -> Path:
    path = tmp_path / "t.yaml"
    value = merged(TEMPLATE, {"name": "t", "measure": {"client": "endpoints"}})
    path.write_text(yaml.safe_dump(merged(value, edits), sort_keys=False))
    return path


def _topology(tmp_path: Path, **edits: Any) -> Topology:
    return load_topology(_file(tmp_path, **edits))


@pytest.mark.parametrize(
    ("measure", "said", "mended"),
    [
        ({"benchmark": "llama2-70b-99.9", "scenario": "Server"}, "llama2-70b-99.9 of v6.1 takes no other client than loadgen", {"client": "loadgen"}),
        ({"round": "v6.0", "scenario": "Server"}, "qwen3-vl-235b-a22b of v6.0 takes no other client than loadgen", {"round": "v6.1"}),
        ({"user_conf": "user.conf"}, "user_conf is LoadGen's, and client is endpoints", {"user_conf": None}),
        ({"compliance": True}, "compliance tests are LoadGen's", {"compliance": False}),
        ({**GPT_OSS, "accuracy": True}, "endpoints by itself cannot score the accuracy of gpt", {"accuracy": False}),
    ],
)  # fmt: skip
def test_what_endpoints_cannot_measure_is_refused_at_its_line(
    tmp_path: Path, measure: dict[str, Any], said: str, mended: dict[str, Any]
) -> None:
    loose = {"latency_limit_ms": None} if "dataset" in measure or "llama2-70b-99.9" in measure.values() else {}
    with pytest.raises(ConfigError) as caught:
        _topology(tmp_path, measure=measure, reduced=loose)
    assert said in caught.value.what
    assert f"{tmp_path}/t.yaml:" in caught.value.what
    _topology(tmp_path, measure={**measure, **mended}, reduced=loose)


def test_a_percentile_that_endpoints_does_not_estimate_is_refused(tmp_path: Path, repository: Path) -> None:
    from dynamo_mlperf.benchmark.tiny_catalogue import write_tiny_catalogue

    write_tiny_catalogue(tmp_path / "assets" / "tiny-product-catalogue", 44)
    (tmp_path / "staging").symlink_to(repository / "staging")
    with pytest.raises(ConfigError, match="reduced percentile is 93, and endpoints estimates"):
        check_workload(_topology(tmp_path, reduced={"percentile": 93}), tmp_path)
    check_workload(_topology(tmp_path, reduced={"percentile": 95}), tmp_path, from_afar=True)


def _python(tmp_path: Path, **told: Any) -> str:
    path = tmp_path / "python"
    path.write_text(
        f"#!/bin/sh\necho '{json.dumps({'version': '0.1.0', 'git_sha': None, 'direct_url': None, **told})}'\n"
    )
    path.chmod(0o755)
    return str(path)


def test_the_site_has_to_name_an_environment_that_has_the_rounds_endpoints(tmp_path: Path) -> None:
    topology = _topology(tmp_path)
    with pytest.raises(ConfigError, match="the site file names no environment that has it") as caught:
        check_client(topology, Site())
    assert f"endpoints@{RELEASES['v6.1'].commits[0]}" in caught.value.action
    absent = Site(endpoints_python="/nowhere/bin/python")
    with pytest.raises(ConfigError, match="there is no /nowhere/bin/python"):
        check_client(topology, absent)
    assert "not seen from here" in (check_client(topology, absent, from_afar=True) or "")
    with pytest.raises(SetupError, match=r"endpoints is 0\.9"):
        check_client(topology, Site(endpoints_python=_python(tmp_path, version="0.9")))
    good = Site(endpoints_python=_python(tmp_path, git_sha="ea33275"))
    assert check_client(topology, good) is None
    assert check_client(_topology(tmp_path, measure={"client": "loadgen"}), Site()) is None


def test_its_accuracy_phase_is_part_of_one_run_and_not_of_a_search(tmp_path: Path) -> None:
    good = Site(endpoints_python=_python(tmp_path, git_sha="ea33275"))
    searched = {"measure": {"target_qps": None}, "search": {"high": 40}}
    with pytest.raises(ConfigError, match="is a phase of one run"):
        check_client(_topology(tmp_path, **merged(searched, {"measure": {"accuracy": True}})), good)
    assert check_client(_topology(tmp_path, **searched), good) is None
    assert check_client(_topology(tmp_path, measure={"accuracy": True}), good) is None


def test_a_search_goes_by_the_clients_own_rule_and_padding(tmp_path: Path) -> None:
    rules = benchmark("qwen3-vl-235b-a22b")
    load = build_settings(rules, "Interactive", 40, 8_000)
    ours, theirs = (
        search_settings(_topology(tmp_path, measure={"client": client}), load) for client in ("loadgen", "endpoints")
    )
    assert (ours.rule, theirs.rule) == ("loadgen", "endpoints")
    assert (ours.needed_queries, theirs.needed_queries) == (459, 662)
    assert theirs.allowed(32_000) == ours.allowed(32_000) - 1
    for rate in (12.1, 12.2, 39.85):
        assert theirs.run_queries(rate) == sample_count(replace(load, target_qps=rate))
