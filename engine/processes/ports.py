"""TCP ports for servers that are still to start."""

from __future__ import annotations

import socket


def hold_free_port(host: str) -> socket.socket:
    """Bind a socket to a free port of ``host`` and return it; close it once the port is no longer needed.

    It does not listen: the kernel gives the port to nobody who asks for any, while a server that names it and
    sets SO_REUSEADDR may listen on it.
    """
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        held.bind((host, 0))
    except OSError:
        held.close()
        raise
    return held


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port of ``host`` that is free now; until it is used, others may be given it, too."""
    with hold_free_port(host) as held:
        port: int = held.getsockname()[1]
        return port
