"""Request limits per caller, counted in Redis over fixed windows of one minute.

    login    per address: password checks at sign-in and before a change of the password
    API      per credential (a token or session); engines have a higher limit
    refused  per address: requests with unknown credentials

While Redis is down no limit applies; a warning is logged, and lock-out (in the database) still works.
"""

from __future__ import annotations

import hashlib
import logging
import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import redis.exceptions
from django.conf import settings
from django.core.cache import cache
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render

WINDOW_S = 60
_PAUSE_S = 5.0
"""Pause between a failed request to Redis and the next attempt, seconds."""
_ENGINE = re.compile(r"^/api/v1/runs/\d+/(events|heartbeat)$")

log = logging.getLogger(__name__)
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Rule:
    """At most ``most`` requests a minute for one caller."""

    name: str
    most: int


LOGIN = Rule("login", 30)
API = Rule("api", 1_200)
ENGINE = Rule("engine", 12_000)
REFUSED = Rule("refused", 120)
_silent_until = 0.0


def rate_limit(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Return middleware that answers 429 to callers over their limit."""

    def middleware(request: HttpRequest) -> HttpResponse:
        if request.path.startswith("/api/"):
            return _api(request, get_response)
        if (
            request.method == "POST"
            and request.path.endswith(("/login/", "/account/password/"))
            and exceeds(LOGIN, _address(request))
        ):
            response = render(request, "core/errors/429.html", status=429)
            response["Retry-After"] = str(_rest_s())
            return response
        return get_response(request)

    return middleware


def _api(request: HttpRequest, get_response: Callable[[HttpRequest], HttpResponse]) -> HttpResponse:
    caller = _caller(request)
    rule = ENGINE if _ENGINE.match(request.path) else API
    if exceeds(rule, caller):
        return _refusal(f"more than {rule.most} requests a minute")
    known = f"known:{caller}"
    if _count(REFUSED, _address(request)) > REFUSED.most and not _get(known):
        return _refusal("too many requests with unknown credentials from this address")
    response = get_response(request)
    if response.status_code == 401:
        exceeds(REFUSED, _address(request))
    else:
        _set(known)
    return response


def exceeds(rule: Rule, caller: str) -> bool:
    """Count one request of a caller; return whether the limit is exceeded."""
    key = _key(rule, caller)

    def count() -> int:
        cache.add(key, 0, timeout=2 * WINDOW_S)
        return int(cache.incr(key))

    return _ask(count, 0) > rule.most


def _count(rule: Rule, caller: str) -> int:
    return _ask(lambda: int(cache.get(_key(rule, caller), 0)), 0)


def _get(key: str) -> bool:
    return _ask(lambda: int(cache.get(key, 0)), 0) == 1


def _set(key: str) -> None:
    _ask(lambda: cache.set(key, 1, timeout=10 * WINDOW_S), None)


def _ask(question: Callable[[], Answer], otherwise: Answer) -> Answer:
    """Return Redis's response; ``otherwise`` while Redis does not respond."""
    global _silent_until
    if time.monotonic() < _silent_until:
        return otherwise
    try:
        return question()
    except (redis.exceptions.RedisError, OSError) as error:
        _silent_until = time.monotonic() + _PAUSE_S
        log.warning("request rates are not bounded: Redis does not answer: %s", error)
        return otherwise


def _key(rule: Rule, caller: str) -> str:
    return f"rate:{rule.name}:{caller}:{int(time.time() // WINDOW_S)}"


def _rest_s() -> int:
    return math.ceil(WINDOW_S - time.time() % WINDOW_S)


def _caller(request: HttpRequest) -> str:
    credential = request.headers.get("Authorization") or request.COOKIES.get(settings.SESSION_COOKIE_NAME)
    return hashlib.sha256(credential.encode()).hexdigest()[:32] if credential else _address(request)


def _address(request: HttpRequest) -> str:
    return str(request.META.get("REMOTE_ADDR", ""))


def _refusal(why: str) -> HttpResponse:
    seconds = _rest_s()
    detail = f"{why}; try again in {seconds} s"
    return JsonResponse({"detail": detail}, status=429, headers={"Retry-After": str(seconds)})
