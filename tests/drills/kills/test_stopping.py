"""A new supervisor takes over from a killed one, and a stop leaves no process and no sandbox."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from engine.processes import process_start
from tests.integration.toy_line import SETTINGS
from tests.integration.toy_yard import DATASET, taught_home
from tests.ports import reserve_service_ports, reserved_port
from webapp.supervisor.home import PROJECT
from webapp.supervisor.status import STATUS_NAME


def until(condition: Callable[[], bool], description: str, seconds: float = 250.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"never: {description}"
        time.sleep(0.05)


class Terminal:
    """``trainyard up`` on one data folder, with methods to start and inspect it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = reserved_port()
        reserve_service_ports(home)
        self.environment = {key: value for key, value in os.environ.items() if not key.endswith("_URL")}
        self.environment |= {"TRAINYARD_HOME": str(home), "PYTHONUNBUFFERED": "1"}
        self.log = home.with_name("terminal.log")

    def start(self) -> subprocess.Popen[bytes]:
        """Start the services and wait until the web server responds."""
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "webapp", "up", "--port", str(self.port)],
                cwd=PROJECT, env=self.environment, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

        def serves() -> bool:
            assert process.poll() is None, self.log.read_text()
            return "Trainyard is at" in self.log.read_text()

        until(serves, "the web server")
        return process

    def manage(self, *arguments: str) -> None:
        """Run a ``trainyard`` command on the same data folder."""
        command = [sys.executable, "-m", "webapp", *arguments]
        subprocess.run(command, cwd=PROJECT, env=self.environment, check=True, capture_output=True)

    def leases(self) -> list[Path]:
        """Return the lease files of all backends."""
        return list((self.home / "sandboxes").glob("**/*.json"))

    def engine(self) -> int:
        """Return the process ID of the only run's engine, or 0 before it starts."""
        pid_files = list(self.home.glob("runs/*/engine.pid"))
        return int(json.loads(pid_files[0].read_text())["pid"]) if pid_files else 0

    def processes(self) -> list[str]:
        """Return the command line of each process that uses this data folder."""
        command_lines = []
        for process in psutil.process_iter():
            try:
                if process.status() != psutil.STATUS_ZOMBIE and (
                    process.environ().get("TRAINYARD_HOME") == str(self.home)
                    or str(self.home) in " ".join(process.cmdline())
                ):
                    command_lines.append(" ".join(process.cmdline()))
            except psutil.Error:
                continue
        return command_lines


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    yield Terminal(taught_home(tmp_path / "home"))
    for process in psutil.process_iter():
        try:
            if process.environ().get("TRAINYARD_HOME") == str(tmp_path / "home"):
                process.kill()
        except psutil.Error:
            continue


def test_restarted_supervisor_keeps_the_engine_and_a_stop_leaves_nothing(terminal: Terminal) -> None:
    first = terminal.start()
    terminal.manage("dataset", "sync", DATASET)
    settings = {**SETTINGS, "policy.checkpoint": "toy", "trainer.iterations": 400}
    terminal.manage(
        "run",
        "launch",
        "quickstart",
        *(part for key, value in settings.items() for part in ("--set", f"{key}={json.dumps(value)}")),
    )
    until(lambda: bool(terminal.leases()), "a sandbox")
    engine = terminal.engine()
    first.kill()
    first.wait()
    second = terminal.start()
    assert terminal.engine() == engine
    assert process_start(engine) is not None, "the engine went on"
    until(lambda: bool(terminal.leases()), "a sandbox")
    second.send_signal(signal.SIGTERM)
    assert second.wait(250) == 0
    assert terminal.leases() == []
    assert process_start(engine) is None
    assert terminal.processes() == []
    assert not (terminal.home / STATUS_NAME).exists()
    assert terminal.log.read_text().splitlines()[-2:] == ["Stopping …", "Stopped."]
