"""What the engines hold right now: requests that run or wait, and the share of KV cache in use, from /metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Mapping

KV_SHARE = "kv_share"
GAUGES: dict[str, tuple[str, dict[str, str]]] = {
    "running": ("vllm:num_requests_running", {}),
    "waiting": ("vllm:num_requests_waiting", {}),
    KV_SHARE: ("vllm:kv_cache_usage_perc", {}),
    "in_flight": ("dynamo_component_inflight_requests", {"dynamo_endpoint": "generate"}),
    "queued": ("dynamo_work_handler_queue_depth", {}),
    "sglang_running": ("sglang:num_running_reqs", {}),
    "sglang_waiting": ("sglang:num_queue_reqs", {}),
    "sglang_kv_share": ("sglang:token_usage", {}),
}
"""Name here -> sample name and labels at the engine: vLLM 0.31.0 and the mocker under Dynamo 1.6.1, SGLang's production
metrics page. A share is of 1, and cached blocks that no request holds are not in it."""

Gauges = dict[str, float]


def parse_gauges(text: str) -> Gauges:
    """Each known gauge of a page, summed over its label sets; what an engine does not show is left out.

    Args:
        text: A /metrics page in the Prometheus text format.
    """
    wanted = {sample: (name, labels) for name, (sample, labels) in GAUGES.items()}
    kept = "".join(f"{line}\n" for line in text.splitlines() if line.startswith(tuple(wanted)))
    found: Gauges = {}
    for family in text_string_to_metric_families(kept):
        for sample in family.samples:
            name, labels = wanted.get(sample.name, ("", {}))
            if name and labels.items() <= sample.labels.items():
                found[name] = found.get(name, 0.0) + sample.value
    return found


def above(now: Mapping[str, float], baseline: Mapping[str, float], kv_room: float) -> dict[str, float]:
    """The gauges that are above their baseline; shares of KV cache only by more than `kv_room`."""
    return {
        name: value
        for name, value in now.items()
        if value > baseline.get(name, 0.0) + (kv_room if name.endswith(KV_SHARE) else 0.0)
    }
