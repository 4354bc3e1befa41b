"""Other clients to compare with, where `make bench-peers` has put them: mlcommons/endpoints and AIPerf.

Both run as their documentation has it, with one worker process and with the token counts that the server sends.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.performance.client_runs import Client, Load

_TOKENIZER = Path(__file__).resolve().parents[2] / "assets" / "tiny-qwen3-vl-moe"
"""AIPerf loads a tokenizer whether it uses it or not; `make assets` makes this one."""


class Endpoints(Client):
    """`inference-endpoint benchmark from-config` of github.com/mlcommons/endpoints @ ea332753."""

    name = "endpoints"

    def __init__(self, peers: Path) -> None:
        self.program = peers / "endpoints" / "bin" / "inference-endpoint"

    def prepare(self, load: Load, port: int, directory: Path) -> list[str]:
        """Its YAML and its data set."""
        (directory / "data.jsonl").write_text(
            "".join(json.dumps({"text_input": text}) + "\n" for text in load.prompts())
        )
        pattern = (
            {"type": "poisson", "target_qps": load.qps}
            if load.qps
            else {"type": "concurrency", "target_concurrency": load.in_flight}
        )
        config = {
            "name": "bench",
            "version": "1.0",
            "type": "online",
            "model_params": {"name": "m", "max_new_tokens": load.tokens, "streaming": "on"},
            "datasets": [
                {
                    "name": "perf",
                    "type": "performance",
                    "path": str(directory / "data.jsonl"),
                    "samples": load.requests,
                    "parser": {"prompt": "text_input"},
                }
            ],
            "settings": {
                "runtime": {"min_duration_ms": 1, "n_samples_to_issue": load.requests},
                "load_pattern": pattern,
                "client": {"num_workers": 1, "warmup_connections": 64},
            },
            "endpoint_config": {"endpoints": [f"http://127.0.0.1:{port}"]},
            "enable_cpu_affinity": False,
            "report_dir": str(directory / "report"),
        }
        (directory / "config.yaml").write_text(json.dumps(config))  # JSON is YAML
        return [str(self.program), "benchmark", "from-config", "--config", str(directory / "config.yaml")]

    def ttft_ms(self, directory: Path) -> tuple[float, float] | None:
        """From its `result_summary.json`, in nanoseconds there."""
        found = sorted((directory / "report").rglob("result_summary.json"))
        if not found:
            return None
        percentiles = json.loads(found[0].read_text())["ttft"]["percentiles"]
        by_number = {float(key): value for key, value in percentiles.items()}
        return by_number[50.0] / 1e6, by_number[99.0] / 1e6


class AIPerf(Client):
    """`aiperf profile` of PyPI's aiperf."""

    name = "aiperf"

    def __init__(self, peers: Path) -> None:
        self.program = peers / "aiperf" / "bin" / "aiperf"

    def prepare(self, load: Load, port: int, directory: Path) -> list[str]:
        """Its arguments and its data set."""
        (directory / "data.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in load.prompts()))
        rate = (
            ("--request-rate", str(load.qps), "--arrival-pattern", "poisson")
            if load.qps
            else ("--concurrency", str(load.in_flight))
        )
        return [
            str(self.program),
            "profile",
            *("--model", "m", "--url", f"http://127.0.0.1:{port}", "--endpoint-type", "chat", "--streaming"),
            *("--input-file", str(directory / "data.jsonl"), "--custom-dataset-type", "single_turn"),
            *("--request-count", str(load.requests), *rate, "--use-server-token-count", "--tokenizer", str(_TOKENIZER)),
            *("--workers-max", "1", "--ui", "none", "--no-server-metrics", "--no-gpu-telemetry"),
            *("--artifact-dir", str(directory / "artifacts")),
        ]

    def ttft_ms(self, directory: Path) -> tuple[float, float] | None:
        """From its JSON export, in milliseconds there."""
        found = sorted((directory / "artifacts").rglob("profile_export_aiperf.json"))
        if not found:
            return None
        entry = json.loads(found[0].read_text())["time_to_first_token"]
        return float(entry["p50"]), float(entry["p99"])
