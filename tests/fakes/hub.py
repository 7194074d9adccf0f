"""A Hugging Face hub on loopback: one repository, its listing and its files, as ``huggingface_hub`` asks."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34


class FakeHub:
    """Serves ``files`` as a dataset, or lists them as a model; records what it sent and the tokens it got."""

    def __init__(self, name: str, files: dict[str, bytes], *, kind: str = "datasets") -> None:
        self.name = name
        self.kind = kind
        self.tokens: set[str | None] = set()
        self.files = files
        self.sent: list[str] = []
        self.gated = False
        self.url = ""

    def answer(self, method: str, path: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of one request."""
        path = unquote(urlsplit(path).path)
        api = f"/api/{self.kind}/{self.name}"
        if path.startswith("/api/") and not (path == api or path.startswith(f"{api}/revision/")):
            return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"
        if path.startswith(f"{api}/revision/") and path.rpartition("/")[2] not in ("main", COMMIT):
            return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
        if path.startswith(api):
            if self.gated:
                return 403, {"X-Error-Code": "GatedRepo"}, b"{}"
            siblings = [{"rfilename": file, "size": len(self.files[file])} for file in sorted(self.files)]
            body = {"id": self.name, "sha": COMMIT, "siblings": siblings, "private": False}
            return 200, {"Content-Type": "application/json"}, json.dumps(body).encode()
        prefix = f"/datasets/{self.name}/resolve/{COMMIT}/"
        content = self.files.get(path.removeprefix(prefix)) if path.startswith(prefix) else None
        if content is None:
            return 404, {"X-Error-Code": "EntryNotFound"}, b""
        if method == "GET":
            self.sent.append(path.removeprefix(prefix))
        etag = hashlib.sha256(content).hexdigest()
        return 200, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}, content


@contextmanager
def fake_hub(name: str, files: dict[str, bytes], *, kind: str = "datasets") -> Iterator[FakeHub]:
    """A running hub."""
    hub = FakeHub(name, files, kind=kind)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._send("GET")

        def do_HEAD(self) -> None:
            self._send("HEAD")

        def _send(self, method: str) -> None:
            hub.tokens.add(self.headers.get("Authorization"))
            status, headers, body = hub.answer(method, self.path)
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(key, value)
            self.end_headers()
            if method == "GET":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
