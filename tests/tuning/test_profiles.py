from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from dynamo_mlperf.benchmark.model_shapes import PUBLISHED, shape_of
from dynamo_mlperf.errors import ConfigError, SetupError
from dynamo_mlperf.tuning.profile_sources import Served, from_aiconfigurator, roofline
from dynamo_mlperf.tuning.profiles import (
    ORIGINS,
    Profile,
    checked,
    find_shipped,
    read_profile,
    shipped_profiles,
    write_profile,
)

if TYPE_CHECKING:
    from pathlib import Path

QWEN = "qwen3-vl-235b-a22b"
SERVED = Served(QWEN, "nvfp4", "gb200", 1)


def profile() -> Profile:
    prompts, loads, context = np.array([10.0, 1e3, 1e5]), np.array([64.0, 1e4, 1e6]), np.array([64.0, 1e4])
    steps = 5.0 + loads[:, None] / 1e5 + context[None, :] * 0.0
    return Profile(
        "mine", prompts, 1.0 + prompts / 100.0, loads, context, steps, {"origin": "measured", "gpu": "gb200"}
    )


def test_what_is_written_is_read_with_its_origin(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    write_profile(profile(), path)
    found = read_profile(path)
    assert found.facts == {"origin": "measured", "gpu": "gb200"}
    assert found.prefill_at(1e3) == pytest.approx(11.0)
    assert found.itl_at(1, 1e4) == pytest.approx(5.1)
    assert found.scaled(2.0, 3.0).prefill_at(1e3) == pytest.approx(22.0)
    assert found.scaled(2.0, 3.0).itl_at(1, 1e4) == pytest.approx(15.3)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("prefill_ms", np.array([1.0, np.nan, 3.0]), r"prefill_ttft_ms holds nan ms \(1 of 3 values\)"),
        ("prefill_ms", np.array([1.0, -2.0, 3.0]), "holds -2 ms"),
        ("prefill_ms", np.array([1.0, 2.0, 1e9]), "holds 1e[+]09 ms"),
        ("prefill_ms", np.array([9.0, 5.0, 12.0]), "falls by 44 %: 5 ms at 1000 tokens, 9 ms below that"),
        ("prefill_tokens", np.array([1e3, 10.0, 1e5]), "prefill_isl does not ascend: 1000 is followed by 10"),
        ("kv_tokens", np.array([-1.0, 1e4, 1e6]), "decode_active_kv_tokens holds -1"),
        ("itl_ms", np.array([[7.0, 7.0], [5.0, 7.0], [8.0, 8.0]]), "decode_itl falls by 29 %: 5 ms at 10000 tokens"),
        ("itl_ms", np.ones((2, 2)), r"shapes do not fit: .*\(3,\) by \(2,\) loads and \(2, 2\) step times"),
        ("context", np.array([64.0]), "shapes do not fit"),
    ],
)
def test_nonsense_is_refused_with_its_numbers(name: str, value: Any, told: str) -> None:
    changed: dict[str, Any] = {name: value}
    with pytest.raises(ConfigError, match=told):
        checked(replace(profile(), **changed), "here", "measure again")


def test_scatter_is_smoothed_upwards_and_not_refused() -> None:
    found = checked(replace(profile(), prefill_ms=np.array([10.0, 9.5, 12.0])), "here", "")
    assert list(found.prefill_ms) == [10.0, 10.0, 12.0]


def test_every_damage_of_an_npz_is_refused(tmp_path: Path) -> None:
    """Bytes turned one by one, in the stored headers and in what is compressed."""
    good, path = bytearray(profile().npz_bytes()), tmp_path / "mine.npz"
    for place in range(0, len(good), 9):
        path.write_bytes(good[:place] + bytes([good[place] ^ 0x2F]) + good[place + 1 :])
        with contextlib.suppress(ConfigError):  # anything else fails the test
            read_profile(path)


@pytest.mark.parametrize("value", [np.float64(1.0), np.array([1 + 1j, 2]), np.array(["a", "b"])])
def test_arrays_of_another_kind_are_refused(value: Any, tmp_path: Path) -> None:
    names = ("prefill_isl", "prefill_ttft_ms", "decode_active_kv_tokens", "decode_context_length", "decode_itl")
    path = tmp_path / "mine.npz"
    np.savez(path, **dict.fromkeys(names, value))
    with pytest.raises(ConfigError, match=r"shapes do not fit|could not convert"):
        read_profile(path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut", b"not an npz at all"])
def test_files_that_are_no_profile_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"mine\.npz is no profile"):
        read_profile(path)
    with pytest.raises(ConfigError, match="No such file"):
        read_profile(tmp_path / "missing.npz")


def test_an_npz_of_other_keys_or_of_objects_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, prefill_isl=np.arange(3.0))
    with pytest.raises(ConfigError, match="no prefill_ttft_ms, decode_active_kv_tokens"):
        read_profile(path)
    objects = np.array([print], dtype=object)
    np.savez(
        path,
        allow_pickle=True,
        prefill_isl=objects,
        prefill_ttft_ms=objects,
        decode_active_kv_tokens=objects,
        decode_context_length=objects,
        decode_itl=objects,
    )
    with pytest.raises(ConfigError, match="is no profile: Object arrays cannot be loaded"):
        read_profile(path)


def test_every_shipped_profile_says_where_it_comes_from() -> None:
    paths = list(shipped_profiles(QWEN))
    assert {path.stem for path in paths} >= {f"{gpu}-nvfp4-tp{tp}" for gpu in ("gb200", "gb300") for tp in (1, 2, 4)}
    for path in paths:
        facts = read_profile(path).facts
        assert facts["origin"] in ORIGINS
        assert {"gpu", "model", "precision", "tensor_parallel", "date", "source"} <= set(facts)
        assert path.stat().st_size < 20_000


def test_a_shipped_profile_is_found_by_what_it_is_of() -> None:
    found = find_shipped(QWEN, "gb200", "nvfp4", 2)
    assert found is not None
    assert found.name == "gb200-nvfp4-tp2"
    assert find_shipped(QWEN, "gb200", "fp8", 2) is None
    assert find_shipped(QWEN, "h100", "nvfp4", 2) is None


@pytest.mark.parametrize("model", PUBLISHED)
@pytest.mark.parametrize("gpu", ["h100", "gb200", "mi355x"])
def test_rooflines_make_sense_and_are_marked(model: str, gpu: str) -> None:
    shape = shape_of(PUBLISHED[model])
    assert shape is not None
    one, eight = (roofline(Served(model, "fp8", gpu, degree), shape) for degree in (1, 8))
    assert one.facts["origin"] == "analytic"
    assert one.prefill_at(8_000) > eight.prefill_at(8_000)
    assert one.itl_at(64, 4_000) > one.itl_at(1, 4_000) > eight.itl_at(1, 4_000)


def test_a_python_without_aiconfigurator_is_told_what_to_install(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'aiconfigurator_core'\" >&2\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(SetupError, match=r"has no aiconfigurator: .*\n  Try: pip install"):
        from_aiconfigurator(SERVED, str(python))


@pytest.mark.parametrize(
    ("served", "told"),
    [
        (replace(SERVED, gpu="mi355x"), "aiconfigurator does not know mi355x"),
        (replace(SERVED, precision="mxfp4"), "no table for qwen3-vl-235b-a22b in mxfp4"),
    ],
)
def test_what_aiconfigurator_does_not_cover_is_refused_before_it_is_asked(served: Served, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        from_aiconfigurator(served, "/no/python")


@pytest.mark.parametrize(("fall", "refused"), [(1.0, False), (0.5, True)])
def test_tables_of_aiconfigurator_are_checked(fall: float, refused: bool, tmp_path: Path) -> None:  # noqa: FBT001
    """Its FP8 tables of one system say that a step of one sequence takes longer than one of eight."""
    table = {
        "version": "0",
        "prompts": [16, 4_000, 66_000],
        "prefill_ms": [10.0, 100.0, 2_000.0],
        "batches": [1, 8, 1_024],
        "contexts": [256, 8_000],
        "step_ms": [[6.0, 7.0], [9.0 * fall, 9.5 * fall], [40.0, 50.0]],
    }
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho '{json.dumps(table)}'\n")
    python.chmod(0o755)
    if refused:
        with pytest.raises(ConfigError, match=r"aiconfigurator's tables for gb200-nvfp4-tp1: decode_itl falls by"):
            from_aiconfigurator(SERVED, str(python))
    else:
        found = from_aiconfigurator(SERVED, str(python))
        assert found.facts["origin"] == "aiconfigurator"
        assert found.itl_at(1, 256) == pytest.approx(6.0, rel=0.02)
        assert found.itl_at(8, 256) == pytest.approx(9.0, rel=0.05)
