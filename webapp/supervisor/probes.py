"""Whether a server answers, asked again and again from a thread."""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass

import psycopg
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

TIMEOUT_S = 3
"""How long a server may take to answer one question."""
EVERY_S = 1.0
EVERY_DOWN_S = 0.2

Probe = Callable[[], str]
"""Returns why a server does not answer, without addresses' passwords; empty when it answers."""


def postgres_probe(url: str) -> Probe:
    """Return a probe that opens a connection to a PostgreSQL server."""

    def probe() -> str:
        try:
            psycopg.connect(url, connect_timeout=TIMEOUT_S).close()
        except psycopg.Error as error:
            return str(error).splitlines()[0] or type(error).__name__
        return ""

    return probe


def redis_probe(url: str) -> Probe:
    """Return a probe that sends PING to a Redis server."""

    def probe() -> str:
        # The client's own retries sleep for seconds; whoever waits asks again.
        client = redis.Redis.from_url(
            url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S, retry=Retry(NoBackoff(), 0)
        )
        try:
            client.ping()
        except redis.RedisError as error:
            return str(error) or type(error).__name__
        finally:
            client.close()
        return ""

    return probe


def web_probe(url: str) -> Probe:
    """Return a probe that asks the web server for ``/healthz``; any answer of its own counts."""

    def probe() -> str:
        try:
            with urllib.request.urlopen(f"{url}healthz", timeout=TIMEOUT_S):  # noqa: S310 (a loopback address)
                return ""
        except urllib.error.HTTPError:
            return ""
        except OSError as error:
            return str(error)

    return probe


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one probe."""

    asked_at: float
    """Monotonic seconds at which the probe began."""
    trouble: str
    """Why the server does not answer; empty when it does."""
    failures: int = 0
    """How many answers in a row were missing, this one included."""
    since: float = 0.0
    """Unix seconds since which the server answers, or does not."""

    @property
    def confirmed(self) -> bool:
        """Whether the server was asked twice without an answer: once may be a busy machine."""
        return self.failures > 1


class Watch:
    """Probe a server every second from a daemon thread.

    Args:
        probe: the question.
        every_s: pause between two questions while the server answers.
    """

    def __init__(self, probe: Probe, *, every_s: float = EVERY_S) -> None:
        self._probe = probe
        self._every_s = every_s
        self._wake = threading.Event()
        self._closed = False
        self.answer: Answer | None = None
        """The newest answer; None before the first one."""
        self._thread = threading.Thread(target=self._loop, name="watch", daemon=True)
        self._thread.start()

    def ask_now(self) -> None:
        """Cut the pause before the next question short."""
        self._wake.set()

    def close(self) -> None:
        """End the thread after the question it is asking; does not wait."""
        self._closed = True
        self._wake.set()

    def _loop(self) -> None:
        failures, since = -1, 0.0
        while not self._closed:
            asked_at, now = time.monotonic(), time.time()
            trouble = self._probe()
            if failures < 0 or bool(trouble) != bool(failures):
                since = now
            failures = max(failures, 0) + 1 if trouble else 0
            self.answer = Answer(asked_at, trouble, failures, since)
            self._wake.wait(EVERY_DOWN_S if trouble else self._every_s)
            self._wake.clear()
