"""Real Ray clusters on this machine, whose processes only their own test session ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import psutil

from tests.ports import quiet_port, reserved_port

TOKEN = "the-token-of-the-test-cluster-0123456789"
_START_WITHIN_S = 600.0
_AGENT_PORTS = ("dashboard-agent-listen", "dashboard-agent-grpc", "metrics-export", "runtime-env-agent")


class RayCluster:
    """A head with at most one more node; a restarted head keeps its ports.

    Args:
        folder: folder of the session's files; its path must be short, as it contains sockets.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._gcs, self._dashboard = quiet_port(), reserved_port()
        self._started: list[subprocess.Popen[bytes]] = []

    @property
    def address(self) -> str:
        """Address of the dashboard."""
        return f"http://127.0.0.1:{self._dashboard}"

    def start_head(self, resources: Mapping[str, float] | None = None) -> None:
        """Start the head with two CPUs and wait until it accepts jobs."""
        head = (
            *("--head", "--port", str(self._gcs), "--ray-client-server-port", str(reserved_port())),
            *("--dashboard-host", "127.0.0.1", "--dashboard-port", str(self._dashboard)),
            *("--include-dashboard", "true", "--temp-dir", str(self._folder)),
        )
        self._start(1, *head, resources=resources or {})

    def start_node(self, resources: Mapping[str, float]) -> None:
        """Start a second node with two CPUs and wait until the head has registered it."""
        self._start(2, "--address", f"127.0.0.1:{self._gcs}", resources=resources)

    def environment(self) -> dict[str, str]:
        """Return the variables of a process that starts others on the cluster."""
        return {"RAY_ADDRESS": f"127.0.0.1:{self._gcs}", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}

    @property
    def num_started(self) -> int:
        """Number of started nodes that were not killed."""
        return len(self._started)

    def processes(self, node: int) -> list[tuple[list[str], psutil.Process]]:
        """Return the command lines and processes of a node; the head is node 0."""
        commands = []
        for process in psutil.Process(self._started[node].pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                commands.append((process.cmdline(), process))
        return commands

    def ranks(self, node: int) -> list[psutil.Process]:
        """Return the trainer's ranks that run on a node, in their order."""
        by_rank = {}
        for command, process in self.processes(node):
            if command[1:] == ["-m", "engine.trainer", "rank"]:
                with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                    by_rank[int(process.environ()["RANK"])] = process
        return [by_rank[rank] for rank in sorted(by_rank)]

    def kill_raylet(self) -> None:
        """``kill -9`` the raylet of the second node and wait until the node has ended."""
        node = self._started.pop()
        for process in psutil.Process(node.pid).children():
            if process.name() == "raylet":
                process.kill()
        node.wait(timeout=240)

    def kill(self) -> None:
        """``kill -9`` all processes, jobs included, at once, so that none notices the end of another."""
        processes: list[psutil.Process] = []
        for started in self._started:
            with contextlib.suppress(psutil.NoSuchProcess):
                root = psutil.Process(started.pid)
                processes += (*root.children(recursive=True), root)
        for end in (psutil.Process.suspend, psutil.Process.kill):
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    end(process)
        for started in self._started:
            started.wait()
        self._started.clear()

    def _start(self, nodes: int, *arguments: str, resources: Mapping[str, float]) -> None:
        """Start a node; retry when Ray gives up (after 30 s, too short on a busy machine)."""
        deadline = time.monotonic() + _START_WITHIN_S
        self._spawn(*arguments, resources=resources)
        while self._num_nodes() < nodes:
            assert time.monotonic() < deadline, self.log
            if self._started[-1].poll() is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._started.pop().pid, signal.SIGKILL)
                self._spawn(*arguments, resources=resources)
            time.sleep(0.2)

    def _spawn(self, *arguments: str, resources: Mapping[str, float]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        named = "{" + ", ".join(f'"{name}": {amount}' for name, amount in resources.items()) + "}"
        command = (
            *(sys.executable, "-m", "ray.scripts.scripts", "start", *arguments, "--block"),
            *("--num-cpus", "2", "--num-gpus", "0", "--resources", named, "--disable-usage-stats"),
            *("--object-store-memory", str(100 << 20), "--node-ip-address", "127.0.0.1"),
            *("--min-worker-port", "0", "--max-worker-port", "0"),
            # A node waits 15 s only for the ports that its agent chooses itself, too short on a busy machine.
            *(part for name in _AGENT_PORTS for part in (f"--{name}-port", str(reserved_port()))),
        )
        environment = os.environ | {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": TOKEN,
            "RAY_memory_monitor_refresh_ms": "0",
            "RAY_agent_register_timeout_ms": "300000",
            "RAY_gcs_server_request_timeout_seconds": "300",
            "RAY_raylet_start_wait_time_s": "300",
        }
        with (self._folder / f"start-{len(self._started)}.log").open("ab") as log:
            self._started.append(
                subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
            )

    def _num_nodes(self) -> int:
        try:
            response = httpx.get(
                f"{self.address}/api/v0/nodes",
                headers={"Authorization": f"Bearer {TOKEN}"},
                timeout=120,
                trust_env=False,
            )
            nodes = response.raise_for_status().json()["data"]["result"]["result"]
        except (httpx.HTTPError, KeyError, TypeError):
            return 0
        return sum(node["state"] == "ALIVE" for node in nodes)

    @property
    def log(self) -> str:
        """Output of the nodes at their start."""
        return "\n".join(file.read_text() for file in sorted(self._folder.glob("start-*.log")))


@contextlib.contextmanager
def ray_cluster(folder: Path) -> Iterator[RayCluster]:
    """Yield a cluster that has not been started; kill its remaining processes afterwards."""
    cluster = RayCluster(folder)
    try:
        yield cluster
    finally:
        cluster.kill()
