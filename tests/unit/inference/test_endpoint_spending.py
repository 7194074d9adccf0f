"""Spending, lost requests and rate-limit waits of an endpoint policy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ModelError, SpendLimitError
from engine.inference.endpoint.messages import estimate_tokens
from tests.builders.web.endpoint_builders import (
    FAILED,
    OK,
    TALK,
    attempt,
    controlled_clock,
    opened,
    request,
    until,
)
from tests.fakes.openai_server import Reply, openai_server


async def test_rollouts_slow_down_together_at_rate_limits() -> None:
    with openai_server([OK]) as server:
        server.max_in_flight, server.pause_s = 4, 0.02
        async with opened(server, max_retries=8) as endpoint:
            responses = await asyncio.gather(*(endpoint.respond(request()) for _ in range(120)))
            metrics = await endpoint.take_metrics()
            assert metrics["endpoint/answered"] == 120
            assert metrics["endpoint/repeated"] == metrics["endpoint/rate_limited"] == server.refused > 0
            assert set((await endpoint.take_metrics()).values()) == {0.0}
    assert all(response.content == "fine" for response in responses)
    assert server.most_in_flight <= 4
    assert len(server.requests) == 120
    assert server.refused < 600  # without the window every request would be resent after every pause


async def test_the_spend_limit_is_exceeded_only_by_requests_in_flight(tmp_path: Path) -> None:
    settings: Any = {"input_price": 1000.0, "output_price": 1000.0, "spend_limit": 1.0}  # 0.12 a request
    with openai_server([OK]) as server:
        server.pause_s = 0.01
        async with opened(server, book=tmp_path / "spend.json", **settings) as endpoint:
            slots = asyncio.Semaphore(4)

            async def limited() -> Exception | None:
                async with slots:
                    return await attempt(endpoint)

            results = await asyncio.gather(*(limited() for _ in range(50)))
            assert {type(result) for result in results if result} == {SpendLimitError}
            assert 1.0 <= endpoint.spent <= 1.0 + 4 * 0.12 + 1e-9
            assert len(server.requests) == results.count(None) == round(endpoint.spent / 0.12)
        async with opened(server, book=tmp_path / "spend.json", **settings) as endpoint:
            assert isinstance(await attempt(endpoint), SpendLimitError)


async def test_unusable_answers_are_charged() -> None:
    useless = Reply(raw=json.dumps({"choices": [], "usage": {"prompt_tokens": 500}}).encode())
    with openai_server([useless]) as server:
        async with opened(server, input_price=10.0, output_price=10.0, max_retries=1) as endpoint:
            with pytest.raises(ModelError):
                await endpoint.respond(request())
            assert endpoint.spent == pytest.approx(2 * 500 * 10 / 1e6)


PRICES: Any = {"input_price": 1000.0, "output_price": 1000.0}
"""A reported request costs 0.12 US dollars; estimates before the first answer are near 0.09."""


@pytest.mark.parametrize(
    ("lost", "is_billed"),
    [
        (Reply(hang="before"), True),
        (Reply(content="half", cut=True), True),
        (Reply(raw=b"{nonsense"), True),
        (FAILED, False),
        (Reply(status=429, error={"message": "slow down"}), False),
    ],
)
async def test_lost_requests_are_charged_by_estimate(
    lost: Reply, is_billed: bool, tmp_path: Path, skip_time: Callable[[float], None]
) -> None:
    key = request().context.key
    with openai_server([lost, OK, lost, OK]) as server:
        book, server.on_hang = tmp_path / "spend.json", partial(skip_time, 601.0)
        async with opened(server, book=book, timeout_s=600.0, **PRICES) as endpoint:
            response = await endpoint.respond(request())
            assert response.usage.cost == pytest.approx(0.12), "of the answer alone"
            first = endpoint.spent - 0.12
            await endpoint.respond(request())
            second = endpoint.spent - 0.24 - first
            assert endpoint.spent_on(key) == pytest.approx(endpoint.spent)
            assert json.loads(book.read_text()) == {"us_dollars": endpoint.spent, "in_flight": 0.0}
            endpoint.release(key)
            assert endpoint.spent_on(key) == 0.0
    if is_billed:
        prompt = estimate_tokens(TALK)
        assert first == pytest.approx((prompt + 64) / 1000), "all that it might have generated"
        assert second == pytest.approx((prompt + 20) / 1000), "as many tokens as other responses have"
    else:
        assert first == pytest.approx(0.0)
        assert second == pytest.approx(0.0)


async def test_requests_that_never_reach_a_server_cost_nothing() -> None:
    with openai_server([OK]) as server:
        pass
    async with opened(server, max_retries=1, **PRICES) as endpoint:
        assert isinstance(await attempt(endpoint), ModelError)
        assert endpoint.spent == 0.0


async def test_cancelled_requests_are_charged_by_estimate() -> None:
    with openai_server([Reply(hang="before")]) as server:
        async with opened(server, **PRICES) as endpoint:
            task = asyncio.create_task(endpoint.respond(request()))
            await until(lambda: server.in_flight == 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert endpoint.spent == pytest.approx((estimate_tokens(TALK) + 64) / 1000)


async def test_waits_for_rate_limits_do_not_count_as_rollout_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = controlled_clock(monkeypatch)
    slow = Reply(status=429, error={"message": "slow down"}, headers={"Retry-After": "30"})

    def reply(_body: Any, number: int) -> Reply:
        clock.now += 5.0  # duration of every answer
        return OK if number else slow

    key = request().context.key
    with openai_server(reply) as server:
        async with opened(server) as endpoint:
            await endpoint.respond(request())
            waited = endpoint.waited_seconds(key)
            assert waited == pytest.approx(5.0 + clock.paused), "the refused attempt and the pause after it"
            assert clock.paused >= 30.0, "the pause that the endpoint asked for"
            await endpoint.respond(request())
            assert endpoint.waited_seconds(key) == waited, "time of answers counts"
            endpoint.release(key)
            assert endpoint.waited_seconds(key) == 0.0


async def test_waits_for_the_runs_rate_do_not_count_as_rollout_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = controlled_clock(monkeypatch)
    key = request().context.key

    def has_waited() -> bool:
        clock.now += 1.0
        return endpoint.waited_seconds(key) >= 3.0

    with openai_server([OK]) as server:
        async with opened(server, requests_per_minute=1) as endpoint:
            await endpoint.respond(request())
            assert endpoint.waited_seconds(key) == 0.0
            task = asyncio.create_task(endpoint.respond(request()))
            await until(has_waited)
            assert not task.done()
            assert len(server.requests) == 1
            task.cancel()
            await asyncio.wait([task])


async def test_retries_after_other_failures_count_as_rollout_time(
    monkeypatch: pytest.MonkeyPatch, skip_time: Callable[[float], None]
) -> None:
    clock = controlled_clock(monkeypatch)

    def reply(_body: Any, number: int) -> Reply:
        clock.now += 5.0
        return OK if number else Reply(hang="before")

    key = request().context.key
    with openai_server(reply) as server:
        server.on_hang = partial(skip_time, 601.0)
        async with opened(server, timeout_s=600.0) as endpoint:
            await endpoint.respond(request())
            assert len(server.requests) == 2
            assert clock.paused > 0.0
            assert endpoint.waited_seconds(key) == 0.0
