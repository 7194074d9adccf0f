"""The agent's TCP listener: one client with the token, within time limits."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.sandbox.agent.wire import decode, frame
from tests.ports import reserved_port

AGENT = Path(__file__).parents[4] / "engine" / "sandbox"
TOKEN = b"\x01" * 32


def start(port: int, accept_s: float = 120.0, handshake_s: float = 60.0) -> subprocess.Popen[bytes]:
    call = f"from agent import listen; listen._HANDSHAKE_S = {handshake_s}; listen.main({port}, {accept_s})"
    code = f"import sys; sys.path[:0] = [{str(AGENT)!r}]; {call}"
    env = {"PATH": os.defpath, "COLOUR": "red", "TRAINYARD_X": "1", "KUBERNETES_PORT": "2", "HOSTNAME": "h"}
    process = subprocess.Popen([sys.executable, "-I", "-S", "-B", "-c", code], stdin=subprocess.PIPE, env=env)
    assert process.stdin is not None
    process.stdin.write(TOKEN.hex().encode() + b"\n")
    process.stdin.close()
    return process


def connect(port: int) -> socket.socket:
    deadline = time.monotonic() + 120
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), 120)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def receive(sock: socket.socket) -> object:
    size = int.from_bytes(exactly(sock, 4), "big")
    return decode(exactly(sock, size))


def exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        assert part, "the agent closed the connection"
        data += part
    return data


def closed_by_agent(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:  # the agent left data unread
        return True


@pytest.fixture
def port() -> int:
    return reserved_port()


@pytest.fixture
def agent(port: int) -> Iterator[subprocess.Popen[bytes]]:
    with start(port) as process:
        yield process
        process.kill()


def test_token_admits_one_client_and_its_disconnect_ends_the_agent(
    agent: subprocess.Popen[bytes], port: int
) -> None:
    for wrong in (b"\0" * 32, b"", TOKEN[:-1]):
        with connect(port) as stranger:
            stranger.sendall(frame({"token": wrong}))
            assert closed_by_agent(stranger)
    too_long = (1 << 20).to_bytes(4, "big")
    for nonsense in (b"GET / HTTP/1.1\r\n\r\n", frame([1]), frame({"token": "text"}), too_long):
        with connect(port) as stranger:
            stranger.sendall(nonsense)
            assert closed_by_agent(stranger)
    with connect(port) as client:
        client.sendall(frame({"token": TOKEN}))
        greeting = receive(client)
        assert isinstance(greeting, dict)
        assert greeting["hello"] == 1
        assert greeting["pid"] == agent.pid
        assert greeting["env"]["COLOUR"] == "red"
        assert not {"TRAINYARD_X", "KUBERNETES_PORT", "HOSTNAME"} & set(greeting["env"])
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 5)
        request = {
            "op": "exec",
            "id": 1,
            "argv": ["sh", "-c", "tr '\\0' '\\n' < /proc/$PPID/environ; ls /proc/$PPID/fd | wc -l"],
            "cwd": "/",
            "env": {"PATH": os.defpath},
            "stdin": b"",
            "timeout_ms": 10_000,
            "output_cap": 10_000,
        }
        client.sendall(frame(request))
        reply = receive(client)
        assert isinstance(reply, dict)
        assert reply["exit_code"] == 0
        assert TOKEN.hex().encode() not in reply["stdout"]
    assert agent.wait(120) == 0


def test_agent_without_a_client_in_time_ends(port: int) -> None:
    with start(port, accept_s=0.2) as process:
        assert process.wait(120) == 0


def test_silent_client_does_not_block_another_one(port: int) -> None:
    with start(port, handshake_s=1.0), connect(port) as silent, connect(port) as client:
        client.sendall(frame({"token": TOKEN}))
        assert isinstance(receive(client), dict)
        assert closed_by_agent(silent)
