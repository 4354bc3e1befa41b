"""Facts about the machine that this code runs on: read on each node before anything starts there."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import socket
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from dynamo_mlperf.process.command import RUN_VARIABLE
from dynamo_mlperf.process.hardware import read_hardware
from dynamo_mlperf.process.shared_memory import mapped_by, noted, remove_unmapped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_TMPFS = Path("/dev/shm")  # noqa: S108 - a name below it is one run's own
_SCRATCH = "dynamo-mlperf-"
_OWNER = "owner"
_KILL_S = 5.0
_DEVICE_VARIABLES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
SHARED_MEMORY = "shared-memory"
"""In a scratch directory: the notes of what the run's processes map."""


@dataclass(frozen=True)
class MachineFacts:
    """What one node says of itself.

    Attributes:
        host: Its hostname.
        addresses: IPv4 address per network interface.
        own_address: The address that its own hostname stands for, empty when that is a loopback one.
        cores: Cores that this process may use.
        memory_available_bytes: Memory that can be had without swapping.
        disk_free_bytes: Free room where weights are staged.
        gpus: GPUs that are visible here.
        listening: TCP ports in use, each with the process id that holds it (0 where it cannot be seen).
        leftovers: Processes of an earlier run whose controller is gone, each with its run's mark.
        abandoned: Scratch directories of such runs, each with its run's mark.
        devices: What the GPUs that Slurm gave are called here, in the plan's order; empty where nobody said.
        gpu_numbers: The node's own numbers of the same GPUs; empty where they are not known.
        hardware: What the node is made of (`read_hardware`), for a submission's system description.
    """

    host: str
    addresses: dict[str, str]
    own_address: str
    cores: int
    memory_available_bytes: int
    disk_free_bytes: int
    gpus: int
    listening: dict[int, int]
    leftovers: dict[int, str]
    abandoned: dict[str, str]
    devices: list[str]
    hardware: dict[str, Any] = field(default_factory=dict)
    gpu_numbers: list[int] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def facts_from_json(value: dict[str, Any]) -> MachineFacts:
    """The inverse of `MachineFacts.as_json` after JSON made strings of the integer keys."""
    numbers = {name: {int(key): item for key, item in value[name].items()} for name in ("listening", "leftovers")}
    return MachineFacts(**{**value, **numbers})


def read_machine(local_path: Path) -> MachineFacts:
    """Read the facts of this machine; `local_path` is where weights would be staged (need not exist yet)."""
    host = socket.gethostname()
    return MachineFacts(
        host=host,
        addresses=_addresses(),
        own_address=_own_address(host),
        cores=len(os.sched_getaffinity(0)),
        memory_available_bytes=psutil.virtual_memory().available,
        disk_free_bytes=shutil.disk_usage(_existing(local_path)).free,
        gpus=visible_gpus(),
        listening=_listening(),
        leftovers=_leftovers(),
        abandoned=_abandoned(),
        devices=_devices(),
        hardware=read_hardware(),
        gpu_numbers=_gpu_numbers(),
    )


def _existing(path: Path) -> Path:
    return next(place for place in (path, *path.parents) if place.exists())


def _addresses() -> dict[str, str]:
    found: dict[str, str] = {}
    for interface, entries in psutil.net_if_addrs().items():
        for entry in entries:
            if entry.family == socket.AF_INET:
                found.setdefault(interface, entry.address)
    return found


def _own_address(host: str) -> str:
    try:
        address = socket.gethostbyname(host)
    except OSError:
        return ""
    return "" if address.startswith("127.") else address


def visible_gpus() -> int:
    """GPUs by their device files; what Slurm gives narrows them."""
    if any(name in os.environ for name in _DEVICE_VARIABLES):
        return len(_devices())
    return sum(1 for entry in Path("/dev").iterdir() if entry.name.startswith("nvidia") and entry.name[6:].isdigit())


def _devices() -> list[str]:
    """The GPUs by the names that Slurm's gres/gpu plugin puts into a step's environment (gres.html, "GPU Management").

    With ConstrainDevices they count from 0 within the job, otherwise they are the node's own numbers; either way
    they are what the engine must be told.
    """
    for name in _DEVICE_VARIABLES:
        if name in os.environ:
            return [device.strip() for device in os.environ[name].split(",") if device.strip()]
    return []


def _gpu_numbers() -> list[int]:
    """The numbers that the node itself gives the GPUs of this step, or job, as Slurm says them.

    They count all of the node's GPUs, with ConstrainDevices too (srun's manual page, SLURM_STEP_GPUS; sbatch's,
    SLURM_JOB_GPUS). Where Slurm says neither, nothing is known: names of devices may count the granted ones alone.
    """
    for name in ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS"):
        numbers = [number.strip() for number in os.environ.get(name, "").split(",")]
        if all(number.isdigit() for number in numbers):
            return [int(number) for number in numbers]
    return []


def _listening() -> dict[int, int]:
    return {
        entry.laddr.port: entry.pid or 0
        for entry in psutil.net_connections(kind="tcp")
        if entry.status == psutil.CONN_LISTEN and entry.laddr
    }


def _leftovers() -> dict[int, str]:
    """Processes that carry a run's mark though the controller that the mark names is gone."""
    found: dict[int, str] = {}
    for process in psutil.process_iter(["pid"]):
        try:
            mark = process.environ().get(RUN_VARIABLE, "")
        except (psutil.Error, OSError):
            continue
        if mark and not _controller_lives(mark):
            found[process.pid] = mark
    return found


def marked(mark: str) -> list[int]:
    """Processes that were started with exactly this mark, wherever they have gone: a session of its own hides none."""
    found = []
    for process in psutil.process_iter(["pid"]):
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(RUN_VARIABLE) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


def run_mark(run_id: str) -> str:
    """The value of the run variable: run, and the controller's host, process namespace, process id and start time.

    The start time is in clock ticks after boot: one in seconds since the epoch moves when the clock is set, and a
    living controller would then look like one that is gone. So would one in another process namespace, a container's
    say, where the same number is another process.
    """
    return f"{run_id}@{_here()}@{os.getpid()}@{_start_ticks(os.getpid())}"


def _here() -> str:
    """This host and its process namespace (pid_namespaces(7)): where a process id has its meaning."""
    return f"{socket.gethostname()}@{Path('/proc/self/ns/pid').stat().st_ino}"


def _start_ticks(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat (proc(5)), counted behind the command in parentheses; None without such a process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in "ZX" else int(fields[18])


def _controller_lives(mark: str) -> bool:
    """False only when the mark names a process of this host and namespace that is gone; others it cannot judge."""
    where, _, process = mark.partition("@")[2].rpartition("@")[0].rpartition("@")
    if where != _here() or not process.isdigit():
        return True
    return str(_start_ticks(int(process))) == mark.rpartition("@")[2]


def make_scratch(name: str, mark: str) -> Path:
    """A directory on tmpfs for the run's own use; `mark` says whose it is, should the controller not live to remove it.

    Raises:
        OSError: There is one of that name, or no room.
    """
    path = _TMPFS / f"{_SCRATCH}{name}"
    path.mkdir(mode=0o700)
    (path / _OWNER).write_text(mark)
    return path


def _abandoned() -> dict[str, str]:
    """Scratch directories whose controller is gone; other users' cannot be looked into and are theirs to remove."""
    found: dict[str, str] = {}
    for owner in _TMPFS.glob(f"{_SCRATCH}*/{_OWNER}"):
        with contextlib.suppress(OSError):
            mark = owner.read_text()
            if mark and not _controller_lives(mark):
                found[str(owner.parent)] = mark
    return found


def own_start_t() -> float:
    """When this process was started, in seconds since the epoch."""
    return round(psutil.Process().create_time(), 3)


def peak_memory_bytes() -> int:
    """The most memory that this process has held so far (resident set)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def raise_descriptor_limit() -> None:
    """Let this process, and what it starts, open as many files as the administrator allows.

    The usual soft limit of 1024 is too low for large deployments: a frontend of 512 workers holds 2,100 descriptors,
    the store 530. Slurm hands the limit on to steps (PropagateResourceLimits).
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def own_cpu_s() -> float:
    """Seconds of processor time that this process has used so far, its children's left out."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return round(used.ru_utime + used.ru_stime, 2)


def end_leftovers(facts: MachineFacts) -> list[str]:
    """End what earlier runs left: processes first, then the memory and the directories that they used.

    Returns:
        The shared memory that was removed.
    """
    held = mapped_by(facts.leftovers)
    for path in facts.abandoned:
        held |= noted(Path(path) / SHARED_MEMORY)
    end_processes(facts.leftovers)
    removed = remove_unmapped(held)
    for path in facts.abandoned:
        shutil.rmtree(path, ignore_errors=True)
    return removed


def end_processes(pids: Iterable[int]) -> None:
    """SIGKILL the processes and wait until they are gone; those that are gone already are no problem."""
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
            found[-1].kill()
    psutil.wait_procs(found, timeout=_KILL_S)


def controller_of(run_id: str) -> int | None:
    """The process id of the controller of a run, when it runs on this host and in this process namespace."""
    for owner in _TMPFS.glob(f"{_SCRATCH}*/{_OWNER}"):
        with contextlib.suppress(OSError):
            run, _, rest = owner.read_text().partition("@")
            where, _, process = rest.rpartition("@")[0].rpartition("@")
            if run == run_id and where == _here() and process.isdigit():
                return int(process) if str(_start_ticks(int(process))) == rest.rpartition("@")[2] else None
    return None


def terminate(pid: int, is_it: Callable[[], bool]) -> None:
    """SIGTERM to the process, and to no other that has come to its number: `is_it` is asked while we hold it.

    Raises:
        PermissionError: It is another user's.
    """
    try:
        held = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if is_it():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(held, signal.SIGTERM)
    finally:
        os.close(held)
