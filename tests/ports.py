"""Loopback ports for servers that tests start."""

from __future__ import annotations

import random
import socket
from pathlib import Path

from engine.processes.ports import hold_free_port
from webapp.supervisor.home import Ports, port_is_free, save_ports

_HELD: list[socket.socket] = []


def reserved_port() -> int:
    """Return a loopback port that is reserved for the lifetime of this process.

    It stays bound here without listening: the kernel then never assigns it to a request for any port, while
    a server that names it and sets SO_REUSEADDR, as all of ours do, may listen on it.
    """
    _HELD.append(hold_free_port("127.0.0.1"))
    port: int = _HELD[-1].getsockname()[1]
    return port


def quiet_port() -> int:
    """Return a free port below the kernel's ephemeral range, for servers without SO_REUSEADDR.

    A restarted server finds its port free: the kernel assigned it to no connection in between.
    """
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while not port_is_free(port := random.randrange(max(1024, lowest // 2), lowest)):
        pass
    return port


def reserve_service_ports(home: Path) -> None:
    """Configure reserved ports instead of the default ones for the supervisor of a data folder."""
    save_ports(home, Ports(postgres=reserved_port(), redis=reserved_port(), web=reserved_port()))
