"""The request that an endpoint policy sends before a run begins."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.errors import EndpointRefusedError
from tests.builders.endpoint_builders import FAILED, KEY, OK, TOOLS, opened
from tests.fakes.openai_server import Reply, openai_server


async def test_a_check_learns_the_context_and_sends_the_runs_own_parameters() -> None:
    with openai_server([OK]) as server:
        server.models = [{"id": "other", "max_model_len": 5}, {"id": "m", "max_model_len": 32768}]
        async with opened(server, temperature=0.0) as endpoint:
            await asyncio.gather(*(endpoint.check(TOOLS) for _ in range(5)))
            assert endpoint.max_context == 32768
    assert server.paths == ["/v1/models", "/v1/chat/completions"]
    assert server.requests[0]["tools"] == TOOLS
    assert server.requests[0]["temperature"] == 0.0


@pytest.mark.parametrize(
    ("reply", "settings", "words"),
    [
        (Reply(status=400, error={"message": "seed unsupported"}), {}, "seed unsupported; what is sent"),
        (FAILED, {}, "oops"),
        (Reply(status=401, error={"message": KEY}), {}, "refuses the key"),
        (
            Reply(content="x", usage=None),
            {"spend_limit": 1.0, "input_price": 1.0, "output_price": 1.0},
            "reports no usage",
        ),
    ],
)
async def test_a_check_refuses_what_cannot_work(reply: Reply, settings: Any, words: str) -> None:
    with openai_server([reply]) as server:
        async with opened(server, max_retries=1, **settings) as endpoint:
            with pytest.raises(EndpointRefusedError, match=words) as refused:
                await endpoint.check(TOOLS)
            sent = len(server.requests)
            with pytest.raises(EndpointRefusedError, match=words):
                await endpoint.check(TOOLS)
    assert len(server.requests) == sent
    assert KEY not in str(refused.value)
