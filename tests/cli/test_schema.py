"""`schema rules`: the rules of a round as a table and as JSON."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from dynamo_mlperf.benchmark.rounds import ROUNDS
from dynamo_mlperf.cli.schema import command
from dynamo_mlperf.errors import ConfigError

V5_1 = """\
MLPerf Inference v5.1, datacenter, closed (LoadGen 5.1.1)
seeds: qsl 1780908523862526354, sample_index 14771362308971278857, schedule 18209322760996052031

deepseek-r1 (client: loadgen)
  scenario  limit at p99              LoadGen model  performance samples  accuracy samples  accuracy floor
  Offline   none                      deepseek-r1    4388                 4388              exact_match 80.544618
  Server    TTFT 2000 ms, TPOT 80 ms  deepseek-r1    4388                 4388              exact_match 80.544618
  600 s at least; Offline 4388 samples at least; result in Tokens/s; compliance: TEST06
  20000 output tokens at most; mean output tokens of an accuracy run: at least 3,497.60466 and at most 4,274.85014

llama2-70b-99.9 (client: loadgen)
  scenario     limit at p99               LoadGen model           performance samples  accuracy samples  accuracy floor
  Offline      none                       llama2-70b              24576                24576             ROUGE1 44.3867688, ROUGE2 22.0131648, ROUGEL 28.5875838
  Server       TTFT 2000 ms, TPOT 200 ms  llama2-70b              24576                24576             ROUGE1 44.3867688, ROUGE2 22.0131648, ROUGEL 28.5875838
  Interactive  TTFT 450 ms, TPOT 40 ms    llama2-70b-interactive  24576                24576             ROUGE1 44.3867688, ROUGE2 22.0131648, ROUGEL 28.5875838
  600 s at least; Offline 24576 samples at least; result in Tokens/s; compliance: TEST06
  1024 output tokens at most; mean output tokens of an accuracy run: at least 265.005 and at most 323.895
"""


def _run(*words: str) -> str:
    return CliRunner().invoke(command, list(words), catch_exceptions=False).stdout


def test_rules_of_an_older_round_are_printed_with_their_sources() -> None:
    text = _run("rules", "--round", "v5.1")
    table, _, sources = text.partition("\nSources:\n")
    assert table == V5_1
    assert sources.count("mlcommons/inference ") == 2


@pytest.mark.parametrize("name", ROUNDS)
def test_json_says_the_same_as_the_data(name: str) -> None:
    facts = json.loads(_run("rules", "--round", name, "--json"))
    rules = ROUNDS[name]
    assert facts["round"] == name
    assert facts["seeds"]["schedule"] == rules.seeds.schedule
    assert facts["sources"] == list(rules.sources)
    assert set(facts["benchmarks"]) == set(rules.benchmarks)
    for benchmark, entry in facts["benchmarks"].items():
        limits = rules.benchmarks[benchmark].limits
        assert {scenario: shown["limits_ms"] for scenario, shown in entry["scenarios"].items()} == {
            scenario: limit.by_constraint for scenario, limit in limits.items()
        }


def test_interactive_of_qwen3_vl_is_marked_as_set_by_us() -> None:
    scenarios = json.loads(_run("rules", "--json"))["benchmarks"]["qwen3-vl-235b-a22b"]["scenarios"]
    assert {name: entry["limits_set_explicitly"] for name, entry in scenarios.items()} == {
        "Offline": False,
        "Server": False,
        "Interactive": True,
    }


def test_defaults_are_written_as_the_file_has_them() -> None:
    text = _run("topology")
    assert "true or false; default false" in text
    assert "default False" not in text


def test_an_unknown_round_names_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"no rules of round 'v4\.1'; there are v6\.1, v6\.0, v5\.1"):
        _run("rules", "--round", "v4.1")


def test_a_round_without_rules_is_refused() -> None:
    with pytest.raises(ConfigError, match="--round goes with rules"):
        _run("site", "--round", "v6.1")
