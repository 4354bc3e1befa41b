"""What `doctor` asks of a node of a cluster: `python -m dynamo_mlperf.process.node_probe LOCAL SHARED MIB`.

It prints one JSON object: limits, GPUs and their NVLink domain, RDMA devices, and how fast the local and the shared
directory are written and read. SHARED may be empty. Nothing it writes stays.
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import re
import resource
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.process.programs import run_program

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK_BYTES = 4 * 2**20
LONGEST_S = 5.0
"""How long one direction of a disk may be tried."""
PROGRAM_S = 30.0
_LIMITS = {"open_files": resource.RLIMIT_NOFILE, "locked_bytes": resource.RLIMIT_MEMLOCK, "core": resource.RLIMIT_CORE}
_SYS = Path("/sys")
_IMEX = Path("/dev/nvidia-caps-imex-channels")


def probe(local: str, shared: str, mib: int) -> dict[str, Any]:
    """Everything that is asked of this node."""
    return {
        "host": socket.gethostname(),
        "limits": {name: resource.getrlimit(number)[0] for name, number in _LIMITS.items()},
        "gpus": gpus(),
        "imex_channels": len(list(_IMEX.iterdir())) if _IMEX.is_dir() else None,
        "rdma": rdma_devices(_SYS),
        "local": disk_speed(Path(local), mib),
        "shared": disk_speed(Path(shared), mib) if shared else None,
        "t": time.time(),
    }


def gpus() -> list[dict[str, Any]]:
    """The GPUs that this process sees: name, PCI address, and of NVIDIA's the state of their NVLink fabric."""
    if shutil.which("nvidia-smi"):
        with contextlib.suppress(SetupError):
            return parse_nvidia(run_program(["nvidia-smi", "-q"], timeout_s=PROGRAM_S).stdout)
    return amd_gpus(_SYS)


def parse_nvidia(text: str) -> list[dict[str, Any]]:
    """What `nvidia-smi -q` says of each GPU; a section's entries are indented deeper than its name."""
    found: list[dict[str, Any]] = []
    section = ""
    for line in text.splitlines():
        if start := re.match(r"GPU ([0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\.[0-9A-F])", line):
            found.append({"pci": start[1][4:].lower(), "name": "", "fabric": {}})
        elif found and (entry := re.match(r"(\s+)([^:]+?)\s*(?:: (.*))?$", line)):
            key, value = entry[2], entry[3]
            if len(entry[1]) == 4:  # noqa: PLR2004 - the first level below a GPU
                section = key if value is None else ""
            if key == "Product Name" and value:
                found[-1]["name"] = value
            elif section == "Fabric" and value is not None:
                found[-1]["fabric"][key] = value
    return found


def amd_gpus(sys_root: Path) -> list[dict[str, Any]]:
    """AMD's GPUs by the kernel's driver for them; source: the amdgpu driver's PCI devices in sysfs."""
    driver = sys_root / "bus" / "pci" / "drivers" / "amdgpu"
    names = sorted(path.name for path in driver.glob("[0-9a-f]*:*")) if driver.is_dir() else []
    return [{"pci": name, "name": "AMD GPU", "fabric": {}} for name in names]


def rdma_devices(sys_root: Path) -> list[dict[str, Any]]:
    """InfiniBand and RoCE devices: port state, link layer, rate, PCI path; source: the kernel's infiniband sysfs."""
    return [
        {
            "device": f"{device.name}:{port.name}",
            "state": _read(port / "state").partition(": ")[2],
            "link": _read(port / "link_layer"),
            "rate": _read(port / "rate"),
            "path": str((device / "device").resolve()),
        }
        for device in sorted((sys_root / "class" / "infiniband").glob("*"))
        for port in sorted((device / "ports").glob("*"))
    ]


def nearest_rdma(pci: str, devices: list[dict[str, Any]], sys_root: Path = _SYS) -> str | None:
    """The active device whose way through the PCI tree is the one most in common with the GPU's; None without any."""
    gpu = (sys_root / "bus" / "pci" / "devices" / pci).resolve()
    active = [device for device in devices if device["state"] == "ACTIVE"]

    def shared(device: dict[str, Any]) -> int:
        return len(Path(os.path.commonpath([gpu, device["path"]])).parts)

    return str(max(active, key=shared)["device"]) if active else None


def disk_speed(directory: Path, mib: int) -> dict[str, Any]:
    """Bytes per second when `mib` MiB are written to a file of our own there and read back, past the page cache.

    Where the file system knows no direct access (tmpfs, some network ones), through the cache: `direct` says which.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _own_file(directory) as (path, direct):
            written, write_s = _write(path, mib * 2**20, direct=direct)
            read, read_s = _read_all(path, direct=direct)
    except OSError as problem:
        return {"problem": f"{problem.filename or directory}: {problem.strerror}"}
    return {"write_bytes_per_s": written / write_s, "read_bytes_per_s": read / read_s, "direct": direct}


@contextlib.contextmanager
def _own_file(directory: Path) -> Iterator[tuple[Path, bool]]:
    descriptor, name = tempfile.mkstemp(prefix=".doctor-", dir=directory)
    os.close(descriptor)
    try:
        yield Path(name), _takes_direct_access(name)
    finally:
        Path(name).unlink(missing_ok=True)


def _takes_direct_access(name: str) -> bool:
    try:
        os.close(os.open(name, os.O_WRONLY | os.O_DIRECT))
    except OSError as problem:
        if problem.errno != errno.EINVAL:  # no direct access here (open(2))
            raise
        return False
    return True


def _write(path: Path, size_bytes: int, *, direct: bool) -> tuple[int, float]:
    block = mmap.mmap(-1, BLOCK_BYTES)  # whole pages, as direct access wants them
    block.write(os.urandom(BLOCK_BYTES))
    began, done = time.monotonic(), 0
    descriptor = os.open(path, os.O_WRONLY | (os.O_DIRECT if direct else 0))
    try:
        while done < size_bytes and time.monotonic() - began < LONGEST_S:
            done += os.write(descriptor, block)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
        block.close()
    return done, max(time.monotonic() - began, 1e-6)


def _read_all(path: Path, *, direct: bool) -> tuple[int, float]:
    block = mmap.mmap(-1, BLOCK_BYTES)
    descriptor = os.open(path, os.O_RDONLY | (os.O_DIRECT if direct else 0))
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    began, done = time.monotonic(), 0
    try:
        while (count := os.readv(descriptor, [block])) and time.monotonic() - began < LONGEST_S:
            done += count
    finally:
        os.close(descriptor)
        block.close()
    return done, max(time.monotonic() - began, 1e-6)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def main(local: str, shared: str, mib: str) -> int:
    """Print what this node is."""
    found = probe(local, shared, int(mib))
    for gpu in found["gpus"]:
        gpu["rdma"] = nearest_rdma(gpu["pci"], found["rdma"])
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
