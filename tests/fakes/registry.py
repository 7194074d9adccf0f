"""A registry that the Docker daemon really pulls from: images of one small layer, with refusals on demand."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import tarfile
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_ERRORS = {
    401: "UNAUTHORIZED",
    403: "DENIED",
    404: "MANIFEST_UNKNOWN",
    429: "TOOMANYREQUESTS",
    500: "INTERNAL",
}


@dataclass
class FakeRegistry:
    """What it serves and how it answers.

    Images are made up when they are first asked for; ``faults`` are statuses that the next requests for a
    manifest get instead, one each; ``login`` is demanded when set.
    """

    address: str = ""
    faults: deque[int] = field(default_factory=deque)
    login: tuple[str, str] | None = None
    layer_bytes: int = 10_000
    pulls: Counter[str] = field(default_factory=Counter)
    blobs: dict[str, bytes] = field(default_factory=dict)

    def image(self, name: str) -> str:
        """The reference by which the daemon pulls ``name``."""
        return f"{self.address}/{name}:latest"

    def add(self, data: bytes) -> str:
        """Store a blob; returns its digest."""
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self.blobs[digest] = data
        return digest

    def manifest(self, name: str) -> bytes:
        """The manifest of an image that holds one file with its own name."""
        plain = io.BytesIO()
        with tarfile.open(fileobj=plain, mode="w") as tar:
            data = hashlib.shake_256(name.encode()).digest(self.layer_bytes)
            info = tarfile.TarInfo(f"content-of-{name.replace('/', '-')}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        layer = gzip.compress(plain.getvalue(), mtime=0)
        diff = f"sha256:{hashlib.sha256(plain.getvalue()).hexdigest()}"
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {},
            "rootfs": {"type": "layers", "diff_ids": [diff]},
        }
        described = json.dumps(config).encode()
        return json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": _MANIFEST,
                "config": {
                    "mediaType": "application/vnd.docker.container.image.v1+json",
                    "size": len(described),
                    "digest": self.add(described),
                },
                "layers": [
                    {
                        "mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip",
                        "size": len(layer),
                        "digest": self.add(layer),
                    }
                ],
            }
        ).encode()


class _Handler(BaseHTTPRequestHandler):
    registry: FakeRegistry
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        registry = self.registry
        if registry.login is not None:
            wanted = base64.b64encode(":".join(registry.login).encode()).decode()
            if self.headers.get("Authorization") != f"Basic {wanted}":
                self._refuse(401)
                return
        parts = self.path.strip("/").split("/")
        if parts == ["v2"]:
            self._answer(200, b"{}", "application/json")
        elif parts[-2] == "blobs" and parts[-1] in registry.blobs:
            self._answer(200, registry.blobs[parts[-1]], "application/octet-stream")
        elif parts[-2] == "manifests":
            self._manifest("/".join(parts[1:-2]))
        else:
            self._refuse(404)

    do_HEAD = do_GET

    def _manifest(self, name: str) -> None:
        registry = self.registry
        if registry.faults:
            self._refuse(registry.faults.popleft())
        else:
            registry.pulls[name] += self.command == "GET"
            self._answer(200, registry.manifest(name), _MANIFEST)

    def _refuse(self, status: int) -> None:
        body = {"errors": [{"code": _ERRORS[status], "message": _ERRORS[status].lower()}]}
        self._answer(status, json.dumps(body).encode(), "application/json")

    def _answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Docker-Distribution-API-Version", "registry/2.0")
        if status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="test"')
        if kind == _MANIFEST:
            self.send_header("Docker-Content-Digest", f"sha256:{hashlib.sha256(body).hexdigest()}")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def fake_registry() -> Iterator[FakeRegistry]:
    """Serve on a port of 127.0.0.1, which the daemon trusts without TLS."""
    registry = FakeRegistry()
    handler = type("Handler", (_Handler,), {"registry": registry})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    registry.address = f"127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
