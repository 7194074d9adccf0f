"""Periodic probes of servers from daemon threads."""

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
"""Timeout of one probe, seconds."""
EVERY_S = 1.0
EVERY_DOWN_S = 0.2

Probe = Callable[[], str]
"""Function that returns the reason why a server does not answer, without passwords; empty if it answers."""


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
        # The client's own retries sleep for seconds; callers that wait probe again themselves.
        try:
            client = redis.Redis.from_url(
                url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S, retry=Retry(NoBackoff(), 0)
            )
        except ValueError as error:
            return str(error)
        try:
            client.ping()
        except redis.RedisError as error:
            return str(error) or type(error).__name__
        finally:
            client.close()
        return ""

    return probe


def web_probe(url: str) -> Probe:
    """Return a probe that requests ``/healthz`` from the web server; any response of the server counts."""

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
    """Result of one probe."""

    asked_at: float
    """Monotonic seconds at which the probe began."""
    trouble: str
    """Reason why the server does not answer; empty if it answers."""
    failures: int = 0
    """Number of consecutive failed probes, including this one."""
    since: float = 0.0
    """Unix seconds of the last change between answering and not answering."""

    @property
    def confirmed(self) -> bool:
        """Return whether two probes in a row failed; one failure may be due to a busy machine."""
        return self.failures > 1


class Watch:
    """Thread that probes a server periodically.

    Args:
        probe: function that asks the server.
        every_s: pause between two probes while the server answers.
    """

    def __init__(self, probe: Probe, *, every_s: float = EVERY_S) -> None:
        self._probe = probe
        self._every_s = every_s
        self._wake = threading.Event()
        self._closed = False
        self.answer: Answer | None = None
        """Newest answer; None before the first one."""
        self._thread = threading.Thread(target=self._loop, name="watch", daemon=True)
        self._thread.start()

    def ask_now(self) -> None:
        """Start the next probe immediately."""
        self._wake.set()

    def close(self) -> None:
        """End the thread after the current probe, without waiting for it."""
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
