"""Connections between a trainer's controller and its ranks: two sockets for each rank, opened by the rank.

``commands`` carries questions and answers; ``events`` carries signs of life, finished writes and failures,
which may come at any time. Messages are pickled, so both sides prove that they know a common key first.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection
from typing import Literal, TypeAlias

from engine.errors import TrainerError
from engine.processes.link import LOOPBACK, Listener

ADDRESS, KEY = "TRAINYARD_RANKS_ADDRESS", "TRAINYARD_RANKS_KEY"
"""Environment variables: ``HOST:PORT`` of the controller, and the common key."""
Purpose: TypeAlias = Literal["commands", "events"]

_LOST_S = 30
"""Time after which a peer is gone whose machine vanished without ending its connections, seconds."""
_CONNECT_S = 600
"""Time for which a rank waits for its run to listen, seconds."""


class RankListener(Listener):
    """Listening socket of a controller.

    Args:
        key: the common key.
        address: host and port; by default a free port of the loopback interface.

    Raises:
        TrainerError: the address cannot be used.
    """

    def __init__(self, key: bytes, address: tuple[str, int] = (LOOPBACK, 0)) -> None:
        try:
            super().__init__(key, address)
        except OSError as error:
            raise TrainerError(
                f"cannot listen for ranks at {address[0]}:{address[1]} ({error}): set {ADDRESS} to a free "
                "port of this machine"
            ) from error

    def accept_rank(self, timeout_s: float) -> tuple[int, Purpose, Connection] | None:
        """Return a rank's next connection; None when there was none in time, or a stranger's."""
        if (accepted := self.accept(timeout_s)) is None:
            return None
        (rank, purpose), connection = accepted
        if purpose == "events":
            _end_when_lost(connection)
        return rank, purpose, connection


def connect(rank: int, purpose: Purpose) -> Connection:
    """Connect a rank to the controller named in the environment, once that listens.

    Raises:
        TrainerError: it is not named, does not listen in time, or has another key.
    """
    host, port = read_address()
    deadline = time.monotonic() + _CONNECT_S
    while True:
        try:
            connection = Client((host, port), authkey=read_key())
            connection.send((rank, purpose))
        except ConnectionRefusedError as error:
            if time.monotonic() > deadline:
                raise TrainerError(
                    f"no run listened for rank {rank} at {host}:{port} within {_CONNECT_S} s: start the run"
                ) from error
            time.sleep(0.5)
        except (OSError, EOFError, AuthenticationError) as error:
            raise TrainerError(
                f"rank {rank} cannot connect to its run at {host}:{port} ({error}): set {KEY} and {ADDRESS} "
                "as for the run"
            ) from error
        else:
            assert isinstance(connection, Connection)
            if purpose == "events":
                _end_when_lost(connection)
            return connection


def read_address() -> tuple[str, int]:
    """Return the controller's host and port from the environment. Raises TrainerError."""
    host, _, port = os.environ.get(ADDRESS, "").rpartition(":")
    if not host or not port.isdigit():
        raise TrainerError(
            f"{ADDRESS} is {os.environ.get(ADDRESS)!r}: set it to HOST:PORT, alike for the run and its ranks"
        )
    return host, int(port)


def read_key() -> bytes:
    """Return the common key from the environment. Raises TrainerError."""
    key = os.environ.get(KEY, "")
    if len(key) < 16:
        raise TrainerError(
            f"{KEY} has {len(key)} characters: set a secret of 16 or more, the same for the run and its ranks"
        )
    return key.encode()


def shut_down(connection: Connection, *, how: int = socket.SHUT_RDWR) -> None:
    """End a connection, by default in both directions; a thread that is reading from it sees the end."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as twin:
        twin.shutdown(how)


def await_end(connection: Connection, timeout_s: float) -> None:
    """Wait until the other side has ended a connection, or the time is over."""
    deadline = time.monotonic() + timeout_s
    with contextlib.suppress(OSError, EOFError):
        while connection.poll(max(0.0, deadline - time.monotonic())):
            connection.recv_bytes()


def _end_when_lost(events: Connection) -> None:
    """Have the kernel end a connection ``events`` whose other machine no longer answers.

    Not for ``commands``: a rank that computes for long may not read them meanwhile.
    """
    with socket.socket(fileno=os.dup(events.fileno())) as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _LOST_S // 3)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _LOST_S // 6)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _LOST_S * 1000)
