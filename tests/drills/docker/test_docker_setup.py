"""``deploy/setup/docker.sh``, which starts a private Docker daemon for the tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

REPO = Path(__file__).parents[3]
_PATIENCE_S = 120.0


def test_daemon_started_for_a_command_ends_with_it_on_an_interrupt() -> None:
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        pytest.skip("only root can start a Docker daemon, and dockerd must be installed")
    if Path("/var/run/docker.sock").is_socket():
        pytest.skip("the system's daemon answers, so none is started")
    folder = Path(tempfile.mkdtemp(prefix="trainyard-docker-"))
    script, socket = str(REPO / "deploy/setup/docker.sh"), folder / "docker" / "docker.sock"
    env = {name: value for name, value in os.environ.items() if name != "DOCKER_HOST"}
    env["TRAINYARD_HOME"] = str(folder)
    # No shell: a shell that is interrupted between two commands still starts the second.
    command = [sys.executable, "-c", "import signal; print('started', flush=True); signal.pause()"]
    process = subprocess.Popen(
        [script, "run", *command],
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell cannot trap a signal ignored at its start, as SIGINT is in background jobs.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        if not socket.is_socket():
            pytest.skip("no second Docker daemon starts here")
        daemon = int((folder / "docker" / "dockerd.pid").read_text())
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(_PATIENCE_S) == 130
        assert not socket.exists()
        assert not Path(f"/proc/{daemon}").exists()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        subprocess.run([script, "stop"], env=env, check=False)
        shutil.rmtree(folder)
