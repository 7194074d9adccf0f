"""The key that a server's routes require."""

from __future__ import annotations

from typing import Any

import pytest

from engine.inference.vllm.servers.worker.trainyard_access import RequireKey


async def _answer(scope: dict[str, Any]) -> list[Any]:
    """Return the messages sent for a request; the wrapped application sends ``reached``."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message.get("status", message.get("code")) if isinstance(message, dict) else message)

    async def application(_scope: Any, _receive: Any, send: Any) -> None:
        await send("reached")

    await RequireKey(application)(scope, None, send)
    return sent


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "right")


def http(path: str, *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"type": "http", "path": path, "headers": list(headers)}


async def test_requests_with_the_key_are_accepted() -> None:
    assert await _answer(http("/collective_rpc", (b"authorization", b"Bearer right"))) == ["reached"]


async def test_wrong_and_missing_keys_are_refused() -> None:
    for value in (b"", b"Bearer", b"Bearer wrong", b"right", b"Bearer right ", b"Bearer rights"):
        assert (await _answer(http("/metrics", (b"authorization", value))))[0] == 401
    for path in ("/metrics", "/health/", "/health/../metrics", ""):
        assert (await _answer(http(path)))[0] == 401


async def test_the_health_check_and_the_lifespan_need_no_key() -> None:
    assert await _answer(http("/health")) == ["reached"]
    assert await _answer({"type": "lifespan"}) == ["reached"]


async def test_a_websocket_without_the_key_is_closed() -> None:
    assert await _answer({"type": "websocket", "path": "/v1/realtime", "headers": []}) == [1008]
