"""TCP server of the agent for one client, for sandboxes that are reached over a network.

A client first sends ``{"token": bytes}``. With the right token, the port is closed and the connection becomes
the agent's stream. With a wrong or malformed one, or none within ``_HANDSHAKE_S``, the connection is closed
and the next client may try. Without a valid client within the accept time, or after a lost connection, the
process ends, and with it the sandbox whose init it is.
"""

from __future__ import annotations

import hmac
import os
import socket
import time

from .children import harden
from .main import main as serve
from .wire import decode

TOKEN_VARIABLE = "TRAINYARD_TOKEN"
"""Environment variable of the token, in hex; removed from the agent's own environment."""
_HANDSHAKE_S = 5.0
_MAX_FIRST = 1024
_KEEPALIVE = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4))
_NOT_THE_IMAGES = ("TRAINYARD_", "KUBERNETES_")


def main(port: int, accept_s: float) -> None:
    """Serve one client on ``port``, accepted within ``accept_s`` seconds; read the hex token from stdin."""
    harden()
    token = bytes.fromhex(os.read(0, 4096).decode("ascii").strip())
    connection = accept(listener(port), token, time.monotonic() + accept_s)
    if connection is None:
        return
    connection.settimeout(None)
    for descriptor in (0, 1):
        os.dup2(connection.fileno(), descriptor)
    connection.detach()  # the stream closes every descriptor but its own
    serve(facts())


def listener(port: int) -> socket.socket:
    """Return a socket that listens on every address, IPv6 included where the kernel supports it."""
    try:
        return _listen(socket.AF_INET6, "::", port)
    except OSError:
        return _listen(socket.AF_INET, "0.0.0.0", port)  # noqa: S104 - the box's own network


def _listen(family: int, address: str, port: int) -> socket.socket:
    sock = socket.socket(family)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind((address, port))
        sock.listen(8)
    except OSError:
        sock.close()
        raise
    return sock


def accept(sock: socket.socket, token: bytes, deadline: float) -> socket.socket | None:
    """Accept the first connection that sends ``token``; None after ``deadline``. Closes the listener."""
    with sock:
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            sock.settimeout(left)
            try:
                connection, _ = sock.accept()
            except OSError:
                continue
            if _knows(connection, token):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for name, value in _KEEPALIVE:
                    connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
                return connection
            connection.close()


def _knows(connection: socket.socket, token: bytes) -> bool:
    deadline = time.monotonic() + _HANDSHAKE_S
    try:
        size = int.from_bytes(_receive(connection, 4, deadline), "big")
        if size > _MAX_FIRST:
            return False
        message = decode(_receive(connection, size, deadline))
    except (OSError, ValueError):
        return False
    offered = message.get("token") if isinstance(message, dict) else None
    return isinstance(offered, bytes) and hmac.compare_digest(offered, token)


def _receive(connection: socket.socket, size: int, deadline: float) -> bytes:
    data = b""
    while len(data) < size:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        part = connection.recv(size - len(data))
        if not part:
            raise OSError("closed")
        data += part
    return data


def serve_stdio() -> None:
    """Serve stdin and stdout, for a client that the container runtime has admitted."""
    serve(facts())


def facts() -> dict[str, object]:
    """Return the greeting's content: the image's environment and the address of the cluster's API."""
    address = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
    return {"env": image_environment(), "api": list(address) if all(address) else None}


def image_environment() -> dict[str, str]:
    """Return the image's own environment, without variables added by the cluster or the backend."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_NOT_THE_IMAGES) and name not in ("HOSTNAME", "PWD", "OLDPWD", "SHLVL", "_")
    }
