"""What endpoints is told, compared whole, and what is refused before it is told anything."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from dynamo_mlperf.benchmark.prompts import PromptSample
from dynamo_mlperf.benchmark.rules import Reduction, benchmark
from dynamo_mlperf.errors import ConfigError, SetupError
from dynamo_mlperf.load.endpoints_config import (
    EndpointsTest,
    catalogue_data,
    check_settings,
    config,
    config_text,
    not_in_force,
    prompts_data,
    sample_count,
    worker_count,
)
from dynamo_mlperf.load.endpoints_data import data_of, write_rows
from dynamo_mlperf.load.endpoints_program import (
    RELEASES,
    EndpointsVersion,
    check_version,
    installed_version,
    python_of,
    recorded_version,
)
from dynamo_mlperf.load.settings import LoadSettings, build_settings

GOLDEN = Path(__file__).parent / "golden"
FRONTENDS = (("10.0.0.1", 20000), ("10.0.0.1", 20001))
COMMIT = RELEASES["v6.1"].commits[0]


def _settings(name: str, scenario: str, qps: float, reduction: Reduction | None = None) -> LoadSettings:
    rules = benchmark(name)
    samples = rules.performance_sample_count[scenario] if reduction is None else 64
    return build_settings(rules, scenario, qps, samples, reduction, request_timeout_s=120.0)


def _test(settings: LoadSettings, **changes: Any) -> EndpointsTest:
    images = settings.benchmark.startswith("qwen")
    data = catalogue_data(settings.scenario, whole=not settings.reduced) if images else prompts_data(plain=True)
    test = EndpointsTest(
        settings, FRONTENDS, "qwen-0a1b2c", "/models/m", data, 8, 4, 2048,
        accuracy=images, pin_cores=False, report_dir="endpoints",
    )  # fmt: skip
    return replace(test, **changes)


@pytest.mark.parametrize(
    ("golden", "name", "scenario", "qps"),
    [
        ("endpoints-qwen3-vl-offline", "qwen3-vl-235b-a22b", "Offline", 230.0),
        ("endpoints-qwen3-vl-server", "qwen3-vl-235b-a22b", "Server", 198.94),
        ("endpoints-qwen3-vl-interactive", "qwen3-vl-235b-a22b", "Interactive", 39.85),
        ("endpoints-gpt-oss-server", "gpt-oss-120b", "Server", 40.0),
    ],
)
def test_the_configuration_is_the_one_on_record(golden: str, name: str, scenario: str, qps: float) -> None:
    assert config_text(_test(_settings(name, scenario, qps))) == (GOLDEN / f"{golden}.yaml").read_text()


def test_a_reduced_or_rehearsed_run_claims_no_revision_and_says_what_it_is() -> None:
    small = _settings("qwen3-vl-235b-a22b", "Interactive", 5, Reduction(samples=44, min_duration_s=3))
    written = config(_test(small, rehearsal=True))
    assert [data.get("generate_params") for data in written["datasets"]] == [None, None]
    assert written["name"].startswith("rehearsal-")
    assert written["settings"]["warmup"] == {"enabled": True, "n_requests": 8, "salt": False, "drain": True}


@pytest.mark.parametrize(
    ("scenario", "qps", "count"),
    [("Interactive", 39.85, 32_000), ("Interactive", 12.12, 8_000), ("Interactive", 12.13, 16_000), ("Server", 5.0, 48_289), ("Offline", 230.0, 193_156)],
)  # fmt: skip
def test_samples_are_whole_data_sets_by_the_clients_own_formula(scenario: str, qps: float, count: int) -> None:
    assert sample_count(_settings("qwen3-vl-235b-a22b", scenario, qps)) == count


def test_workers_are_a_multiple_of_the_frontends() -> None:
    assert [worker_count(*pair) for pair in ((1, 1), (1, 3), (4, 3), (6, 3), (0, 2))] == [1, 3, 6, 6, 2]


def test_every_setting_that_is_not_in_force_is_found() -> None:
    asked = config(_test(_settings("qwen3-vl-235b-a22b", "Interactive", 40)))
    used = yaml.safe_load(yaml.safe_dump(asked))
    assert list(not_in_force(asked, {**used, "more": 1})) == []
    used["settings"]["warmup"]["salt"] = 0
    used["settings"]["load_pattern"]["target_qps"] = 39.0
    used["datasets"][1].pop("generate_params")
    del used["endpoint_config"]
    found = {place: got for place, _wanted, got in not_in_force(asked, used)}
    assert found == {
        "settings.warmup.salt": 0,
        "settings.load_pattern.target_qps": 39.0,
        "datasets.1.generate_params.revision": None,
        "endpoint_config.endpoints": None,
    }


def test_token_latencies_need_a_tokenizer() -> None:
    settings = _settings("gpt-oss-120b", "Server", 40)
    with pytest.raises(ConfigError, match="judged by token latencies"):
        _test(settings, tokenizer=None)
    assert "tokenizer_name" not in config(_test(_settings("qwen3-vl-235b-a22b", "Server", 4), tokenizer=None))["model_params"]  # fmt: skip


def test_what_endpoints_does_not_estimate_or_would_issue_too_much_of_is_refused() -> None:
    odd = _settings("qwen3-vl-235b-a22b", "Interactive", 5, Reduction(samples=44, percentile=92))
    with pytest.raises(ConfigError, match="reduced percentile is 92, and endpoints estimates 50, 75, 80, 90, 95, 97"):
        check_settings(odd)
    check_settings(replace(odd, percentile=0.9))
    whole = _settings("qwen3-vl-235b-a22b", "Interactive", 5)
    with pytest.raises(ConfigError, match="endpoints issues every sample that it is given"):
        check_settings(replace(whole, dataset_samples=48_289))
    check_settings(whole)


def _prompts(*turns: tuple[tuple[str, str], ...]) -> list[PromptSample]:
    return [PromptSample(each, "here") for each in turns]


@pytest.mark.parametrize(
    ("samples", "salted", "row"),
    [
        (_prompts((("user", "a"),), (("user", "b"),)), True, {"prompt": "a"}),
        (_prompts((("system", "s"), ("user", "a"))), False, {"prompt": "a", "system": "s"}),
        (
            _prompts((("user", "a"),), (("system", "s"), ("user", "b"))), False,
            {"prompt": "a", "messages": [{"role": "user", "content": "a"}]},
        ),
    ],
)  # fmt: skip
def test_text_prompts_become_rows_of_one_shape(
    tmp_path: Path, samples: list[PromptSample], row: dict[str, Any], *, salted: bool
) -> None:
    settings = _settings("gpt-oss-120b", "Server", 40)
    assert data_of(samples, settings).salted is salted
    write_rows(samples, len(samples), tmp_path / "rows")
    rows = [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()]
    assert rows[0] == row
    assert {tuple(each) for each in rows} == {tuple(row)}


# -- the program --


def _python(tmp_path: Path, says: str, status: int = 0) -> str:
    """A program in the place of the environment's Python."""
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\necho 'the last line' >&2\nexit {status}\n")
    path.chmod(0o755)
    return str(path)


def _told(version: str = "0.1.0", commit: str | None = None, sha: str | None = None) -> str:
    url = {"url": "https://example.org/e", "vcs_info": {"commit_id": commit}} if commit else {"dir_info": {}}
    return json.dumps({"version": version, "git_sha": sha, "direct_url": json.dumps(url)})


def test_the_version_is_read_from_the_installation_or_its_checkout(tmp_path: Path) -> None:
    found = installed_version(_python(tmp_path, _told(commit=COMMIT)), "v6.1")
    assert (found, check_version(found, "v6.1")) == (EndpointsVersion("0.1.0", COMMIT), "")
    assert recorded_version(found.as_versions()) == found
    checkout = installed_version(_python(tmp_path, _told(sha=COMMIT[:7])), "v6.1")
    assert (checkout.commit, check_version(checkout, "v6.1")) == (COMMIT[:7], "")
    wheel = installed_version(_python(tmp_path, _told()), "v6.1")
    assert "does not record it" in check_version(wheel, "v6.1")
    assert recorded_version(wheel.as_versions()) == wheel


@pytest.mark.parametrize(
    ("told", "status", "said"),
    [
        (_told(version="0.2.0"), 0, "endpoints is 0.2.0, and round v6.1 takes 0.1.0"),
        (_told(commit="0123456789abcdef"), 0, "endpoints is of commit 0123456789ab, and the results of round v6.1 come from ea332753 or 598dbfde"),
        ("{}", 0, "does not say which endpoints it has (KeyError"),
        ("[]", 0, "does not say which endpoints it has (TypeError"),
        ("nothing", 0, "does not say which endpoints it has (JSONDecodeError"),
        ("", 1, "cannot import MLCommons endpoints: the last line"),
    ],
)  # fmt: skip
def test_another_release_or_none_is_refused_with_how_to_get_it(
    tmp_path: Path, told: str, status: int, said: str
) -> None:
    with pytest.raises(SetupError) as caught:
        check_version(installed_version(_python(tmp_path, told, status), "v6.1"), "v6.1")
    assert said in caught.value.what
    assert f"git+https://github.com/mlcommons/endpoints@{COMMIT}" in caught.value.action


def test_an_environment_that_nobody_names_or_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the site file names no environment"):
        python_of(None, "v6.1")
    with pytest.raises(ConfigError, match="there is no /nowhere/python"):
        python_of("/nowhere/python", "v6.1")
    there = _python(tmp_path, "")
    assert python_of(there, "v6.1") == there
