"""The allocation that a batch job, or its owner, holds: each service is a step of its own."""

from __future__ import annotations

import os
import secrets
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.process.allocation import Node
from dynamo_mlperf.process.child import Child, adopt_orphans, kill_descendants
from dynamo_mlperf.process.command import inherited_environment
from dynamo_mlperf.process.programs import UnansweredError, run_program
from dynamo_mlperf.site import Site
from dynamo_mlperf.slurm.attach import live_job, refuse_neighbour, step_prefix
from dynamo_mlperf.slurm.engine_step import changes_engines, engine_step
from dynamo_mlperf.slurm.hostlist import expand
from dynamo_mlperf.slurm.step_refusal import Held, held_by_others, is_busy, refused_words, step_refusal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dynamo_mlperf.process.command import Command

SLURM_ANSWER_S = 8.0
SILENT_S = 30.0
"""So long Slurm is not asked again once it has not answered: a stop asks it at each of its many rungs."""
SHOWN_HOSTS = 4


@dataclass(frozen=True)
class SlurmJob:
    """The job that we run in.

    Attributes:
        job_id: Its id.
        hosts: Its nodes in Slurm's order; of an allocation that we are attached to, those that are ours.
        submit_dir: Where it was submitted from.
        step: Our own step, as in `17.4`, where we are attached to a live allocation; else empty.
    """

    job_id: str
    hosts: tuple[str, ...]
    submit_dir: str
    step: str = ""

    @staticmethod
    def current(environment: Mapping[str, str]) -> SlurmJob:
        """The job of this environment.

        Raises:
            SetupError: We are in none, or Slurm has restarted it from the top.
        """
        job_id = environment.get("SLURM_JOB_ID", "")
        node_list = environment.get("SLURM_JOB_NODELIST", "")
        if not job_id or not node_list:
            raise SetupError(
                "not inside a Slurm job (no SLURM_JOB_ID)",
                "sbatch the topology file, or use `dynamo-mlperf run FILE` on this machine alone",
            )
        restarts = environment.get("SLURM_RESTART_COUNT", "0")
        if restarts != "0":
            raise SetupError(
                f"Slurm has restarted job {job_id} from the top ({restarts} times): results would mix with old ones",
                "submit it anew, with --no-requeue",
            )
        return SlurmJob(job_id, tuple(expand(node_list)), environment.get("SLURM_SUBMIT_DIR", os.getcwd()))  # noqa: PTH109

    @staticmethod
    def attached(environment: Mapping[str, str], hosts: Sequence[str], base_dir: str) -> SlurmJob:
        """The job in which we are a step that was started from outside; such a step sees its own node alone.

        Raises:
            SetupError: We are no step.
        """
        job_id, step = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_STEP_ID", "")
        if not job_id or not step:
            raise SetupError("not a step of a Slurm job (no SLURM_STEP_ID)", "use --attach JOBID from outside the job")
        return SlurmJob(job_id, tuple(hosts), base_dir, f"{job_id}.{step}")


def new_token() -> str:
    """Six hex digits that tell a run's steps from those of other runs in the same job."""
    return secrets.token_hex(3)


class SlurmAllocation:
    """The nodes of a Slurm job; a process on one of them is a step.

    The step's program starts under `env -i`: nothing that Slurm or the submitting shell put into the environment
    reaches it, and its own values arrive byte for byte, which `srun --export` cannot do for values with commas. Our own
    agent alone sees what Slurm says, since it must report which GPUs were given.
    """

    kind = "slurm"
    shares_memory = False

    def __init__(self, job: SlurmJob, site: Site | None = None, token: str | None = None) -> None:
        adopt_orphans()
        self.job = job
        # Another run may be under way in the same job: only steps of this name are ours to signal or to sweep.
        self.token = token or new_token()
        self._step_name = step_prefix(self.token)
        self._silent_until = 0.0
        self._site = site or Site()
        self.start_s = float(self._site.step_start_s)
        self.nodes = tuple(Node(position, host, "", "", host) for position, host in enumerate(job.hosts))
        kept = ("SLURM_CONF", "SLURM_JOB_ID")
        self._srun_environment = {
            **inherited_environment(),
            **{name: os.environ[name] for name in kept if name in os.environ},
        }

    def refuse_neighbours(self) -> None:
        """Refuse to go on where another run has attached to the same nodes before us; no question in a batch job.

        Raises:
            SetupError: One has, or Slurm does not answer.
        """
        if self.job.step:
            refuse_neighbour(live_job(self.job.job_id), self.token, self.job.hosts, self.job.step)

    def bind(self, nodes: Sequence[Node]) -> None:
        """Take in the nodes with the addresses that were found on them."""
        self.nodes = tuple(nodes)

    def start(self, command: Command) -> Child:
        """Start the command as a step of its own on its node."""
        return Child(command, self.step_argv(command), self._srun_environment)

    def step_argv(self, command: Command) -> list[str]:
        """The whole `srun` command line.

        `--overlap --mem=0` lets steps share the job's node at once: without them each waits for the one before.
        `--cpu-bind=none`: a cluster that binds by itself would give an engine, one task to Slurm, a single core.
        `--immediate`: without it srun waits for a busy node without end.
        """
        step = [
            "srun",
            f"--jobid={self.job.job_id}",
            "--overlap",
            "--mem=0",
            f"--immediate={self._site.step_start_s}",
            "--nodes=1",
            "--ntasks=1",
            "--cpu-bind=none",
            f"--nodelist={self.nodes[command.node].host}",
            f"--job-name={self._step_name}{command.name}",
            *([] if command.agent else ["--input=none"]),
            "--kill-on-bad-exit=0",
            "--unbuffered",
        ]
        if command.cwd:
            step.append(f"--chdir={command.cwd}")
        if command.engine and changes_engines(self._site):
            engine = engine_step(self._site, command, inherited_environment())
            return [*step, *engine.options, *engine.argv]
        clean = [] if command.agent else ["-i"]
        return [*step, "env", *clean, *(f"{name}={value}" for name, value in command.env.items()), *command.argv]

    def refusal(self, child: Child) -> SetupError | None:
        """Why Slurm did not start the step of one that has ended; None where it did."""
        words = refused_words(child.command.log) if child.poll() else ""
        if not words:
            return None
        waited_s, node = time.monotonic() - child.started_s, self.nodes[child.command.node]
        held = self._held_on(node.host) if is_busy(words) else Held()
        step = f"{child.command.name} on node {node.position} ({node.host})"
        return step_refusal(step, node.host, words, waited_s, held)

    def _held_on(self, host: str) -> Held:
        job = self._ask(["scontrol", "--details", "--oneliner", "show", "job", self.job.job_id])
        return held_by_others(job, self._ask(["scontrol", "--oneliner", "show", "step", self.job.job_id]), host)

    def send(self, children: Sequence[Child], number: signal.Signals) -> None:
        """Signal the steps, all in one call: a signal to srun itself would not reach the engine."""
        if number is signal.SIGKILL:
            alive = [child for child in children if child.poll() is None]
            self._scancel(alive, number)
            for child in children:
                child.kill_session()
            return
        self._scancel(children, number)

    def sweep(self) -> list[str]:
        """Kill steps of ours that are left (Slurm ends all their processes), then whatever runs below us here."""
        left = self._steps()
        if left:
            self._ask(["scancel", "--signal=KILL", *left.values()])
        return [f"step {name}" for name in left] + kill_descendants()

    def describe(self) -> str:
        """For people: what and where."""
        named = ", ".join(self.job.hosts[:SHOWN_HOSTS]) + (" ..." if len(self.job.hosts) > SHOWN_HOSTS else "")
        attached = f", attached as step {self.job.step}" if self.job.step else ""
        return f"Slurm job {self.job.job_id} on {len(self.nodes)} nodes ({named}){attached}"

    def _scancel(self, children: Sequence[Child], number: signal.Signals) -> None:
        steps = self._steps()
        chosen = [steps[child.command.name] for child in children if child.command.name in steps]
        if chosen:
            self._ask(["scancel", f"--signal={number.name.removeprefix('SIG')}", *chosen])

    def _steps(self) -> dict[str, str]:
        """Step ids of this job's running steps by process name."""
        listing = self._ask(
            ["squeue", "--noheader", "--steps", f"--jobs={self.job.job_id}", "--Format=StepID:64,StepName:128"]
        )
        found: dict[str, str] = {}
        for line in listing.splitlines():
            step, _, name = line.strip().partition(" ")
            if name.strip().startswith(self._step_name):
                found[name.strip().removeprefix(self._step_name)] = step
        return found

    def _ask(self, argv: list[str]) -> str:
        """What Slurm answers; nothing where it does not, since stopping must go on without it: srun is killed then."""
        if time.monotonic() < self._silent_until:
            return ""
        try:
            return run_program(argv, timeout_s=SLURM_ANSWER_S, env=self._srun_environment).stdout
        except UnansweredError:
            self._silent_until = time.monotonic() + SILENT_S
            return ""
        except SetupError:
            return ""
