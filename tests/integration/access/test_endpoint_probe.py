"""The test of an endpoint: what it requests, how it fails, and that the key goes nowhere else."""

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
    """An HTTP server whose GET is ``answer(handler)``; yields its address and the headers it was sent."""
    seen: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append({"path": self.path, **{name.lower(): value for name, value in self.headers.items()}})
            answer(self)

        def log_message(self, *_arguments: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    threading.Thread(target=http.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{http.server_port}/v1", seen
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


def test_a_test_lists_the_models_that_runs_may_use() -> None:
    body = json.dumps({"data": [{"id": "b"}, {"id": "a<script>"}, {"id": "other"}]}).encode()
    with server(respond(200, body)) as (address, seen):
        save(address=address, models="a*, b")
        text = client_of(Role.ADMIN).post("/endpoints/hosted/test/").content.decode()
    assert seen[0]["path"] == "/v1/models"
    assert seen[0]["authorization"] == f"Bearer {KEY}"
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


def test_a_test_says_what_is_wrong_without_the_key() -> None:
    for status, body, reason in WRONG:
        with server(respond(status, body.encode())) as (address, _):
            result = probe(endpoint=save(address=address))
        assert reason in result.error
        assert KEY not in result.error
        assert result.models == ()


def test_a_redirect_is_not_followed_and_gets_no_key() -> None:
    with (
        server(respond(200, b"{}")) as (elsewhere, stolen),
        server(respond(302, b"", Location=f"{elsewhere}/models")) as (address, _),
    ):
        result = probe(endpoint=save(address=address))
    assert stolen == []
    assert "status 302" in result.error
    assert "not followed" in result.error


@pytest.mark.parametrize(
    "start", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: "], ids=("body", "header")
)
def test_a_server_that_answers_too_slowly_is_given_up(start: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
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
