"""Job submissions that a Ray cluster refuses."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from engine.config.launcher import LauncherConfig, RayConfig
from engine.errors import ConfigError
from workers.launchers.base import LaunchOrder, ProcessState
from workers.launchers.ray.launcher import RayLauncher

STARTING = "No available agent to submit job, please try again later."
"""Answer of Ray 2.60 to a submission while its head starts."""


@contextmanager
def dashboard(answer: str) -> Iterator[str]:
    """Yield the address of a cluster without jobs that answers submissions with status 500."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(404, "Job does not exist")

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self._send(500, answer)

        def _send(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def order(address: str, folder: Path) -> LaunchOrder:
    settings = LauncherConfig(backend="ray", ray=RayConfig(address=address))
    return LaunchOrder(run_dir=folder, name="attempt-1", settings=settings)


def test_cluster_that_is_still_starting_does_not_fail_the_run(tmp_path: Path) -> None:
    recorded: list[tuple[str, str]] = []
    with dashboard(STARTING) as address:
        launcher = RayLauncher()
        launcher.launch(order(address, tmp_path), lambda *process: recorded.append(process))
        assert recorded == [(address, "attempt-1")] * 2, "a sign of life before the submission and after it"
        assert launcher.poll(host=address, handle="attempt-1").state is ProcessState.MISSING


def test_a_refused_job_fails_the_run_with_the_reason(tmp_path: Path) -> None:
    with (
        dashboard("Traceback:\nRuntimeError: no such environment") as address,
        pytest.raises(ConfigError, match="no such environment"),
    ):
        RayLauncher().launch(order(address, tmp_path), lambda *_: None)
