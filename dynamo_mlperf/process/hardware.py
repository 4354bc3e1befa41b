"""What a node is made of, for the system description of a submission: read from the kernel, in milliseconds.

Sources: proc(5) (`/proc/cpuinfo`, NVIDIA's `/proc/driver/nvidia/gpus/*/information`) and sysfs (CPU topology, block and
network devices, amdgpu's `mem_info_vram_total`). What a node does not tell is left out, never guessed.
"""

from __future__ import annotations

import contextlib
import platform
import re
from pathlib import Path
from typing import Any

import psutil

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.process.programs import run_program

_ROOT = Path("/")
_SECTOR_BYTES = 512
_LSCPU_S = 5.0


def read_hardware(root: Path = _ROOT) -> dict[str, Any]:
    """Facts by name; `root` is where `/proc`, `/sys` and `/etc` are looked for.

    Returns:
        `cpu` (model name), `sockets`, `cores_per_socket`, `memory_bytes`, `os`, `kernel`, `accelerators` (model names),
        `accelerator_memory_bytes`, `network_cards`, `storage_bytes`, `storage` (kinds); each only where it is known.
    """
    cores = _cores_by_socket(root)
    found: dict[str, Any] = {
        "cpu": _cpu_model(root),
        "sockets": len(cores),
        "cores_per_socket": max((len(ids) for ids in cores.values()), default=0),
        "memory_bytes": psutil.virtual_memory().total,
        "os": _os_name(root),
        "kernel": platform.release(),
        "accelerators": _accelerators(root),
        "accelerator_memory_bytes": _amd_memory_bytes(root),
        "network_cards": len(_network_cards(root)),
        **_storage(root),
    }
    return {name: value for name, value in found.items() if value}


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _cpu_model(root: Path) -> str:
    """The model's name; Arm's kernels do not print one, and lscpu knows it by the part number."""
    if named := re.search(r"^model name\s*:\s*(.+)$", _read(root / "proc" / "cpuinfo"), re.MULTILINE):
        return named[1].strip()
    if root == _ROOT:
        with contextlib.suppress(SetupError):
            said = run_program(["lscpu"], timeout_s=_LSCPU_S, env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"}).stdout
            if named := re.search(r"^(?:BIOS )?Model name:\s*(.+)$", said, re.MULTILINE):
                return named[1].strip()
    return ""


def _cores_by_socket(root: Path) -> dict[str, set[str]]:
    """Core ids by the package that they are in."""
    found: dict[str, set[str]] = {}
    for topology in (root / "sys/devices/system/cpu").glob("cpu[0-9]*/topology"):
        socket, core = _read(topology / "physical_package_id"), _read(topology / "core_id")
        if socket and core:
            found.setdefault(socket, set()).add(core)
    return found


def _os_name(root: Path) -> str:
    named = re.search(r'^PRETTY_NAME="?([^"\n]+)', _read(root / "etc" / "os-release"), re.MULTILINE)
    return named[1] if named else ""


def _accelerators(root: Path) -> list[str]:
    """Model names of NVIDIA's GPUs; amdgpu gives no name."""
    texts = (_read(path) for path in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")))
    names = (re.search(r"^Model:\s*(.+)$", text, re.MULTILINE) for text in texts)
    return [name[1].strip() for name in names if name]


def _amd_memory_bytes(root: Path) -> int:
    """Memory of one AMD GPU, where all have the same."""
    sizes = {_read(path) for path in (root / "sys/bus/pci/drivers/amdgpu").glob("*:*/mem_info_vram_total")}
    return int(sizes.pop()) if len(sizes) == 1 and next(iter(sizes)).isdigit() else 0


def _network_cards(root: Path) -> set[str]:
    """Cards by their place: the ports of one card are functions of one device."""
    links = [*(root / "sys/class/net").glob("*/device"), *(root / "sys/class/infiniband").glob("*/device")]
    return {re.sub(r"\.\d+$", "", link.resolve().name) for link in links}


def _storage(root: Path) -> dict[str, Any]:
    disks = [disk for disk in (root / "sys/block").glob("*") if (disk / "device").exists()]
    sectors = {disk.name: _read(disk / "size") for disk in disks}
    kinds = {"NVMe SSD" if name.startswith("nvme") else "disk" for name in sectors}
    return {
        "storage_bytes": sum(int(count) for count in sectors.values() if count.isdigit()) * _SECTOR_BYTES,
        "storage": sorted(kinds),
    }
