"""Connections of a run's process to processes that it started: sockets over which both prove a common key.

Messages are pickled, so nobody without the key gets a connection. Only that handshake is authenticated: the
network between machines must be trusted.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

LOOPBACK = "127.0.0.1"
_HANDSHAKE_S = 10
"""Time in which a peer must prove that it knows the key, seconds."""


class Listener:
    """Listening socket of a run's process.

    Args:
        key: the common key.
        address: host and port; by default a free port of the loopback interface.

    Raises:
        OSError: the address cannot be used.
    """

    def __init__(self, key: bytes, address: tuple[str, int] = (LOOPBACK, 0)) -> None:
        self._key = key
        self._socket = socket.create_server(address)

    @property
    def address(self) -> str:
        """Return ``HOST:PORT``."""
        host, port = self._socket.getsockname()[:2]
        return f"{host}:{port}"

    def accept(self, timeout_s: float) -> tuple[Any, Connection] | None:
        """Return the first message of the next peer and its connection; None if none came, or a stranger."""
        self._socket.settimeout(timeout_s)
        try:
            peer, _ = self._socket.accept()
        except TimeoutError:
            return None
        peer.setblocking(True)
        _set_receive_timeout(peer, _HANDSHAKE_S)
        connection = Connection(os.dup(peer.fileno()))
        try:
            deliver_challenge(connection, self._key)
            answer_challenge(connection, self._key)
            first = connection.recv()
        except Exception:  # whatever a stranger sends
            connection.close()
            return None
        finally:
            with contextlib.suppress(OSError):
                _set_receive_timeout(peer, 0)
            peer.close()
        return first, connection

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()


def _set_receive_timeout(peer: socket.socket, seconds: int) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, 0))
