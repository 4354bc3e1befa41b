"""What `package` refuses: each with the run and the remedy, and the same runs accepted once mended."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.load.settings import LoadSettings
from dynamo_mlperf.submission.description import description_findings
from dynamo_mlperf.submission.finding import RefusedError
from dynamo_mlperf.submission.package import PackageRequest, package
from tests.fakes.odd_files import ODD
from tests.submission.conftest import request_of
from tests.submission.made_runs import (
    Made,
    answers,
    description,
    log_line,
    make_run,
    score,
    set_values,
    verify,
    write_accuracy,
    write_compliance,
    write_result,
)

if TYPE_CHECKING:
    from collections.abc import Callable

SERVER = Made(scenario="Server")


def edit(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file; a dot in a key is written `__`, and None takes it out."""
    value = json.loads(path.read_text())
    for key, change in changes.items():
        *parents, last = key.split("__")
        place = value
        for parent in parents:
            place = place[parent]
        if change is None:
            del place[last]
        else:
            place[last] = change
    path.write_text(json.dumps(value))


def replace_in(path: Path, old: str, new: str, count: int = 1) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, count))


def _wrong_seed(run: Path) -> None:
    set_values(run / "loadgen", effective_schedule_rng_seed=3936089224930324775)


def _short(run: Path) -> None:
    path = run / "loadgen" / "queries.csv"
    header, *rows = path.read_text().splitlines()
    rows = [row.split(",") for row in rows]  # type: ignore[misc]
    for row in rows:
        row[2:5] = [f"{float(value) * 0.8:.3f}" for value in row[2:5]]  # type: ignore[index]
    path.write_text("\n".join([header, *(",".join(row) for row in rows)]) + "\n")


def _failed_request(run: Path) -> None:
    path = run / "loadgen" / "queries.csv"
    lines = path.read_text().splitlines()
    order, sample, issued, *_ = lines[5].split(",")
    lines[5] = f"{order},{sample},{issued},,,0,0,HTTP 500: no worker"
    path.write_text("\n".join(lines) + "\n")


def _loadgen_error(run: Path) -> None:
    with (run / "loadgen" / "mlperf_log_detail.txt").open("a") as log:
        log.write(log_line("error_runtime", "first token after the last", error=True) + "\n")
    set_values(run / "loadgen", num_errors=1)


def _other_rate_in_accuracy(run: Path) -> None:
    shutil.rmtree(run / "accuracy")
    write_accuracy(run, Made(scenario="Server", qps=7.25))


def _low_score(run: Path) -> None:
    low = Made(scenario="Server", scores={"exact_match": 80.5})
    score(run / "accuracy", low)
    edit(run / "accuracy" / "result.json", scores__exact_match=80.5)


def _long_answers(run: Path) -> None:
    shutil.rmtree(run / "accuracy")
    write_accuracy(run, Made(scenario="Server", mean_tokens=4300))


def _two_ends(run: Path) -> None:
    """The verification file is the good run's: the answers themselves are what counts."""
    text = answers(1, 3886, ends=2)
    (run / "TEST06" / "mlperf_log_accuracy.json").write_text(text)


def _no_audit(run: Path) -> None:
    path = run / "TEST06" / "mlperf_log_detail.txt"
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if "Audit" not in line))


def _audited(run: Path) -> None:
    with (run / "loadgen" / "mlperf_log_detail.txt").open("a") as log:
        log.write(log_line("warning_generic_message", "Found Audit Config file (audit.config)", warning=True) + "\n")


def _invalid(run: Path) -> None:
    lost = {"check": "workers lost", "wanted": "none", "got": "decode-1", "action": "run again", "text": "x"}
    edit(run / "verdict.json", verdict="INVALID", reasons=[lost])


def _failed(run: Path) -> None:
    died = {"check": "run", "wanted": "a measurement", "got": "decode-0 died", "action": "read its log", "text": "x"}
    edit(run / "verdict.json", verdict="FAILED", reasons=[died])


def _unknown(run: Path) -> None:
    for path in (run / "measure.json", run / "accuracy" / "measure.json", run / "TEST06" / "measure.json"):
        edit(path, settings__benchmark="llama3-8b")
    for path in (run / "verdict.json", run / "accuracy" / "result.json", run / "TEST06" / "result.json"):
        edit(path, benchmark="llama3-8b")
    replace_in(run / "topology.yaml", "benchmark: deepseek-r1", "benchmark: llama3-8b")


def _server_limits_in_interactive(run: Path) -> None:
    """As a run that was named Interactive, and made under the limits of Server."""
    shutil.rmtree(run)
    make_run(run, scenario="Interactive")
    edit(run / "measure.json", settings__ttft_ms=2000.0, settings__tpot_ms=80.0)
    set_values(run / "loadgen", requested_server_ttft_latency=2_000_000_000, requested_server_tpot_latency=80_000_000)


def _truncated(run: Path) -> None:
    path = run / "accuracy" / "mlperf_log_accuracy.json"
    path.write_text(path.read_text()[:4096])


def _other_log(run: Path) -> None:
    (run / "accuracy" / "mlperf_log_accuracy.json").write_text(answers(4, 3886))


def _secret_in_topology(run: Path) -> None:
    replace_in(run / "topology.yaml", "#SBATCH", "# HF_TOKEN=hf_" + "abcdEFGH" * 4 + "\n#SBATCH")


def _secret_in_command(run: Path) -> None:
    replace_in(run / "commands.jsonl", '"a b"', '"--api-key=nvapi-' + "abcdEFGH" * 4 + '"')


def _remade(run: Path, **changes: Any) -> None:
    shutil.rmtree(run)
    make_run(run, scenario="Server", **changes)


@dataclass(frozen=True)
class Case:
    """A way to spoil the Server run, and what is then said of it: about which place, and what to do."""

    spoil: Callable[[Path], None]
    said: tuple[str, ...]


CASES = {
    "reduced": Case(
        lambda run: replace_in(run / "topology.yaml", "measure:", "reduced: {samples: 64}\nmeasure:"),
        ("class official, got reduced", "take the reduced: block out"),
    ),
    "settings lowered": Case(
        lambda run: edit(run / "measure.json", settings__min_duration_ms=60_000, settings__reduced=True),
        ("settings of the rules, got lowered: min_duration_ms",),
    ),
    "rehearsed": Case(
        lambda run: _remade(run, engine="mocker"), ("class official, got rehearsal", "measure with real engines")
    ),
    "mixed commits": Case(
        lambda run: edit(run / "versions.json", commit="f" * 40),
        ("commit and versions: wanted those of", "got commit ffff", "one environment"),
    ),
    "mixed versions": Case(lambda run: edit(run / "versions.json", vllm="0.30.0"), ("got vllm 0.30.0 (0.31.0 there)",)),
    "uncommitted code": Case(
        lambda run: edit(run / "versions.json", commit=f"{'0' * 40}-dirty"),
        ("a commit that others can have", "commit, run again"),
    ),
    "another rate in the accuracy test": Case(
        _other_rate_in_accuracy,
        ("target_qps of deepseek-r1 Server accuracy", "got 7.25", "one topology file"),
    ),
    "wrong seeds": Case(_wrong_seed, ("effective_schedule_rng_seed: wanted 16159082839903944936, got 39360",)),
    "under 600 s": Case(_short, ("duration: wanted 600 s or more, got 5",)),
    "failed request": Case(_failed_request, ("failed requests: wanted 0, got 1 of 4388 (sample 4: HTTP 500",)),
    "LoadGen errors": Case(_loadgen_error, ("error entries in LoadGen's log: wanted 0, got 1",)),
    "limits of another scenario": Case(
        _server_limits_in_interactive, ("settings of the rules, got lowered: ttft_ms, tpot_ms",)
    ),
    "no accuracy test": Case(
        lambda run: shutil.rmtree(run / "accuracy"), ("an accuracy test, got none", "measure: {accuracy: true}")
    ),
    "accuracy under the floor": Case(_low_score, ("exact_match: wanted >= 80.544618, got 80.5",)),
    "answers too long": Case(_long_answers, ("TOKENS_PER_SAMPLE: wanted <= 4274.85014, got 4300.0",)),
    "accuracy log truncated": Case(_truncated, ("wanted the whole accuracy log, got a truncated one",)),
    "accuracy log of another run": Case(
        _other_log,
        ("hash of the accuracy log", "put the original back, or score it again"),
    ),
    "scores edited": Case(
        lambda run: replace_in(run / "accuracy" / "accuracy.txt", "81.0", "82.0"),
        ("exact_match: wanted 81.0 (result.json), got 82.0",),
    ),
    "no compliance test": Case(
        lambda run: shutil.rmtree(run / "TEST06"), ("a passed TEST06, got none", "measure: {compliance: true}")
    ),
    "compliance test failed": Case(
        lambda run: edit(run / "TEST06" / "result.json", verdict="INVALID"), ("TEST06: wanted VALID, got INVALID",)
    ),
    "compliance without audit.config": Case(_no_audit, ("audit.config: wanted picked up by LoadGen, got not",)),
    "decode workers that did their own prefill in the accuracy test": Case(
        lambda run: edit(
            run / "accuracy" / "evidence.json", transfer__remote_prefills=4000, transfer__local_tokens=38800
        ),
        ("prompts prefilled remotely: wanted 4388 of 4388, got 4000 of 4388",),
    ),
    "audit.config in the performance test": Case(
        _audited, ("audit.config: wanted none, got one was applied", "remove it from the working directory")
    ),
    "verification says no": Case(
        lambda run: replace_in(run / "TEST06" / "verify_accuracy.txt", "EOS check pass: True", "EOS check pass: False"),
        ("the line 'EOS check pass: True'", "run TEST06 again"),
    ),
    "two ends of text": Case(
        _two_ends, ("TEST06 end-of-text tokens (7) at the end of an answer: wanted one at most", "sample 0")
    ),
    "INVALID": Case(_invalid, ("workers lost: wanted none, got decode-1",)),
    "FAILED": Case(_failed, ("FAILED: decode-0 died", "read its log")),
    "INVALID run that calls itself VALID": Case(
        _failed_request,
        ("verdict that the run recorded: wanted INVALID, got VALID, and INVALID from the evidence",),
    ),
    "unknown benchmark": Case(_unknown, ("benchmark: wanted qwen3-vl-235b-a22b, gpt-oss-120b", "got llama3-8b")),
    "a token in the topology file": Case(_secret_in_topology, ("secrets: wanted none, got a Hugging Face token",)),
    "a key in a command": Case(_secret_in_command, ("secrets: wanted none, got an NVIDIA key",)),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_refused_with_the_remedy_and_accepted_once_mended(base: Path, made: Path, name: str) -> None:
    case, run = CASES[name], base / "Server"
    case.spoil(run)
    request = request_of(base)
    with pytest.raises(RefusedError) as caught:
        package(request)
    text = "\n".join(finding.text() for finding in caught.value.findings)
    for said in case.said:
        assert said in text
    about = [finding for finding in caught.value.findings if case.said[0] in finding.text()]
    assert about
    assert all(str(base) in finding.where and finding.action for finding in about), "the run or file, and the remedy"
    assert not request.out.exists()
    assert not [path for path in base.iterdir() if ".package-" in path.name], "nothing half-written stays"
    shutil.rmtree(run)
    shutil.copytree(made / "Server", run)
    assert package(request).changed


def test_offline_and_one_of_the_others_are_wanted(base: Path) -> None:
    with pytest.raises(RefusedError, match=r"scenarios: wanted Offline, got Server\. run Offline too"):
        package(request_of(base, "Server"))
    with pytest.raises(RefusedError, match=r"scenarios: wanted Server or Interactive, got Offline"):
        package(request_of(base, "Offline"))
    assert package(request_of(base)).changed


def test_a_package_that_only_one_run_has_is_no_mixture(base: Path) -> None:
    """Runs of LoadGen and of endpoints go into one tree."""
    edit(base / "Server" / "versions.json", **{"inference-endpoint": "0.1.0"})
    assert package(request_of(base)).changed


def test_one_result_comes_of_one_run(base: Path) -> None:
    shutil.copytree(base / "Server", base / "again")
    with pytest.raises(RefusedError, match="deepseek-r1 Server performance: wanted one test") as caught:
        package(request_of(base, "Offline", "Server", "again"))
    assert str(base / "again" / "loadgen") in str(caught.value)


def test_tests_of_a_result_may_lie_in_several_runs_of_one_deployment(base: Path) -> None:
    """And of no other deployment."""
    other = base / "accuracy-run"
    shutil.copytree(base / "Server", other, ignore=shutil.ignore_patterns("loadgen", "TEST06", "verdict.json"))
    shutil.rmtree(base / "Server" / "accuracy")
    names = ("Offline", "Server", "accuracy-run")
    replace_in(other / "topology.yaml", "workers: 1", "workers: 2")
    with pytest.raises(RefusedError, match="deployment of deepseek-r1 Server: wanted that of") as caught:
        package(request_of(base, *names))
    assert "roles.prefill.workers: 2, not 1" in str(caught.value)
    shutil.copy(base / "Server" / "topology.yaml", other)
    assert package(request_of(base, *names)).changed


def test_every_missing_field_of_the_system_is_named_at_once(base: Path) -> None:
    """R17, first half: nothing is guessed, and what the nodes recorded is not asked for."""
    description(base, host_networking=None, cooling=None, system_name="")
    with pytest.raises(RefusedError) as caught:
        package(request_of(base))
    asked = [finding.check for finding in caught.value.findings]
    assert asked == ["system.system_name", "system.host_networking", "system.cooling"]
    description(base, number_of_nodes=4)
    with pytest.raises(RefusedError, match=r"system\.number_of_nodes: wanted 2, as the nodes recorded, got 4"):
        package(request_of(base))
    description(base, measurements={})
    with pytest.raises(RefusedError, match=r"measurements\.deepseek-r1: wanted its five keys, got nothing"):
        package(request_of(base))
    description(base)
    assert package(request_of(base)).changed


@pytest.mark.parametrize(
    ("nodes", "shown"),
    [
        (((4, 4), (8, 8)), "12 accelerators in use: 4 on node 0, 8 on node 1"),
        (((4, 4), (8, 4)), "8 accelerators in use: 4 on node 0, 4 on node 1; the nodes hold 12"),
        (((8, 4), (8, 8)), "12 accelerators in use: 4 on node 0, 8 on node 1; the nodes hold 16"),
    ],
)
def test_nodes_that_differ_are_asked_about_and_the_total_is_a_true_one(
    tmp_path: Path, nodes: tuple[tuple[int, int], ...], shown: str
) -> None:
    """R17, second half: one prefill worker of TP4 and one decode worker of TP8."""
    runs = tuple(make_run(tmp_path / name, scenario=name, nodes=nodes) for name in ("Offline", "Server"))

    def ask(**changes: Any) -> PackageRequest:
        return PackageRequest(runs, description(tmp_path, **changes), "ACME", tmp_path / "tree")

    with pytest.raises(RefusedError) as caught:
        package(ask(accelerators_per_node=5))
    text = str(caught.value)
    assert f"wanted a statement, got {shown}. write uneven_nodes" in text
    assert "number_of_nodes x accelerators_per_node: wanted" in text
    assert "got 2 x 5 = 10" in text
    alike = [finding for finding in caught.value.findings if finding.check == "nodes"]
    if nodes[0][0] != nodes[1][0]:
        assert alike[0].got == "nodes that differ in accelerators"
        return
    made = package(ask(accelerators_per_node=6, uneven_nodes="prefill on four, decode on eight"))
    assert made.accelerators == 12
    system = json.loads((made.tree / "closed/ACME/systems/two-nodes.json").read_text())
    assert system["hw_notes"] == f"prefill on four, decode on eight ({shown})"


def test_token_counts_of_test09_are_tokens_within_the_band(tmp_path: Path) -> None:
    """R13."""
    runs = tuple(make_run(tmp_path / name, scenario=name, benchmark="gpt-oss-120b") for name in ("Offline", "Server"))
    request = PackageRequest(runs, description(tmp_path), "ACME", tmp_path / "tree")
    short, good = (Made("gpt-oss-120b", "Server", mean_tokens=tokens) for tokens in (900, 0))
    place, log = runs[1] / "TEST09", runs[1] / "TEST09" / "mlperf_log_accuracy.json"
    log.write_text(answers(100, 900))
    verify(place, short, "TEST09")
    with pytest.raises(RefusedError, match=r"TEST09 mean output tokens: wanted 1150\.38 to 1406\.02, got 900\.00"):
        package(request)
    log.write_text(json.dumps([{"seq_id": 0, "qsl_idx": 0, "data": ("x" * 1279).encode().hex(), "token_count": 900}]))
    with pytest.raises(RefusedError, match="has 1279 bytes for 900 tokens"):
        package(request)
    shutil.rmtree(place)
    write_compliance(runs[1], good, "TEST09")
    assert package(request).changed
    verified = (
        tmp_path / "tree/closed/ACME/results/two-nodes/gpt-oss-120b/Server/TEST09/verify_output_len.txt"
    ).read_text()
    assert "1278" in verified


def test_test07_below_its_threshold_is_refused(tmp_path: Path) -> None:
    runs = tuple(make_run(tmp_path / name, scenario=name, benchmark="gpt-oss-120b") for name in ("Offline", "Server"))
    request = PackageRequest(runs, description(tmp_path), "ACME", tmp_path / "tree")
    edit(runs[0] / "TEST07" / "result.json", scores__exact_match=60.6)
    with pytest.raises(RefusedError, match=r"TEST07: wanted exact_match >= 60\.698, got 60\.6"):
        package(request)


def test_the_image_benchmark_interactive_wants_endpoints(tmp_path: Path) -> None:
    """The official checker asks its LoadGen form for more samples than its data set has."""
    name, scenarios = "qwen3-vl-235b-a22b", ("Offline", "Interactive")
    runs = tuple(make_run(tmp_path / s, scenario=s, benchmark=name, client="endpoints") for s in scenarios)
    assert package(PackageRequest(runs, description(tmp_path), "ACME", tmp_path / "tree")).changed
    other = make_run(tmp_path / "loadgen-run", scenario="Interactive", benchmark=name, mean_tokens=43)
    with pytest.raises(RefusedError, match="a run of endpoints, got a run of LoadGen"):
        package(PackageRequest((runs[0], other), tmp_path / "system.yaml", "ACME", tmp_path / "tree2"))


def test_what_the_next_run_needs_is_told_with_the_first_refusal(tmp_path: Path) -> None:
    """A reduced run of LoadGen that failed, and a description with a fault in it."""
    name = "qwen3-vl-235b-a22b"
    run = make_run(tmp_path / "run", scenario="Interactive", benchmark=name, mean_tokens=43)
    replace_in(run / "topology.yaml", "measure:", "reduced: {samples: 64}\nmeasure:")
    _failed(run)
    request = PackageRequest((run,), description(tmp_path, colling="air"), "ACME", tmp_path / "tree")
    with pytest.raises(RefusedError) as caught:
        package(request)
    text = str(caught.value)
    assert "wanted a measurement, got the run FAILED: decode-0 died. read its log" in text
    assert "wanted a run of endpoints, got a run of LoadGen. measure it with `client: endpoints`" in text
    assert "take the reduced: block out" in text
    assert "run Offline too" in text
    assert "system.colling: no such key; did you mean cooling?" in text


def test_what_a_description_still_leaves_open_is_no_fault(repository: Path, tmp_path: Path) -> None:
    shipped = repository / "slurm" / "systems" / "example.yaml"
    assert description_findings(shipped) == []
    (missing,) = description_findings(tmp_path / "none.yaml")
    assert "none.yaml" in missing.got
    (wrong,) = description_findings(description(tmp_path, system_name="FILL-IN", colling="air"))
    assert "did you mean cooling" in wrong.got


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda run: edit(run / "endpoints/performance/result_summary.json", n_samples_failed=1), "failed requests"),
        (lambda run: replace_in(run / "endpoints/config.yaml", "16159082839903944936", "42"), "scheduler_random_seed"),
        (lambda run: shutil.rmtree(run / "endpoints/accuracy"), "wanted an accuracy test, got none"),
        (
            lambda run: edit(run / "endpoints/performance/result_summary.json", output_sequence_lengths={"avg": 900}),
            "TEST09 mean output tokens: wanted 1150.38 to 1406.02, got 900",
        ),
    ],
)
def test_runs_of_endpoints_are_held_to_the_same(tmp_path: Path, spoil: Callable[[Path], None], said: str) -> None:
    made = Made("gpt-oss-120b", client="endpoints")
    runs = tuple(make_run(tmp_path / name, made, scenario=name) for name in ("Offline", "Server"))
    request = PackageRequest(runs, description(tmp_path), "ACME", tmp_path / "tree")
    shutil.copytree(runs[1], tmp_path / "good")
    spoil(runs[1])
    with pytest.raises(RefusedError) as caught:
        package(request)
    assert said in str(caught.value)
    shutil.rmtree(runs[1])
    (tmp_path / "good").rename(runs[1])
    assert package(request).changed


def test_code_that_did_not_run_does_not_go_into_the_tree(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dynamo_mlperf.submission.admission.own_commit", lambda: "e" * 40)
    with pytest.raises(RefusedError, match=r"sources of dynamo_mlperf: wanted 0\.1\.0 0123456789abcdef") as caught:
        package(request_of(base))
    assert "git checkout 0123456789abcdef" in str(caught.value)


def test_records_that_cannot_be_read_are_told_not_traced(base: Path) -> None:
    for name, text in (("versions.json", "{"), ("plan.json", "[]"), ("measure.json", "\x00")):
        good = (base / "Server" / name).read_text()
        (base / "Server" / name).write_text(text)
        with pytest.raises((ConfigError, RefusedError), match=name):
            package(request_of(base))
        (base / "Server" / name).write_text(good)
    (base / "empty").mkdir()
    with pytest.raises(ConfigError, match="holds no test"):
        package(request_of(base, "empty"))


def test_made_results_are_as_the_job_records_them(tmp_path: Path) -> None:
    """The builder's settings can be read back: a run of its is one that our own code could have made."""
    write_result(tmp_path, SERVER, "accuracy", SERVER.accuracy_settings, {})
    read = json.loads((tmp_path / "result.json").read_text())
    assert LoadSettings.from_json(read["settings"]) == SERVER.accuracy_settings


@pytest.mark.parametrize("odd", ODD)
def test_what_stands_in_the_place_of_a_nodes_own_account_is_not_waited_for(base: Path, odd: str) -> None:
    path = base / "Server" / "logs" / "node-1.jsonl"
    path.unlink()
    ODD[odd](path)
    with pytest.raises(RefusedError if odd == "1.5 GB" else ConfigError):
        package(request_of(base))


@pytest.mark.parametrize(
    ("file", "value", "said"),
    [
        ("logs/node-1.jsonl", {"facts": {"hardware": [1]}}, "hardware is [1]"),
        ("plan.json", {"nodes": [{"gpus": "four"}]}, "invalid literal for int() with base 10: 'four'"),
        ("plan.json", {"nodes": [{"gpus": 4}], "workers": [{"ranks": [{"node": 7}]}]}, "list index out of range"),
    ],
)
def test_a_damaged_account_of_the_nodes_is_refused(base: Path, file: str, value: object, said: str) -> None:
    (base / "Server" / file).write_text(json.dumps(value) + "\n")
    with pytest.raises(ConfigError) as caught:
        package(request_of(base))
    assert caught.value.what == f"{base / 'Server' / file} cannot be read: {said}"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"argv": 7}, "has a process that names no command line"),
        ({"env": ["A=1"]}, "has a process that names no command line"),
        ({"env": {"DYN_LOG": "\ud800"}}, "a record of the runs holds what is no text"),
    ],
)
def test_a_damaged_record_of_what_was_started_is_refused(base: Path, change: dict[str, Any], said: str) -> None:
    path = base / "Server" / "commands.jsonl"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}) + "\n")
    with pytest.raises((ConfigError, RefusedError)) as caught:
        package(request_of(base))
    assert said in str(caught.value)
    assert not (base / "tree").exists()


def test_a_tree_does_not_go_into_a_run(base: Path) -> None:
    request = request_of(base)
    inside = PackageRequest(request.runs, request.description, "ACME", base / "Server" / "tree")
    with pytest.raises(ConfigError, match=r"lies in the run .*Server, which stays as it is"):
        package(inside)
