"""slurm/devcluster against the real Slurm: what the tests of everything else stand on."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slurm

REPOSITORY = Path(__file__).resolve().parent.parent
DEVCLUSTER = REPOSITORY / "slurm" / "devcluster"
STRAY = "(setsid sh -c 'trap : TERM INT HUP; while :; do date +%s%N >{beat}; sleep 0.1; done' &)"


class Cluster:
    """One cluster directory and the program that works on it."""

    def __init__(self, directory: Path, **settings: str) -> None:
        self.directory = directory
        self.shared = directory / "shared"
        self.environment = {**os.environ, "DEVCLUSTER_DIR": str(directory)}
        self.environment |= {f"DEVCLUSTER_{name}": value for name, value in settings.items()}

    def call(self, *words: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [DEVCLUSTER, *words],
            check=False,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [DEVCLUSTER, *words], env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        )

    def ask(self, *words: str) -> str:
        done = self.call(*words)
        assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout.strip()

    def submit(self, body: str, *options: str) -> str:
        script = self.shared / f"{time.monotonic_ns()}.sh"
        script.write_text(f"#!/bin/bash\n{body}\n")
        output = f"--output={self.shared}/%j.out"
        return self.ask("exec", "sbatch", "--parsable", "--no-requeue", output, *options, str(script))

    def output(self, job: str) -> str:
        path = self.shared / f"{job}.out"
        return path.read_text() if path.exists() else ""

    def state(self, job: str) -> str:
        shown = self.ask("exec", "scontrol", "-o", "show", "job", job)
        return shown.split("JobState=")[1].split()[0]

    def processes(self, node: str) -> list[str]:
        """What runs on a node besides its init, slurmd and the question itself; a zombie has ended, it waits for init."""
        shown = self.ask("exec", "-n", node, "ps", "-eo", "args", "--no-headers").splitlines()
        lines = [line for line in shown if not line.endswith("<defunct>")]
        return [
            line for line in lines if "__boot" not in line and line != "slurmd -D" and not line.startswith("ps -eo")
        ]

    def remove(self) -> None:
        self.call("down")
        shutil.rmtree(self.directory, ignore_errors=True)


PATIENCE_S = 180.0
"""Longest wait for what comes about in some seconds on a machine that has nothing else to do."""


def eventually(check: Callable[[], object], running: Cluster | None = None) -> None:
    """Wait for `check`; when it never holds, say what still runs on the nodes of `running`."""
    deadline = time.monotonic() + PATIENCE_S
    while not check():
        if time.monotonic() > deadline:
            left = {node: running.processes(node) for node in ("n1", "n2")} if running else {}
            raise AssertionError(f"not true within {PATIENCE_S} s; running: {left}")
        time.sleep(0.1)


def directory(name: str) -> Path:
    return REPOSITORY / f".devcluster-test-{os.getpid()}-{name}"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster(directory("main"))
    try:
        made.ask("up")
        yield made
    finally:
        made.remove()


@pytest.fixture
def other() -> Iterator[Cluster]:
    made = Cluster(directory("other"), NODES="2", GPUS="8")
    yield made
    made.remove()


@pytest.fixture(scope="module", autouse=True)
def doomed(cluster: Cluster) -> tuple[str, float]:
    """A job whose second node loses its power before the first test: Slurm takes half a minute to notice."""
    job = cluster.submit("srun --overlap --mem=0 -N1 -n1 -w n4 sleep 1000", "--nodes=2", "--nodelist=n3,n4")
    eventually(lambda: any("sleep 1000" in line for line in cluster.processes("n4")))
    cluster.ask("node-kill", "n4")
    return job, time.monotonic()


def test_status_shows_nodes_and_places(cluster: Cluster) -> None:
    shown = cluster.ask("status")
    assert "n1         10.77.0.11" in shown
    assert str(cluster.shared) in shown
    assert any(line.split()[:4] == ["n4", "10.77.0.14", "off", "down"] for line in shown.splitlines())


def test_up_refuses_a_cluster_that_is_up(cluster: Cluster) -> None:
    again = cluster.call("up")
    assert (again.returncode, again.stderr) == (2, f"devcluster: already up in {cluster.directory}\n")


def test_each_node_is_a_machine_of_its_own(cluster: Cluster) -> None:
    nvme = cluster.directory / "nvme"
    for node in ("n1", "n2"):
        seen = cluster.ask(
            "exec",
            "-n",
            node,
            "sh",
            "-c",
            f"hostname; ip -o -4 addr; echo {node} | tee /tmp/own {nvme}/own /dev/shm/own {cluster.shared}/{node}",
        )
        assert seen.startswith(node)
        assert f"10.77.0.1{node[1]}/24" in seen
    files = f"cat /tmp/own {nvme}/own /dev/shm/own; ls {cluster.shared}/n1 {cluster.shared}/n2; ls {cluster.directory}/nodes"
    expected = ["n1"] * 3 + [f"{cluster.shared}/n1", f"{cluster.shared}/n2"]
    assert cluster.ask("exec", "-n", "n1", "sh", "-c", files).split() == expected
    assert not Path("/tmp/own").exists()


def test_nodes_reach_each_other_by_tcp_unless_unplugged(cluster: Cluster) -> None:
    serve = "import socket; s = socket.create_server(('n2', 5000)); print('ready', flush=True)\nwhile 1: s.accept()[0].sendall(b'hello from n2')"
    call = "import socket, sys; print(socket.create_connection(('n2', 5000), float(sys.argv[1])).recv(99))"
    server = cluster.start("exec", "-n", "n2", "python3", "-c", serve)
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        assert "hello from n2" in cluster.ask("exec", "-n", "n1", "python3", "-c", call, "60")
        cluster.ask("link-down", "n2")
        assert cluster.call("exec", "-n", "n1", "python3", "-c", call, "1").returncode != 0
        cluster.ask("link-up", "n2")
        assert "hello from n2" in cluster.ask("exec", "-n", "n1", "python3", "-c", call, "60")
    finally:
        server.terminate()
        server.communicate()
    eventually(lambda: not any("create_server" in line for line in cluster.processes("n2")))


def test_a_batch_file_of_any_language_runs_with_the_callers_path(cluster: Cluster) -> None:
    script = cluster.shared / "batch.yaml"
    script.write_text(
        "#!/usr/bin/env -S interpreter job\n#SBATCH --nodes=2 --gres=gpu:4 --exclusive --time=5 --output=%x.out\nschema: 1\n"
    )
    interpreter = cluster.shared / "bin" / "interpreter"
    interpreter.parent.mkdir()
    interpreter.write_text(
        '#!/bin/sh\nhostname; echo "$1 $CUDA_VISIBLE_DEVICES $SLURM_JOB_NUM_NODES"; tail -n 1 "$2"; trap "" INT; trap\n'
    )
    interpreter.chmod(0o755)
    path = f"{interpreter.parent}:{os.environ['PATH']}"
    cluster.ask("exec", "env", "-C", str(cluster.shared), f"PATH={path}", "sbatch", "--wait", str(script))
    lines = (cluster.shared / "batch.yaml.out").read_text().splitlines()
    assert lines[:3] == ["n1", "job 0,1,2,3 2", "schema: 1"]


def test_overlapping_steps_run_side_by_side(cluster: Cluster) -> None:
    """Each of three steps waits for the two others to begin."""
    begun = cluster.shared / "begun"
    begun.mkdir()
    meet = f"touch {begun}/$SLURM_STEP_ID; for i in $(seq 600); do set -- {begun}/*; [ $# = 3 ] && echo met && exit; sleep 0.1; done"
    step = f"srun --overlap --mem=0 -N1 -n1 -w n2 sh -c '{meet}'"
    job = cluster.submit(f"{step} & {step} & {step} & wait", "--nodes=2", "--exclusive", "--wait")
    assert cluster.output(job).split() == ["met"] * 3, "a step began after another one had given up"


def test_scancel_leaves_nothing_not_even_a_stray(cluster: Cluster) -> None:
    beat = cluster.shared / "beat"
    step = f'srun --overlap --mem=0 -N1 -n1 -w n2 bash -c "{STRAY.format(beat=beat)}; sleep 1000"'
    job = cluster.submit(f"{step} & sleep 1000 & wait", "--nodes=2", "--exclusive")
    eventually(beat.exists)
    cluster.ask("exec", "scancel", job)
    eventually(lambda: not cluster.processes("n1") + cluster.processes("n2"), cluster)
    eventually(lambda: cluster.state(job) == "CANCELLED")


def test_settings_are_checked(tmp_path: Path) -> None:
    for settings, text in (
        ({"NODES": "0"}, "DEVCLUSTER_NODES=0"),
        ({"NET": "here"}, "DEVCLUSTER_NET=here"),
        ({"GPUS": "08"}, "DEVCLUSTER_GPUS=08"),
    ):
        refused = Cluster(directory("never"), **settings).call("up")
        assert refused.returncode == 2
        assert text in refused.stderr
    for place in (Path("/tmp/devcluster"), Path("/dev/shm/devcluster")):
        refused = Cluster(place).call("up")
        assert refused.returncode == 2
        assert "set DEVCLUSTER_DIR" in refused.stderr
        assert not place.exists()
    assert Cluster(REPOSITORY).call("up").returncode == 2, "took over a directory that holds something else"
    assert not directory("never").exists()


def test_help_and_usage() -> None:
    nowhere = Cluster(directory("never"))
    assert "devcluster node-kill NODE" in nowhere.ask("--help")
    assert nowhere.call("fly").returncode == 2
    assert nowhere.call("status").returncode == 3
    assert nowhere.call("exec", "true").returncode == 3
    assert nowhere.call("down").returncode == 0


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    for program in ("bash", "id", "readlink", "realpath", "dirname"):
        (tmp_path / program).symlink_to(str(shutil.which(program)))
    script = DEVCLUSTER.read_text().replace("PATH=$PATH:", "PATH=$PATH # ")
    refused = subprocess.run(
        ["/bin/bash", "-c", script, str(DEVCLUSTER), "up"],
        check=False,
        env={"PATH": str(tmp_path), "DEVCLUSTER_DIR": "/x"},
        capture_output=True,
        text=True,
    )
    assert refused.returncode == 3
    assert "apt-get install -y --no-install-recommends slurmctld slurmd slurm-client munge" in refused.stderr


def test_needs_root() -> None:
    refused = subprocess.run(
        ["setpriv", "--reuid=65534", "--clear-groups", "bash", "-s", "up"],
        check=False,
        input=DEVCLUSTER.read_text(),
        capture_output=True,
        text=True,
    )
    assert refused.returncode == 3
    assert "needs root" in refused.stderr


def test_two_clusters_at_once_and_down_ends_one(cluster: Cluster, other: Cluster) -> None:
    other.ask("up")
    assert other.ask("exec", "sinfo", "-h", "-o", "%D %T %G") == "2 idle gpu:8"
    beat = other.shared / "beat"
    other.submit(f"{STRAY.format(beat=beat)}; sleep 1000")
    eventually(beat.exists)
    group = (other.directory / "settings").read_text().split("CGROUP=")[1].strip()
    other.ask("down")
    assert other.call("status").returncode == 3
    before = beat.read_text()
    time.sleep(0.3)
    assert beat.read_text() == before, "a job outlived its cluster"
    assert not list(Path("/sys/fs/cgroup").glob(f"*/{group}"))
    assert cluster.ask("exec", "srun", "-w", "n1", "hostname") == "n1"


def test_run_brings_up_passes_on_and_takes_down(other: Cluster) -> None:
    done = other.call("run", "sh", "-c", "hostname; srun -N2 hostname; exit 7")
    assert (done.returncode, sorted(done.stdout.split())) == (7, ["login", "n1", "n2"])
    assert other.call("status").returncode == 3


def test_a_signal_to_run_reaches_the_command(other: Cluster) -> None:
    running = other.start(
        "run", "bash", "-c", "trap 'exit 9' INT; trap 'exit 8' TERM; echo ready; while :; do sleep 0.1; done"
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "ready\n"
    running.send_signal(signal.SIGINT)
    assert running.wait(timeout=PATIENCE_S) == 9
    running.stdout.close()
    assert other.call("status").returncode == 3


def test_an_interrupted_up_leaves_nothing(other: Cluster) -> None:
    def left() -> bool:
        everything = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
        return str(other.directory) in everything

    for so_far in ("settings", "run/n1.pid"):  # before any machine is on, and while they boot
        starting = other.start("up")
        eventually((other.directory / so_far).exists)
        starting.terminate()
        starting.communicate(timeout=PATIENCE_S)
        assert starting.returncode == 143
        eventually(lambda: not left())


def test_a_dead_node_is_down_and_its_job_over(cluster: Cluster, doomed: tuple[str, float]) -> None:
    job, _ = doomed
    eventually(lambda: "DOWN" in cluster.ask("exec", "scontrol", "show", "node", "n4"))
    eventually(lambda: cluster.state(job) == "NODE_FAIL")
    assert "Node failure on n4" in cluster.output(job)
    eventually(lambda: not cluster.processes("n3"))
    cluster.ask("node-boot", "n4")
    assert cluster.ask("exec", "srun", "-w", "n4", "hostname") == "n4"
