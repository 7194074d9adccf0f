"""Limits shared by rollouts (rates, window, spending), and classification of failed requests."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from openai import APIConnectionError, APITimeoutError
from openai._exceptions import APIStatusError

from engine.errors import EndpointRefusedError, ModelError, SpendLimitError
from engine.inference.endpoint import limits
from engine.inference.endpoint.answers import GarbledAnswerError, OversizedAnswerError, ReportedError
from engine.inference.endpoint.failures import MAX_PAUSE_S, Failure, asked_pause, classify
from engine.inference.endpoint.lengths import RequestLength
from engine.inference.endpoint.limits import RateLimits, Spending, Window

REQUEST = httpx2.Request("POST", "http://h/v1/chat/completions")
SENT = RequestLength(prompt=100, response=64)


def classify_status(code: int, body: Any = None, **headers: str) -> Failure:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    response = httpx2.Response(code, headers=named, request=REQUEST)
    return classify(APIStatusError("said", response=response, body=body), endpoint="h", request=SENT)


def test_transient_statuses_are_retried() -> None:
    for code in (408, 409, 425, 429, 500, 502, 503, 504, 529):
        failure = classify_status(code, {"message": "later"})
        assert failure.retry
        assert failure.overloaded is (code in (429, 503, 529))
        assert str(failure.error) == f"h answered {code}: later"
        assert type(failure.error) is ModelError


@pytest.mark.parametrize(
    ("code", "body", "words"),
    [
        (401, {"message": "Incorrect API key provided: sk-abc***xyz"}, "refuses the key"),
        (402, {"message": "Insufficient Balance"}, "out of quota"),
        (429, {"message": "You exceeded your quota", "type": "insufficient_quota"}, "out of quota"),
        (429, {"message": "x", "code": "billing_hard_limit_reached"}, "out of quota"),
        (404, {"message": "The model `x` does not exist"}, "no such model"),
        (302, None, "redirects to other.test"),
    ],
)
def test_permanent_statuses_end_the_run(code: int, body: Any, words: str) -> None:
    failure = classify_status(code, body, location="https://other.test/v1?key=sk-abc")
    assert isinstance(failure.error, EndpointRefusedError)
    assert not failure.retry
    assert words in str(failure.error)
    assert "sk-abc" not in str(failure.error)


@pytest.mark.parametrize(
    ("code", "body"),
    [(400, {"message": "bad"}), (403, {"detail": "bad"}), (422, {"error": "bad"}), (400, "bad")],
)
def test_refused_requests_are_not_retried(code: int, body: Any) -> None:
    failure = classify_status(code, body)
    assert not failure.retry
    assert type(failure.error) is ModelError
    assert str(failure.error) == f"h answered {code}: bad"


def test_endpoint_messages_are_capped_and_redacted() -> None:
    failure = classify_status(
        400, {"message": "no\n\tBearer abcdefghijklmnopqrstuvwxyz " + "x" * 100_000 + "\ud800"}
    )
    assert len(str(failure.error)) < 400
    assert "abcdefgh" not in str(failure.error)
    assert "\n" not in str(failure.error)


def test_unrelated_exceptions_are_raised_again() -> None:
    with pytest.raises(KeyError):
        classify(KeyError("x"), endpoint="h", request=SENT)


@pytest.mark.parametrize(
    ("headers", "pause"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "86400"}, MAX_PAUSE_S),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry-after": "Sat, 21 Oct 2215 07:28:00 GMT"}, MAX_PAUSE_S),
        ({"retry-after": f"Sat, 21 Oct {'9' * 20} 07:28:00 GMT"}, None),
    ],
)
def test_retry_after_headers_are_parsed_and_capped(headers: dict[str, str], pause: float | None) -> None:
    assert asked_pause(headers) == pause


def narrow(window: Window, *, times: int = 1) -> None:
    sent_at = time.monotonic()
    for _ in range(times):
        window.narrow(sent_at=sent_at, pause_s=0.0)


async def test_the_window_is_halved_once_per_burst_and_grows_again() -> None:
    window = Window()
    assert window.size == math.inf
    window.in_flight = 16
    narrow(window, times=16)
    assert window.size == 8
    for _ in range(100):
        window.widen()
    assert 12 < window.size < 24
    for _ in range(20):
        narrow(window)
    assert window.size == 1


async def test_the_window_limits_requests_in_flight_and_frees_every_place() -> None:
    window = Window()
    window.in_flight = 6
    narrow(window)
    window.in_flight = 0
    running, most, done = 0, 0, 0

    async def request(number: int) -> None:
        nonlocal running, most, done
        async with window.place():
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1
            if number % 3 == 0:
                raise ValueError
            done += 1

    tasks = [asyncio.create_task(request(number)) for number in range(60)]
    await asyncio.sleep(0)
    for task in tasks[10:20]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert most == 3
    assert done == 60 - 20 - len([n for n in range(10, 20) if n % 3])
    assert window.in_flight == 0


async def test_a_pause_delays_every_request() -> None:
    window = Window()
    window.narrow(sent_at=time.monotonic(), pause_s=3600.0)
    entered = asyncio.create_task(window.place().__aenter__())
    done, _ = await asyncio.wait({entered}, timeout=0.05)
    assert not done
    entered.cancel()
    await asyncio.wait({entered})
    assert window.in_flight == 0


@pytest.fixture
def short_period(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_PERIOD_S", 0.2)


async def test_requests_are_spread_over_time(clock: Callable[[], float]) -> None:
    rates = RateLimits(10, None)
    await asyncio.gather(*(rates.wait(0) for _ in range(30)))
    assert clock() == pytest.approx(2 * 60, rel=0.01), "ten at once, then ten a minute"


async def test_tokens_are_charged_by_reported_usage(clock: Callable[[], float]) -> None:
    rates = RateLimits(None, 1000)
    await rates.wait(100)
    rates.settle(100, 2900)
    await rates.wait(100)
    assert clock() == pytest.approx(2 * 60, rel=0.01), "3,000 in all, of which the first 1,000 are a burst"
    rates.settle(100, 0)
    assert rates.counts_tokens


async def test_a_cancelled_wait_leaves_its_charge_to_the_next_request(clock: Callable[[], float]) -> None:
    rates = RateLimits(None, 1000)
    await rates.wait(100)
    rates.settle(100, 1900)
    cancelled = asyncio.create_task(rates.wait(100))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait({cancelled})
    await rates.wait(100)
    assert clock() == pytest.approx(60, rel=0.01), "2,000 in all, of which the first 1,000 are a burst"


@pytest.mark.usefixtures("short_period")
async def test_a_large_request_does_not_starve() -> None:
    rates = RateLimits(None, 1000)
    order: list[str] = []

    async def wait(name: str, tokens: int) -> None:
        await rates.wait(tokens)
        order.append(name)

    await rates.wait(1000)
    await asyncio.gather(wait("large", 900), *(wait(f"small {n}", 10) for n in range(20)))
    assert order[0] == "large"


def spend(spending: Spending, cost: float) -> None:
    with spending.request(0.3) as bill:
        bill.cost = cost


def test_spending_stops_at_the_limit_and_persists(tmp_path: Path) -> None:
    book = tmp_path / "spend.json"
    spending = Spending(1.0, book)
    spend(spending, 0.6)
    spend(spending, 0.0)
    spending.check()
    again = Spending(1.0, book)
    assert again.spent == pytest.approx(0.6)
    spend(again, 0.5)
    with pytest.raises(SpendLimitError, match=r"\$1\.1000 of policy\.spend_limit \$1;"):
        again.check()
    Spending(None, book).check()


def test_requests_in_flight_of_a_killed_attempt_are_charged(tmp_path: Path) -> None:
    book = tmp_path / "spend.json"
    spending = Spending(1.0, book)
    spend(spending, 0.5)
    with spending.request(0.3), spending.request(0.25):
        assert spending.spent == 0.5
        killed = tmp_path / "killed.json"
        killed.write_text(book.read_text())
    assert Spending(1.0, killed).spent == pytest.approx(1.05)
    assert Spending(1.0, book).spent == pytest.approx(1.05), "nothing was reported, so the estimates hold"


@pytest.mark.parametrize(
    ("error", "is_billed"),
    [
        (APITimeoutError(REQUEST), True),
        (TimeoutError(), True),
        (httpx2.RemoteProtocolError("peer closed connection"), True),
        (GarbledAnswerError("not JSON"), True),
        (httpx2.ConnectError("refused"), False),
        (httpx2.ConnectTimeout("slow"), False),
        (ReportedError("overloaded"), False),
        (ReportedError({"code": 502, "message": "provider died"}), False),
    ],
)
def test_broken_answers_are_retried_and_billed_if_generated(error: Exception, is_billed: bool) -> None:
    failures = [classify(error, endpoint="h", request=SENT)]
    if isinstance(error, httpx2.TransportError):
        wrapped = APIConnectionError(request=REQUEST)
        wrapped.__cause__ = error
        failures.append(classify(wrapped, endpoint="h", request=SENT))
    assert {(failure.retry, failure.is_billed) for failure in failures} == {(True, is_billed)}


def test_oversized_answers_are_billed_and_not_retried() -> None:
    failure = classify(OversizedAnswerError("long"), endpoint="h", request=SENT)
    assert (failure.retry, failure.is_billed) == (False, True)
