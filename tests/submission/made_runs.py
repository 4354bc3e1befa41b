"""Makes run directories whose every test passed, in the true forms of LoadGen and endpoints, for `package` to read.

The figures are made up; the forms are those of real runs (tests/load/golden, docs/run-directory.md). A test that wants
a fault edits one file of a run, or gives the builder one other number.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import random
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from dynamo_mlperf import __version__
from dynamo_mlperf.benchmark.accuracy.scores import Scores
from dynamo_mlperf.benchmark.rules import SEEDS, benchmark
from dynamo_mlperf.files import RunPaths, write_json
from dynamo_mlperf.load.audit import AUDIT_CONFIG, compliance_test
from dynamo_mlperf.load.endpoints_config import sample_count
from dynamo_mlperf.load.endpoints_run import EndpointsRecord, judge_run
from dynamo_mlperf.load.loadgen_schedule import gaps_ns, scheduled_ns
from dynamo_mlperf.load.logs import DETAIL
from dynamo_mlperf.load.settings import LoadSettings, build_settings
from dynamo_mlperf.load.spec import MeasureSpec
from dynamo_mlperf.load.user_conf import expected_effective, expected_queries, user_conf
from dynamo_mlperf.load.verdict import judge
from dynamo_mlperf.load.verification import verify_length, verify_tokens
from dynamo_mlperf.record import TransferEvidence, write_verdict
from tests.fakes.loadgen_logs import write_summary
from tests.report.run_builder import kv_evidence

if TYPE_CHECKING:
    from pathlib import Path

    from dynamo_mlperf.record import ResultClass

COMMIT = "0123456789abcdef0123456789abcdef01234567"
EOS = 7
MEAN_TOKENS = {"deepseek-r1": 3886, "gpt-oss-120b": 1278, "llama2-70b-99.9": 294, "qwen3-vl-235b-a22b": 43}
SCORES = {
    "deepseek-r1": {"exact_match": 81.0},
    "gpt-oss-120b": {"exact_match": 82.9},
    "llama2-70b-99.9": {"ROUGE1": 44.4, "ROUGE2": 22.1, "ROUGEL": 28.6},
    "qwen3-vl-235b-a22b": {"F1_HIERARCHICAL": 0.79},
}
HARDWARE = {
    "cpu": "Neoverse-V2",
    "sockets": 2,
    "cores_per_socket": 72,
    "memory_bytes": 960 * 2**30,
    "os": "Ubuntu 24.04.2 LTS",
    "kernel": "6.8.0-1021-nvidia-64k",
    "accelerators": ["NVIDIA GB200"] * 4,
    "network_cards": 4,
    "storage_bytes": 7_680_000_000_000,
    "storage": ["NVMe SSD"],
}
VERSIONS = {
    "dynamo_mlperf": __version__,
    "commit": COMMIT,
    "os": "Ubuntu 24.04.2 LTS",
    "ai-dynamo": "1.6.1",
    "vllm": "0.31.0",
    "nixl": "1.4.1",
    "torch": "2.13.0",
    "mlcommons-loadgen": "6.0.17",
    "slurm": "24.05.3",
}


@dataclass
class Made:
    """What a run is to be; the defaults pass.

    Attributes:
        benchmark: Of the run.
        scenario: Of the run.
        engine: mocker makes it a rehearsal.
        nodes: GPUs of each node, and workers' GPUs there: `((4, 4), (4, 2))` has two idle ones.
        tests: What beside the performance test.
        client: loadgen or endpoints.
        qps: Offered rate.
        commit: Of the code that ran.
        scores: Of the accuracy test.
        mean_tokens: Of every answer.
        reduced: The file's reduced: block.
        endpoint: Whether the verb `measure` made it, at an endpoint that was up already.
    """

    benchmark: str = "deepseek-r1"
    scenario: str = "Offline"
    engine: str = "vllm"
    nodes: tuple[tuple[int, int], ...] = ((4, 4), (4, 4))
    tests: tuple[str, ...] = ("accuracy", "compliance")
    client: str = "loadgen"
    qps: float = 0.0
    commit: str = COMMIT
    scores: dict[str, float] = field(default_factory=dict)
    mean_tokens: int = 0
    reduced: dict[str, Any] | None = None
    endpoint: bool = False

    @property
    def result_class(self) -> ResultClass:
        return "rehearsal" if self.engine == "mocker" else "reduced" if self.reduced else "official"

    @property
    def tokens(self) -> int:
        return self.mean_tokens or MEAN_TOKENS[self.benchmark]

    @property
    def settings(self) -> LoadSettings:
        rules = benchmark(self.benchmark)
        qps = self.qps or (rules.performance_sample_count[self.scenario] / 670)
        samples = rules.performance_sample_count[self.scenario]
        return build_settings(rules, self.scenario, round(qps, 3), samples)

    @property
    def accuracy_settings(self) -> LoadSettings:
        rules = benchmark(self.benchmark)
        samples = rules.accuracy_sample_count[self.scenario]
        return dataclasses.replace(self.settings, mode="accuracy", dataset_samples=samples)


def make_run(root: Path, made: Made | None = None, **changes: Any) -> Path:
    """A run directory at `root`; `changes` are of `Made`."""
    want = dataclasses.replace(made or Made(), **changes)
    paths = RunPaths(root)
    paths.logs.mkdir(parents=True)
    write_json(paths.versions, {**VERSIONS, "commit": want.commit})
    if want.endpoint:
        return write_endpoint_run(root, want)
    write_topology(paths, want)
    write_json(paths.plan, plan(want))
    for position, (held, _) in enumerate(want.nodes):
        hardware = {**HARDWARE, "accelerators": ["NVIDIA GB200"] * held}
        words = json.dumps({"facts": {"gpus": held, "hardware": hardware}})
        (paths.logs / f"node-{position}.jsonl").write_text(words + "\n")
    command = {
        "process": "decode-0",
        "node": 0,
        "argv": ["python", "-m", "dynamo.vllm", "--model", "a b"],
        "env": {"DYN_LOG": "warn", "HF_TOKEN": "(not recorded)"},
    }
    paths.commands.write_text(json.dumps(command) + "\n")
    paths.events.write_text(json.dumps({"event": "process_started", "process": "decode-0"}) + "\n")
    if want.client == "endpoints":
        write_endpoints(root, want)
        return root
    return write_tests(root, want)


def write_endpoint_run(root: Path, want: Made) -> Path:
    """As `measure` leaves it: no topology, no plan, nothing of the nodes."""
    value = {
        "urls": ["http://10.0.0.1:8000"],
        "model": want.benchmark,
        "class": want.result_class,
        "data_set": "/nfs/data/prompts",
        "settings": want.settings.to_json(),
    }
    write_json(root / "endpoint.json", value)
    if want.client == "endpoints":
        write_endpoints(root, want)
        return root
    return write_tests(root, want)


def write_tests(root: Path, want: Made) -> Path:
    write_performance(root, want)
    if "accuracy" in want.tests:
        write_accuracy(root, want)
    if "compliance" in want.tests:
        for name in benchmark(want.benchmark).compliance_tests:
            write_compliance(root, want, name)
    return root


def write_topology(paths: RunPaths, want: Made) -> None:
    held = max(count for count, _ in want.nodes)
    value: dict[str, Any] = {
        "schema": 1,
        "name": "made-run",
        "nodes": {"count": len(want.nodes), "gpus": held},
        "model": {"name": want.benchmark, "weights": {"path": "/models/weights"}},
        "engine": want.engine,
        "roles": {"prefill": {"workers": 1}, "decode": {"workers": 1}},
        "measure": {
            "benchmark": want.benchmark,
            "scenario": want.scenario,
            "client": want.client,
            "target_qps": want.settings.target_qps,
        },
    }
    if want.reduced:
        value["reduced"] = want.reduced
    paths.topology.write_text(
        "#!/usr/bin/env -S dynamo-mlperf job\n#SBATCH --nodes=2\n" + yaml.safe_dump(value, sort_keys=False)
    )


def plan(want: Made) -> dict[str, Any]:
    workers = [
        {"role": "decode", "index": position, "ranks": [{"node": position, "gpu": gpu} for gpu in range(used)]}
        for position, (_, used) in enumerate(want.nodes)
    ]
    nodes = [{"position": position, "gpus": held} for position, (held, _) in enumerate(want.nodes)]
    return {"name": "made-run", "nodes": nodes, "workers": workers, "split": {"workers": "1P1D"}}


# -- LoadGen --


def log_line(key: str, value: Any, *, warning: bool = False, error: bool = False) -> str:
    metadata = {"is_error": error, "is_warning": warning, "file": "made.cc", "line_no": 1, "pid": 1, "tid": 1}
    entry = {
        "key": key,
        "value": value,
        "time_ms": 1.0,
        "namespace": "mlperf::logging",
        "event_type": "POINT_IN_TIME",
        "metadata": metadata,
    }
    return f":::MLLOG {json.dumps(entry)}"


def write_detail(directory: Path, values: dict[str, Any], *, audit: bool = False) -> None:
    lines = [log_line("loadgen_version", "6.0.17 @ d6147c7eb7"), log_line("sut_name", "PySUT")]
    if audit:
        lines.append(log_line("warning_generic_message", "Multiple conf files: Audit Config file found", warning=True))
    lines += [log_line(key, value) for key, value in values.items()]
    (directory / DETAIL).write_text("\n".join(lines) + "\n")
    write_summary(directory)


def set_values(directory: Path, **values: Any) -> None:
    """Change entries of a detail log, or add them, and its summary; a dot in a key is written `__`."""
    wanted = {key.replace("__", "."): value for key, value in values.items()}
    lines = (directory / DETAIL).read_text().splitlines()
    for number, line in enumerate(lines):
        key = json.loads(line.removeprefix(":::MLLOG "))["key"]
        if key in wanted:
            lines[number] = log_line(key, wanted.pop(key))
    lines += [log_line(key, value) for key, value in wanted.items()]
    (directory / DETAIL).write_text("\n".join(lines) + "\n")
    write_summary(directory)


def _issued(settings: LoadSettings, number: int, *, client: str) -> Any:
    """When each query is issued, in milliseconds: by the schedule of the client's seed; others than timed ones evenly."""
    if settings.scenario == "Offline":
        return np.zeros(number)
    if client == "endpoints":
        draw = random.Random(settings.seeds.schedule)
        return np.cumsum([draw.expovariate(settings.target_qps) * 1000 for _ in range(number)])
    if settings.mode == "performance" and settings.min_duration_ms:
        return scheduled_ns(gaps_ns(settings.seeds.schedule, settings.target_qps, number)) / 1e6
    return np.linspace(0, 1000.0, number)


def _queries(
    settings: LoadSettings, number: int, tokens: int, samples: int, *, client: str = "loadgen"
) -> tuple[str, float]:
    """`queries.csv`, and seconds to the last end; a request takes 100 ms to the first token, then 8 ms (1 ms) a token."""
    issued = _issued(settings, number, client=client)
    first = issued + 100.0
    done = first + (1.0 if client == "endpoints" else 8.0) * (tokens - 1)
    if settings.scenario == "Offline":
        done = np.linspace(200.0, 601_000.0 if settings.min_duration_ms else 1000.0, number)
    rows = [f"{n},{n % samples},{issued[n]:.3f},{first[n]:.3f},{done[n]:.3f},{tokens},100," for n in range(number)]
    header = "order,sample,issued_ms,first_token_ms,completed_ms,output_tokens,prompt_tokens,error"
    return "\n".join([header, *rows]) + "\n", float(done.max()) / 1000


def write_load(directory: Path, settings: LoadSettings, tokens: int, *, test: str = "") -> None:
    """What LoadGen and our client leave of one passed test."""
    directory.mkdir(parents=True)
    audit = compliance_test(test) if test else None
    in_force = audit.settings(settings) if audit else settings
    number = max(100, audit.min_query_count) if audit else expected_queries(settings)
    samples = settings.accuracy_sample_count if settings.mode == "accuracy" else settings.performance_sample_count
    text, seconds = _queries(in_force, number, tokens, samples)
    (directory / "queries.csv").write_text(text)
    offline = settings.scenario == "Offline"
    values: dict[str, Any] = {
        "qsl_reported_total_count": settings.dataset_samples,
        **expected_effective(in_force),
        **(audit.expected_effective() if audit else {}),
        "generated_query_count": 1 if offline else number,
        "generated_samples_per_query": number if offline else 1,
        "generated_query_duration": int(gaps_ns(settings.seeds.schedule, settings.target_qps, number).sum()),
    }
    values["power_end"] = "12-01-2026 03:06:45.893"
    if settings.mode == "performance":
        values |= _results(settings, number, tokens, seconds)
    write_detail(directory, values, audit=audit is not None)
    client = {
        "requests": number,
        "failed": [],
        "issue_delay_ms": {"p50": 0.02, "p99": 0.2, "max": 1.0},
        "processes": [
            {"name": "loadgen", "role": "loadgen", "cpu_s": 1.0},
            {"name": "client worker 0", "role": "http", "cpu_s": 1.0, "busiest_share": 0.1, "busy_share": 0.0},
        ],
        "wall_s": seconds,
        "client_limited": None,
    }
    write_json(directory / "client.json", client)
    (directory / "user.conf").write_text(user_conf(settings))
    if audit:
        (directory / f"{AUDIT_CONFIG}.used").write_text(audit.audit_config())


def _results(settings: LoadSettings, number: int, tokens: int, seconds: float) -> dict[str, Any]:
    offline = settings.scenario == "Offline"
    rate = number / seconds if offline else (number - 1) / seconds
    latency_ns = round((100 + 8 * (tokens - 1)) * 1e6)
    shares = ("50.00", "90.00", "95.00", "97.00", "99.00", "99.90")
    values: dict[str, Any] = {
        "result_validity": "VALID",
        "early_stopping_met": True,
        "result_query_count": 1 if offline else number,
        "result_overlatency_query_count": 0,
        "result_samples_per_second" if offline else "result_completed_samples_per_sec": rate,
        "result_min_latency_ns": latency_ns,
        "result_max_latency_ns": latency_ns,
        "result_mean_latency_ns": latency_ns,
        **{f"result_{share}_percentile_latency_ns": latency_ns for share in shares},
    }
    if settings.use_token_latencies:
        values["result_tokens_per_second" if offline else "result_completed_tokens_per_second"] = rate * tokens
        values |= {f"result_first_token_{name}_latency_ns": 100_000_000 for name in ("min", "max", "mean")}
        values |= {f"result_first_token_{share}_percentile_latency_ns": 100_000_000 for share in shares}
        values |= {f"result_time_per_output_token_{share}_percentile_ns": 8_000_000 for share in shares}
        values |= {f"result_time_to_output_token_{name}": 8_000_000 for name in ("min", "max", "mean")}
    return {**values, "num_errors": 0}


def write_spec(path: Path, settings: LoadSettings, out: Path, *, audit: bool = False) -> None:
    spec = MeasureSpec(settings, out.parent / "requests.bin", (("10.0.0.1", 8000),), out, audit_config=audit)
    write_json(path, spec.to_json())


def transfer(requests: int, engine: str) -> TransferEvidence:
    if engine == "mocker":
        return TransferEvidence(disaggregated=True, proof="routing only", requests=requests, prefill_requests=requests)
    return kv_evidence(requests, prompt_tokens=100, kv_bytes=1000)


def write_evidence(place: Path, want: Made, requests: int) -> TransferEvidence | None:
    if want.endpoint:
        return None
    proof = transfer(requests, want.engine)
    write_json(place / "evidence.json", {"transfer": asdict(proof)})
    return proof


def write_performance(root: Path, want: Made) -> None:
    load, settings = root / "loadgen", want.settings
    write_load(load, settings, want.tokens)
    write_spec(root / "measure.json", settings, load)
    proof = write_evidence(root, want, expected_queries(settings))
    verdict = judge(load, settings, proof, want.result_class, str(root))
    assert verdict.verdict == "VALID", [reason.text() for reason in verdict.reasons]
    write_verdict(RunPaths(root), dataclasses.replace(verdict, model=want.benchmark))


def write_accuracy(root: Path, want: Made) -> None:
    directory, settings = root / "accuracy", want.accuracy_settings
    write_load(directory, settings, want.tokens)
    write_spec(directory / "measure.json", settings, directory)
    write_evidence(directory, want, expected_queries(settings))
    number = expected_queries(settings)
    (directory / "mlperf_log_accuracy.json").write_text(answers(number, want.tokens, as_text=True))
    score(directory, want)
    write_result(directory, want, "accuracy", settings, want_scores(want))


def want_scores(want: Made) -> dict[str, float]:
    scores = {**SCORES[want.benchmark], **want.scores}
    return scores if want.benchmark.startswith("qwen") else {**scores, "TOKENS_PER_SAMPLE": float(want.tokens)}


def score(directory: Path, want: Made) -> None:
    digest = hashlib.sha256((directory / "mlperf_log_accuracy.json").read_bytes()).hexdigest()
    scores = Scores(want.benchmark, want.accuracy_settings.accuracy_sample_count, want_scores(want), digest)
    (directory / "accuracy.txt").write_text(scores.text())


@functools.lru_cache(maxsize=2)
def answers(number: int, tokens: int, *, ends: int = 1, as_text: bool = False, words: int = 1) -> str:
    """An accuracy log of token ids, or of texts; `ends` end-of-text tokens stand at the end of each answer.

    A text has so many `words` of two letters.
    """
    ids = [100 + n % 50 for n in range(tokens - ends)] + [EOS] * ends
    data, first = (np.array(part, "<i4").tobytes().hex().upper() for part in (ids, ids[:1]))
    data = "4F4B" * words if as_text else data
    entries = [
        f'{{"seq_id": {n}, "qsl_idx": {n}, "data": "{data}", "token_data": "{first}", "token_count": {tokens}}}'
        for n in range(number)
    ]
    return "[\n" + ",\n".join(entries) + "\n]\n"


def write_compliance(root: Path, want: Made, name: str) -> None:
    directory = root / name
    write_load(directory, want.settings, want.tokens, test=name)
    write_spec(directory / "measure.json", want.settings, directory, audit=True)
    write_evidence(directory, want, max(100, compliance_test(name).min_query_count))
    number = max(100, compliance_test(name).min_query_count)
    log = answers(number, want.tokens, as_text=name == "TEST07")
    (directory / "mlperf_log_accuracy.json").write_text(log)
    verify(directory, want, name)
    targets = {"eos_token_ids": [EOS]} if name == "TEST06" else {}
    scores = {"exact_match": 62.5} if name == "TEST07" else {}
    write_result(directory, want, name, want.settings, scores, **targets)


def verify(directory: Path, want: Made, name: str) -> None:
    log, test = directory / "mlperf_log_accuracy.json", compliance_test(name)
    if name == "TEST06":
        text = verify_tokens(log, [EOS], offline=want.scenario == "Offline").text
    else:
        text = verify_length(test, log).text if name == "TEST09" else "Accuracy score: 62.5\nTEST PASS\n"
    (directory / test.verified_by).write_text(text)


def write_result(
    directory: Path, want: Made, test: str, settings: LoadSettings, scores: dict[str, float], **targets: Any
) -> None:
    value = {
        "test": test,
        "verdict": "VALID",
        "class": want.result_class,
        "benchmark": want.benchmark,
        "scenario": want.scenario,
        "reasons": [],
        "scores": scores,
        "targets": targets,
        "settings": settings.to_json(),
        "wanted_audit": test.startswith("TEST"),
    }
    write_json(directory / "result.json", value)


# -- endpoints --


def write_endpoints(root: Path, want: Made) -> None:
    """A run of endpoints with its accuracy phase, in the shape of its 0.1.0."""
    directory, settings = root / "endpoints", want.settings
    offline = want.scenario == "Offline"
    number, seconds = sample_count(settings), 605.0
    runtime = {"min_duration_ms": 600_000, "n_samples_to_issue": number}
    config: dict[str, Any] = {
        "name": f"{'rehearsal-' if want.engine == 'mocker' else ''}{want.benchmark}",
        "version": "1.0",
        "type": "offline" if offline else "online",
        "submission_ref": {"model": want.benchmark, "ruleset": "mlperf-inference-v6.1"},
        "model_params": {"name": want.benchmark, "streaming": "on"},
        "settings": {
            "runtime": runtime,
            "load_pattern": {"type": "max_throughput" if offline else "poisson", "target_qps": settings.target_qps},
        },
        "endpoint_config": {"endpoints": ["http://10.0.0.1:8000"]},
    }
    record = EndpointsRecord(settings, config, "0.1.0", "", "0" * 64, accuracy=True)
    write_json(root / "endpoints.json", record.to_json())
    seeds = {"scheduler_random_seed": SEEDS.schedule, "dataloader_random_seed": SEEDS.sample_index}
    used = {**config, "settings": {**config["settings"], "runtime": {**runtime, **seeds}}}
    summary = {
        "version": "0.1.0", "git_sha": None, "test_started_at": time.monotonic_ns(),
        "n_samples_issued": number, "n_samples_completed": number, "n_samples_failed": 0,
        "duration_ns": round(seconds * 1e9), "state": "complete", "complete": True,
        "qps": number / seconds, "tps": number / seconds * want.tokens,
        "latency": _series(1200), "ttft": _series(100), "tpot": _series(8),
        "output_sequence_lengths": {"min": 1, "max": want.tokens, "avg": float(want.tokens)},
    }  # fmt: skip
    (directory / "performance").mkdir(parents=True)
    (directory / "config.yaml").write_text(yaml.safe_dump(used, sort_keys=False))
    write_json(directory / "performance" / "result_summary.json", summary)
    text, _ = _queries(settings, number, want.tokens, settings.performance_sample_count, client="endpoints")
    (directory / "queries.csv").write_text(text)
    write_json(directory / "client.json", {"sent": number})
    proof = write_evidence(root, want, number)
    verdict = judge_run(directory, record, proof, want.result_class, str(root))
    assert verdict.verdict == "VALID", [reason.text() for reason in verdict.reasons]
    write_verdict(RunPaths(root), dataclasses.replace(verdict, model=want.benchmark))
    if "accuracy" in want.tests:
        (directory / "accuracy").mkdir()
        write_json(directory / "accuracy" / "accuracy_results.json", {"accuracy_scores": endpoints_scores(want)})
        write_result(directory / "accuracy", want, "accuracy", settings, want_scores(want))


def endpoints_scores(want: Made) -> list[dict[str, Any]]:
    total = benchmark(want.benchmark).accuracy_sample_count[want.scenario]
    value = next(iter(want_scores(want).values()))
    parts = [(total, total)]
    if want.benchmark == "gpt-oss-120b":
        parts, value = [(30, 240), (198, 990), (1055, 3165)], value / 100
    return [
        {
            "dataset_name": f"part-{n}", "score": value, "unit_samples": unit, "total_samples": issued,
            "dataset_type": "accuracy", "complete": True,
            "output_sequence_lengths": {"avg": float(want.tokens)},
        }
        for n, (unit, issued) in enumerate(parts)
    ]  # fmt: skip


def _series(milliseconds: float) -> dict[str, Any]:
    value = milliseconds * 1e6
    return {
        "min": value, "max": value, "avg": value,
        "percentiles": {"99.0": value, "50.0": value},
        "early_stopping_percentiles": {"99.0": value, "90.0": value, "50.0": value},
    }  # fmt: skip


# -- the site's description --


def description(place: Path, **changes: Any) -> Path:
    """A description that is complete with what the nodes recorded; `changes` go below `system`, or beside it."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "calibration.md").write_text("# Calibration\n\nWeights as published by their maker, calibrated to FP4.\n")
    system = {
        "system_name": "Two nodes of a rack",
        "status": "available",
        "host_memory_configuration": "2x 480GB LPDDR5X",
        "host_networking": "InfiniBand NDR400",
        "host_networking_topology": "fat tree",
        "accelerator_memory_capacity": "186 GB",
        "accelerator_memory_configuration": "HBM3e",
        "accelerator_host_interconnect": "NVLink-C2C",
        "accelerator_interconnect": "1.8 TB/s NVLink",
        "cooling": "liquid",
    }
    weights = {
        "input_data_types": "int32",
        "retraining": "No",
        "starting_weights_filename": "the reference checkpoint",
        "weight_data_types": "fp4",
        "weight_transformations": "quantization",
    }
    value: dict[str, Any] = {
        "name": "two-nodes",
        "system": system,
        "measurements": dict.fromkeys(SCORES, weights),
        "calibration": "calibration.md",
    }
    for key, change in changes.items():
        holder = value if key in ("name", "measurements", "calibration", "uneven_nodes", "serving") else system
        if change is None:
            holder.pop(key, None)
        else:
            holder[key] = change
    path = place / "system.yaml"
    path.write_text(yaml.dump(value, sort_keys=False, Dumper=_Plain))
    return path


class _Plain(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - PyYAML calls it so
        return True
