"""Bodies are bounded before they are read: a real uvicorn is sent too much, announced and in chunks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings

from tests.ports import reserved_port
from webapp.guards.bodies import MAX_OTHER
from webapp.services.ingestion.ingest import MAX_BYTES

pytestmark = pytest.mark.django_db(transaction=True)
ROOT = Path(__file__).resolve().parents[3]
CHUNK = b"x" * 65_536


@pytest.fixture(scope="module")
def port(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A uvicorn on the test database, whose large bodies would lie in a folder of their own."""
    found = reserved_port()
    database = settings.DATABASES["default"]
    address = f"{database['HOST']}:{database['PORT']}/{database['NAME']}"
    environment = os.environ | {
        "DATABASE_URL": f"postgresql://{database['USER']}:{database['PASSWORD']}@{address}",
        "TRAINYARD_DEBUG": "1",
        "TMPDIR": str(tmp_path_factory.mktemp("bodies")),
    }
    command = [sys.executable, "-m", "uvicorn", "webapp.asgi:application", "--port", str(found)]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
    try:
        for _ in range(1200):
            assert process.poll() is None
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", found)) == 0:
                    break
            time.sleep(0.1)
        yield found
    finally:
        process.terminate()
        process.wait(timeout=120)


def send(port: int, path: str, *, announced: int | None, sent: int) -> tuple[int, int]:
    """The status (0 where a reset overtook the answer), and how many bytes were sent until then."""
    length = f"Content-Length: {announced}" if announced is not None else "Transfer-Encoding: chunked"
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer x\r\n{length}\r\n\r\n"
    taken = 0
    with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
        connection.sendall(head.encode())
        connection.setblocking(False)
        answer = b""
        deadline = time.monotonic() + 120
        pending = b""
        while b"\r\n" not in answer and time.monotonic() < deadline:
            try:
                answer += connection.recv(4096)
            except BlockingIOError:
                pass
            except ConnectionResetError:
                break
            if not pending and taken < sent:
                piece = CHUNK[: sent - taken]
                pending = piece if announced is not None else b"%x\r\n%b\r\n" % (len(piece), piece)
                taken += len(piece)
                if announced is None and taken >= sent:
                    pending += b"0\r\n\r\n"
            try:
                pending = pending[connection.send(pending) :] if pending else b""
            except BlockingIOError:
                time.sleep(0.001)
            except (BrokenPipeError, ConnectionResetError):
                break
    return int(answer.split(b" ")[1]) if answer else 0, taken


@pytest.mark.parametrize(("path", "limit"), [("/login/", MAX_OTHER), ("/api/v1/runs/1/events", MAX_BYTES)])
def test_an_announced_body_is_refused_unread(port: int, path: str, limit: int) -> None:
    assert send(port, path, announced=limit + 1, sent=0)[0] == 413


@pytest.mark.parametrize("path", ["/login/", "/api/v1/runs", "/api/v1/runs/1/heartbeat", "/nowhere"])
def test_a_streamed_body_is_cut_off(port: int, path: str) -> None:
    status, taken = send(port, path, announced=None, sent=100 * MAX_OTHER)
    assert status in (413, 0)
    assert taken < 50 * MAX_OTHER


def test_a_body_within_the_bound_is_read(port: int) -> None:
    size = MAX_OTHER + 1
    assert send(port, "/api/v1/runs/1/events", announced=size, sent=size)[0] == 401
    assert send(port, "/login/", announced=None, sent=MAX_OTHER)[0] == 403
