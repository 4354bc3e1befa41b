from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pytest

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.load.queries import CUT, Queries
from dynamo_mlperf.tuning.profile_fit import MeasuredRun, fit_prefill, fit_steps, measured_profile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

WORKERS = 2


def prefill_law(tokens: Array) -> Array:
    return np.asarray(12.0 + 20.0 * tokens / 1e3 + 0.6 * (tokens / 1e3) ** 2)


def step_law(batch: Array, kv_tokens: Array) -> Array:
    return np.asarray(4.0 + 1.5 * np.sqrt(batch) + 0.05 * batch + 0.3 * kv_tokens / 1e4)


def queries(issued: Array, prompts: Array, outputs: Array, steps_ms: Array, noise: float = 0.0) -> Queries:
    """Queries by the laws; `steps_ms` is the time of each one's step."""
    scatter = np.random.default_rng(3).lognormal(0.0, noise, len(issued)) if noise else np.ones(len(issued))
    first = issued + prefill_law(prompts) * scatter
    end = first + steps_ms * (outputs - 1)
    count = len(issued)
    return Queries(
        np.zeros(count, dtype=np.int64),
        issued,
        first,
        end,
        outputs.astype(np.int64),
        prompts.astype(np.int64),
        ("",) * count,
    )


def idle_run(noise: float = 0.0, count: int = 150) -> MeasuredRun:
    """Requests that never meet."""
    draw = np.random.default_rng(1)
    prompts, outputs = draw.integers(800, 20_000, count).astype(float), draw.integers(30, 60, count).astype(float)
    steps = step_law(np.ones(count), prompts + outputs / 2)
    return MeasuredRun(
        "idle", queries(np.arange(count, dtype=np.float64) * 4e3, prompts, outputs, steps, noise), WORKERS, WORKERS
    )


def busy_run(batch: int, noise: float = 0.0) -> MeasuredRun:
    """Groups of requests that decode together from begin to end, `batch` on each worker."""
    groups, together = 12, batch * WORKERS
    prompts, outputs = np.full(groups * together, 4_000.0), np.full(groups * together, 40.0)
    issued = np.repeat(np.arange(groups, dtype=np.float64) * 5e3, together)
    steps = step_law(np.full(len(issued), float(batch)), batch * (prompts + outputs / 2))
    return MeasuredRun(f"busy-{batch}", queries(issued, prompts, outputs, steps, noise), WORKERS, WORKERS)


@pytest.mark.parametrize(("noise", "close"), [(0.0, 0.01), (0.1, 0.06)])
def test_a_known_law_is_found_again(noise: float, close: float) -> None:
    runs = [idle_run(noise), busy_run(4, noise), busy_run(12, noise), busy_run(40, noise)]
    found = measured_profile("mine", runs, {"gpu": "gb200"})
    for tokens in (1_000.0, 4_000.0, 16_000.0):
        assert found.prefill_at(tokens) == pytest.approx(float(prefill_law(np.array(tokens))), rel=close)
    for batch in (1.0, 8.0, 30.0):
        wanted = float(step_law(np.array(batch), np.array(batch * 4_000.0)))
        assert found.itl_at(batch, 4_000.0) == pytest.approx(wanted, rel=0.05)
    assert all(error <= 100 * noise for error in found.facts["held_out_error_percent"].values())
    assert found.facts["origin"] == "measured"
    assert found.facts["source"] == "idle, busy-4, busy-12, busy-40"
    assert found.facts["seen"]["batch"] == pytest.approx([1.0, 40.0], rel=0.02)


def test_waiting_in_a_queue_is_not_taken_for_prefill() -> None:
    """Prompts that overlap others say nothing of their own time, however many they are."""
    crowd = busy_run(40)
    slowed = crowd.queries.first_token_ms + 500.0
    late = Queries(
        crowd.queries.samples,
        crowd.queries.issued_ms,
        slowed,
        crowd.queries.completed_ms + 500.0,
        crowd.queries.output_tokens,
        crowd.queries.prompt_tokens,
        crowd.queries.errors,
    )
    law = fit_prefill([idle_run(), MeasuredRun("late", late, WORKERS, WORKERS)])
    assert law.points == 150
    assert law.coefficients == pytest.approx((12.0, 20.0, 0.6), rel=0.01)


def test_queries_that_are_held_out_tell_what_the_fit_hides() -> None:
    """Every second answer takes twice as long: a law between the two is off by 20 or 40 %, one of the others by half."""
    busy = busy_run(12).queries
    slowed = np.where(np.arange(len(busy)) % 2 == 0, 2.0, 1.0) * (busy.completed_ms - busy.first_token_ms)
    other = MeasuredRun("two", dataclasses.replace(busy, completed_ms=busy.first_token_ms + slowed), WORKERS, WORKERS)
    law = fit_steps([busy_run(4), other])
    assert law.held_out > 1.2 * law.error > 0.1


def test_a_run_that_was_cut_off_counts_up_to_where_all_is_known() -> None:
    """Half of its queries are still in flight: those that met them would look as if they had decoded alone."""
    whole = busy_run(40).queries
    flying = (np.arange(len(whole)) % 2 == 1) & (whole.issued_ms >= 30e3)
    cut = dataclasses.replace(
        whole,
        first_token_ms=np.where(flying, np.nan, whole.first_token_ms),
        completed_ms=np.where(flying, np.nan, whole.completed_ms),
        errors=tuple(CUT if each else "" for each in flying),
    )
    assert cut.known_until_ms == 30e3
    run = MeasuredRun("cut", cut, WORKERS, WORKERS)
    law = fit_steps([idle_run(), busy_run(4), run])
    assert law.points == 150 + len(busy_run(4).queries) + int((whole.issued_ms < 30e3).sum())
    assert law.error < 0.01


def test_too_little_is_refused_with_what_to_measure() -> None:
    with pytest.raises(ConfigError, match=r"0 of 960 queries had a prefill of their own, 30 are needed"):
        fit_prefill([busy_run(40)])
    with pytest.raises(ConfigError, match=r"all steps held 1\.0 to 1\.0 sequences.*\n  Try: measure at two rates"):
        fit_steps([idle_run()])
    with pytest.raises(ConfigError, match="20 answers of 8 tokens or more, 100 are needed"):
        fit_steps([idle_run(count=20)])


def test_prompts_of_one_length_and_prompts_without_tokens_are_refused() -> None:
    count = 60
    issued, outputs = np.arange(count, dtype=np.float64) * 4e3, np.full(count, 40.0)
    for prompts, told in ((4_000.0, "prompts of 4000 to 4000 tokens say nothing"), (0.0, "0 of 60 queries")):
        run = queries(issued, np.full(count, prompts), outputs, np.full(count, 5.0))
        with pytest.raises(ConfigError, match=told):
            fit_prefill([MeasuredRun("one", run, 1, 1)])
