"""``deploy/setup/docker.sh``, which starts a private Docker daemon for the tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
_PATIENCE_S = 60.0


def test_a_daemon_started_for_a_command_ends_with_it_even_by_an_interrupt() -> None:
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        pytest.skip("only root can start a Docker daemon, and dockerd must be installed")
    if Path("/var/run/docker.sock").is_socket():
        pytest.skip("the system's daemon answers, so none is started")
    folder = Path(tempfile.mkdtemp(prefix="trainyard-docker-"))
    socket, pid_file = folder / "docker" / "docker.sock", folder / "docker" / "dockerd.pid"
    env = {name: value for name, value in os.environ.items() if name != "DOCKER_HOST"}
    command = [str(REPO / "deploy/setup/docker.sh"), "run", "sh", "-c", "echo started; sleep 600"]
    with subprocess.Popen(
        command,
        env={**env, "TRAINYARD_HOME": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        if not socket.is_socket():
            pytest.skip("no second Docker daemon starts here")
        daemon = int(pid_file.read_text())
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(_PATIENCE_S) == 130
    assert not socket.exists()
    assert not Path(f"/proc/{daemon}").exists()
    shutil.rmtree(folder)
