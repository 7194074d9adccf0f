"""HTTP server that records webhooks; by path it accepts, fails, hangs, drips, redirects, floods."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Received:
    """A request as it arrived."""

    path: str
    headers: dict[str, str]
    body: bytes


class WebhookServer(ThreadingHTTPServer):
    """Server on a free port of the loopback interface."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.received: list[Received] = []
        self.ended = threading.Event()
        self.scheme = "http"
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_side=True)
            self.scheme = "https"

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def url(self, path: str, *, host: str = "127.0.0.1") -> str:
        return f"{self.scheme}://{host}:{self.port}{path}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that give up are expected."""


class _Handler(BaseHTTPRequestHandler):
    server: WebhookServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.received.append(
            Received(self.path, {k.lower(): v for k, v in self.headers.items()}, body)
        )
        match self.path.split("?")[0]:
            case "/fail":
                self._answer(500, b"the receiver is \x00 broken")
            case "/gone":
                self._answer(410, b"unsubscribed")
            case "/redirect":
                self.send_response(302)
                self.send_header("location", self.server.url("/secret"))
                self.send_header("content-length", "0")
                self.end_headers()
            case "/hang":
                self.server.ended.wait(60)
            case "/drip":
                self.send_response(200)
                self.end_headers()
                while not self.server.ended.wait(0.05):
                    self.wfile.write(b".")
                    self.wfile.flush()
            case "/flood":
                self.send_response(200)
                self.end_headers()
                for _ in range(64):
                    self.wfile.write(b"x" * (1 << 20))
            case _:
                self._answer(200, b"thanks")

    def _answer(self, status: int, text: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        """Requests are recorded, not printed."""


@contextmanager
def webhook_server(context: ssl.SSLContext | None = None) -> Iterator[WebhookServer]:
    """Serve webhooks until the context ends."""
    server = WebhookServer(context)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()
