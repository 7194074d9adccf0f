"""A real HTTP server on loopback with the ingest API's rules, which misbehaves on demand."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Answer:
    """What the server sends; as a fault, instead of the rules' answer.

    ``drop`` closes the connection without a word, ``store_first`` makes it a lost reply.
    """

    def __init__(
        self,
        status: int,
        body: dict[str, Any] | None = None,
        *,
        drop: bool = False,
        store_first: bool = False,
        retry_after: str = "",
    ) -> None:
        self.status = status
        self.body = body or {}
        self.drop = drop
        self.store_first = store_first
        self.headers = {"Retry-After": retry_after} if retry_after else {}


class IngestServer:
    """Stores events by the rules of the protocol; ``faults`` are consumed one per request."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.epoch = 1
        self.desired = "run"
        self.over = ""
        """The state the run ended in; empty while it is open."""
        self.token = "secret"
        """Attempt n sends ``secret.n``."""
        self.faults: list[Answer | None] = []
        self.requests = 0
        self.heartbeats: list[dict[str, Any]] = []
        self.max_body = 10_000_000
        self.url = ""
        self.lock = threading.Lock()

    @property
    def acked(self) -> int:
        return self.events[-1]["seq"] if self.events else 0

    def terminal_keys(self) -> list[tuple[int, str, str, int]]:
        """Those of the stored events (``terminal_keys``)."""
        return terminal_keys(self.events)

    def refusal(self, header: str) -> Answer | None:
        token, _, epoch = header.removeprefix("Bearer ").rpartition(".")
        if token != self.token:
            return Answer(401, {"detail": "wrong token"})
        if int(epoch) < self.epoch:
            return Answer(409, {"detail": f"attempt {self.epoch} exists", "epoch": self.epoch})
        if self.over:
            return Answer(410, {"detail": f"the run is {self.over}", "acked_seq": self.acked})
        return None

    def post_events(self, body: bytes) -> Answer:
        records = [json.loads(line) for line in body.splitlines()]
        assert [r["seq"] for r in records] == list(range(records[0]["seq"], records[0]["seq"] + len(records)))
        fresh = [record for record in records if record["seq"] > self.acked]
        if fresh and fresh[0]["seq"] != self.acked + 1:
            return Answer(409, {"detail": "gap", "expected_seq": self.acked + 1})
        epochs = [event["epoch"] for event in self.events[-1:] + fresh]
        assert epochs == sorted(epochs)
        assert max(epochs, default=0) <= self.epoch
        self.events += fresh
        return Answer(
            200,
            {"acked_seq": self.acked, "accepted": len(fresh), "duplicates": len(records) - len(fresh)},
        )

    def post_heartbeat(self, body: bytes) -> Answer:
        beat = json.loads(body)
        self.heartbeats.append(beat)
        return Answer(200, {"desired": self.desired, "epoch": self.epoch, "acked_seq": self.acked})


def terminal_keys(events: Iterable[dict[str, Any]]) -> list[tuple[int, str, str, int]]:
    """Keys of terminal trajectories after the server's projection rules, in order, repeats kept."""
    rows: list[tuple[int, str, str, int]] = []
    for event in events:
        rows = _project(rows, event)
    return rows


def _project(rows: list[tuple[int, str, str, int]], event: dict[str, Any]) -> list[tuple[int, str, str, int]]:
    if event["type"] == "run_started":
        kept = event["resumed_from"]
        if kept is None:
            return []
        return [row for row in rows if (row[0] < kept if row[1] == "train" else row[0] <= kept)]
    if event["type"] in ("trajectory_started", "trajectory_finished"):
        ref = event["ref"]
        key = (ref["iteration"], ref["phase"], ref["task_id"], ref["index"])
        if event["type"] == "trajectory_started":
            return [row for row in rows if row != key]
        return [*rows, key]
    return rows


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    app: IngestServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.app.lock:
            answer = self._answer(body)
        if answer.drop:
            self.close_connection = True
            return
        payload = json.dumps(answer.body).encode()
        self.send_response(answer.status)
        self.send_header("Content-Length", str(len(payload)))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(payload)

    def _answer(self, body: bytes) -> Answer:
        refusal = self.app.refusal(self.headers["Authorization"])
        if refusal is not None:
            return refusal
        if self.path.endswith("/heartbeat"):
            return self.app.post_heartbeat(body)
        self.app.requests += 1
        if len(body) > self.app.max_body:
            return Answer(413, {"detail": "too large"})
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        fault = self.app.faults.pop(0) if self.app.faults else None
        if fault is None:
            return self.app.post_events(body)
        if fault.store_first:
            self.app.post_events(body)
        return fault

    def log_message(self, format: str, *args: object) -> None:
        """Keep test output clean."""


@contextmanager
def ingest_server() -> Iterator[IngestServer]:
    """A running server; ``url`` is its base URL."""
    app = IngestServer()
    handler = type("Handler", (_Handler,), {"app": app})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    app.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield app
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
