"""Agent protocol: lossless encoding, and typed errors for malformed, late or missing messages."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket

import pytest

from engine.errors import SandboxDiedError, SandboxResourceError, SandboxTransportError
from engine.sandbox.agent.wire import MAX_FRAME, decode, encode, frame
from engine.sandbox.client import AgentClient
from engine.sandbox.responses import content

VALUE: dict[str, object] = {
    "none": None, "yes": True, "no": False, "zero": 0, "one": 1, "large": -(2**62), "text": "h\u00e9\n\udcff",
    "raw": bytes(range(256)), "list": [1, [b""], {}], "table": {"": {"x": []}},
}  # fmt: skip


def test_encoding_is_lossless_and_rejects_unsupported_values() -> None:
    assert decode(encode(VALUE)) == VALUE
    assert decode(encode(True)) is True
    with pytest.raises(TypeError):
        encode(1.5)
    with pytest.raises(ValueError):
        frame(b"x" * (MAX_FRAME + 1))


def test_decoding_damaged_input_raises_only_value_errors() -> None:
    generator = random.Random(0)
    whole = encode(VALUE)
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(generator.randrange(1, 4)):
            data[generator.randrange(len(data))] = generator.randrange(256)
        data = data[: generator.randrange(len(data) + 1)]
        with contextlib.suppress(ValueError):
            decode(bytes(data))


@pytest.mark.parametrize(
    "data", [b"", b"x", b"i5", b"b9;abc", b"b-1;", b"l99999999;", b"d1;i1;i1;", b"l1;" * 5000, b"nn"]
)
def test_decoding_malformed_input_raises_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode(data)


async def client_and_agent() -> tuple[AgentClient, socket.socket]:
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    return AgentClient(reader, writer, post_mortem=lambda: "it was struck by lightning"), theirs


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"\xff\xff\xff\xff", SandboxTransportError),
        (b"\0\0\0\3xyz", SandboxTransportError),
        (frame(["no", "table"]), SandboxTransportError),
        (frame({"id": 99}), SandboxTransportError),
        (frame({"id": 1, "errno": 11, "message": "no process", "resource": True}), SandboxResourceError),
        (frame({"id": 1, "errno": 2, "message": "gone"}), FileNotFoundError),
    ],
)
async def test_malformed_or_failed_replies_raise_typed_errors(answer: bytes, error: type[Exception]) -> None:
    client, agent = await client_and_agent()
    agent.send(answer)
    with pytest.raises(error):
        await client.call("read", content(100))
    await client.close()
    agent.close()


async def test_every_call_to_a_dead_agent_raises_its_reason() -> None:
    client, agent = await client_and_agent()
    agent.close()
    for _ in range(2):
        with pytest.raises(SandboxDiedError, match="lightning"):
            await client.call("read", content(100))
    await client.close()


async def test_call_to_a_silent_agent_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.sandbox.client.GRACE_S", 0.05)
    client, agent = await client_and_agent()
    with pytest.raises(SandboxTransportError, match="no reply"):
        await client.call("read", content(100), timeout_s=0.05)
    await client.close()
    agent.close()


async def test_missing_greeting_raises_a_transport_error() -> None:
    client, agent = await client_and_agent()
    with pytest.raises(SandboxTransportError, match="no greeting"):
        await client.hello(0.05)
    await client.close()
    agent.close()
