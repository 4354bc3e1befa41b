"""The engines' own counters: read from /metrics, subtracted, and turned into proof of what happened."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from dynamo_mlperf.record import TransferEvidence

if TYPE_CHECKING:
    from collections.abc import Mapping

_FINISHED = ("stop", "length")
_FINISHED_SAMPLE = "vllm:request_success_total"
_WORKER_ID = re.compile(r'[{,]worker_id="([0-9a-fA-F]+)"')

COUNTERS: dict[str, tuple[str, dict[str, str]]] = {
    "served": ("dynamo_component_requests_total", {"dynamo_endpoint": "generate"}),
    "served_ms": ("dynamo_component_request_duration_seconds_sum", {"dynamo_endpoint": "generate"}),
    "prompt_tokens": ("vllm:prompt_tokens_total", {}),
    "generation_tokens": ("vllm:generation_tokens_total", {}),
    "external_tokens": ("vllm:prompt_tokens_by_source_total", {"source": "external_kv_transfer"}),
    "local_tokens": ("vllm:prompt_tokens_by_source_total", {"source": "local_compute"}),
    "cached_tokens": ("vllm:prompt_tokens_by_source_total", {"source": "local_cache_hit"}),
    "kv_bytes": ("vllm:nixl_bytes_transferred_sum", {}),
    "transfers": ("vllm:nixl_bytes_transferred_count", {}),
    "failed_transfers": ("vllm:nixl_num_failed_transfers_total", {}),
    "failed_notifications": ("vllm:nixl_num_failed_notifications_total", {}),
    "expired_transfers": ("vllm:nixl_num_kv_expired_reqs_total", {}),
}
"""Name here -> sample name and labels at the engine (vLLM 0.31.0 under Dynamo 1.6.1)."""

_SCALES = {"served_ms": 1000}

Counts = Counter[str]


def parse_counters(text: str) -> Counts:
    """Sum each known counter over its label sets; `finished` counts requests that ended with an answer.

    Lines of other metrics are left out before parsing: an engine shows thousands, and there may be hundreds of engines.

    Args:
        text: A /metrics page in the Prometheus text format.
    """
    wanted: dict[str, list[tuple[str, dict[str, str]]]] = {}
    for name, (sample_name, labels) in COUNTERS.items():
        wanted.setdefault(sample_name, []).append((name, labels))
    heads = (_FINISHED_SAMPLE, *wanted)
    kept = "".join(f"{line}\n" for line in text.splitlines() if line.startswith(heads))
    counts: Counts = Counter()
    for family in text_string_to_metric_families(kept):
        for sample in family.samples:
            if sample.name == _FINISHED_SAMPLE and sample.labels.get("finished_reason") in _FINISHED:
                counts["finished"] += int(sample.value)
            for name, labels in wanted.get(sample.name, ()):
                if labels.items() <= sample.labels.items():
                    counts[name] += round(sample.value * _SCALES.get(name, 1))
    return counts


def worker_id(text: str) -> int | None:
    """The Dynamo instance that a worker's metrics speak for (hexadecimal in the `worker_id` label)."""
    found = _WORKER_ID.search(text)
    return int(found[1], 16) if found else None


def difference(before: Counts, after: Counts) -> Counts:
    """What was counted between two readings."""
    return Counter({name: after[name] - before[name] for name in after.keys() | before.keys()})


def transfer_evidence(engine: str, per_role: Mapping[str, Counts]) -> TransferEvidence:
    """What the counter differences of a window, summed per role, prove.

    Args:
        engine: The topology's engine.
        per_role: Counter differences by role.

    `remote_prefills` counts the requests whose prompt arrived whole. The engines count tokens, not requests, by
    source: when some tokens were computed locally, the number is the share of external tokens, rounded down, so it
    never says more than happened.
    """
    if "decode" not in per_role:
        done = per_role.get("aggregated", Counter())
        return TransferEvidence(
            disaggregated=False,
            proof="none",
            requests=_requests(engine, done),
            prompt_tokens=done["prompt_tokens"],
            local_tokens=done["local_tokens"],
        )
    prefill, decode = per_role["prefill"], per_role["decode"]
    requests = _requests(engine, decode)
    if engine == "mocker":
        served = prefill["served"]
        return TransferEvidence(
            disaggregated=True,
            proof="routing only",
            requests=requests,
            prefill_requests=served,
            remote_prefills=min(served, requests),
        )
    local = decode["local_tokens"] + decode["cached_tokens"]
    total = decode["external_tokens"] + local
    whole = requests if total and not local else requests * decode["external_tokens"] // max(total, 1)
    failures = ("failed_transfers", "failed_notifications", "expired_transfers")
    return TransferEvidence(
        disaggregated=True,
        proof="kv-counters" if total else "none",
        requests=requests,
        prefill_requests=_requests(engine, prefill),
        remote_prefills=min(whole, _requests(engine, prefill)),
        prompt_tokens=total,
        external_tokens=decode["external_tokens"],
        local_tokens=local,
        kv_bytes=decode["kv_bytes"],
        transfers=decode["transfers"],
        failed_transfers=sum(counts[name] for counts in (prefill, decode) for name in failures),
    )


def _requests(engine: str, counts: Counts) -> int:
    return counts["finished"] if engine == "vllm" else counts["served"]
