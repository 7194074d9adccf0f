"""Builders for endpoint policies of scripted servers, their requests, and a clock of their waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.config.policies import EndpointPolicyConfig
from engine.inference import waits
from engine.inference.base import ChatRequest, GenerationContext, SamplingParams
from engine.inference.endpoint import limits, policy
from engine.inference.endpoint.keys import Endpoint
from engine.inference.endpoint.policy import EndpointPolicy
from engine.models.chat.base import Message
from engine.tools.schemas import SWE_TOOLS
from tests.builders.rollout_builders import make_key, make_row
from tests.fakes.openai_server import OpenAIServer, Reply

KEY = "correct-horse-battery-staple"
TOOLS = [tool.json_schema() for tool in SWE_TOOLS.values()]
TALK: list[Message] = [{"role": "system", "content": "You mend code."}, {"role": "user", "content": "Go."}]
OK = Reply(content="fine")
FAILED = Reply(status=500, error={"message": "oops"})


@asynccontextmanager
async def opened(
    server: OpenAIServer, *, key: str = KEY, book: Path | None = None, **settings: Any
) -> AsyncIterator[EndpointPolicy]:
    """Open a policy of the server, with short pauses before retries."""
    config = EndpointPolicyConfig(endpoint=server.url, **{"model": "m", "max_retries": 3, **settings})
    opened = EndpointPolicy(config, Endpoint(address=server.url, key=key), book=book)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(policy, "FIRST_PAUSE_S", 0.001)
        try:
            yield opened
        finally:
            await opened.close()


def request(messages: Sequence[Message] = TALK, *, tools: Any = (), **sampling: Any) -> ChatRequest:
    context = GenerationContext(key=make_key(), row=make_row())
    sampling_params = SamplingParams(**{"max_tokens": 64, **sampling})
    return ChatRequest(
        messages=messages, tools=tools, sampling=sampling_params, seed=2**62 + 5, context=context
    )


async def attempt(endpoint: EndpointPolicy) -> Exception | None:
    """Send one request; return its error."""
    try:
        await endpoint.respond(request())
    except Exception as error:
        return error
    return None


async def until(condition: Callable[[], bool]) -> None:
    """Poll until the condition is true."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


class Clock:
    """Monotonic clock of an endpoint policy, advanced only by pauses and tests."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.paused = 0.0
        """Sum of all pauses before requests, seconds."""

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.paused += seconds
        await asyncio.sleep(0)


def controlled_clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Give endpoint policies a clock whose pauses take no time; return the clock."""
    clock = Clock()
    for module in (waits, limits, policy):
        monkeypatch.setattr(module, "time", clock)
    for module in (limits, policy):
        monkeypatch.setattr(module, "asyncio", SimpleNamespace(**vars(asyncio) | {"sleep": clock.sleep}))
    return clock
