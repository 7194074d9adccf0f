"""Endpoint probe: its request, its failures, and protection of the key."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.integration.access.test_endpoints_web import KEY, client_of, save
from webapp.core.permissions import Role
from webapp.endpoints.services import probe as endpoint_probe
from webapp.endpoints.services.probe import probe

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path) -> Path:
    settings.TRAINYARD_HOME = tmp_path
    return tmp_path


@contextmanager
def server(answer: Any) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Answer GET requests with ``answer(handler)``; yield the address and the received headers."""
    calls: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            calls.append({"path": self.path, **{name.lower(): value for name, value in self.headers.items()}})
            answer(self)

        def log_message(self, *_arguments: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    threading.Thread(target=http.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{http.server_port}/v1", calls
    finally:
        http.shutdown()
        http.server_close()


def respond(status: int, body: bytes, **headers: str) -> Any:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def test_probe_lists_the_models_that_runs_may_use() -> None:
    body = json.dumps({"data": [{"id": "b"}, {"id": "a<script>"}, {"id": "other"}]}).encode()
    with server(respond(200, body)) as (address, requests):
        save(address=address, models="a*, b")
        text = client_of(Role.ADMIN).post("/endpoints/hosted/test/").content.decode()
    assert requests[0]["path"] == "/v1/models"
    assert requests[0]["authorization"] == f"Bearer {KEY}"
    assert "2 models" in text
    assert "a&lt;script&gt;" in text
    assert "1 more is excluded" in text
    assert KEY not in text


WRONG = (
    (401, json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}"}}), "status 401: Incorrect"),
    (500, "", "status 500: empty response"),
    (200, "<html>a shop</html>", "no list of models"),
    (200, json.dumps({"data": [{"name": "x"}]}), "no list of models"),
    (200, "[" * 10_000, "no list of models"),
    (200, "x" * (2 << 20), "exceeds 1 MiB"),
)


def test_probe_failures_are_reported_without_the_key() -> None:
    for status, body, reason in WRONG:
        with server(respond(status, body.encode())) as (address, _):
            result = probe(endpoint=save(address=address))
        assert reason in result.error
        assert KEY not in result.error
        assert result.models == ()


def test_probe_does_not_follow_redirects_or_send_them_the_key() -> None:
    with (
        server(respond(200, b"{}")) as (elsewhere, redirected),
        server(respond(302, b"", Location=f"{elsewhere}/models")) as (address, _),
    ):
        result = probe(endpoint=save(address=address))
    assert redirected == []
    assert "status 302" in result.error
    assert "not followed" in result.error


@pytest.mark.parametrize(
    "start", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: "], ids=("body", "header")
)
def test_probe_times_out_on_slow_servers(start: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_probe, "TIMEOUT_S", 0.2)
    done = threading.Event()

    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(start)
        while not done.wait(0.02):
            try:
                handler.wfile.write(b"x")
            except OSError:
                return

    try:
        with server(drip) as (address, _):
            result = probe(endpoint=save(address=address))
    finally:
        done.set()
    assert "not complete within 0.2 s" in result.error
