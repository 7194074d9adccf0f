"""Desired state of a running attempt (run, pause or stop), and its fencing by newer attempts.

Three sources are combined here: the heartbeat's answer (the web application), signals (the launcher,
a terminal) and fencing. Without an ingest URL only signals count: the engine runs standalone.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import Literal

import httpx
import structlog

from engine.errors import describe_error

Desired = Literal["run", "pause", "stop"]
HEARTBEAT_S = 2.0

log = structlog.get_logger("control")


class Control:
    """Desired state of this attempt; readable from any thread."""

    def __init__(self) -> None:
        self._desired: Desired = "run"
        self._stop_reason = ""
        self._fence_reason = ""
        self._failure: Callable[[], str] = str
        self._on_fence: Callable[[str], None] = lambda _: None

    def desired(self) -> Desired:
        """Return the desired state of the run; a stop is never revoked."""
        return "stop" if self._stop_reason else self._desired

    @property
    def stop_reason(self) -> str:
        """Return the reason of the stop, in a few words; empty while none was requested."""
        return self._stop_reason

    @property
    def fence_reason(self) -> str:
        """Return the reason why this attempt must end without further events; empty unless it is fenced."""
        return self._fence_reason

    @property
    def failure(self) -> str:
        """Return the reason why events can no longer be delivered; empty while they can."""
        return self._failure()

    def watch_failure(self, failure: Callable[[], str]) -> None:
        """Set the function that returns the shipper's failure, for ``failure``."""
        self._failure = failure

    def set_desired(self, desired: Desired) -> None:
        """Set the state last requested by the web application."""
        if desired == "stop":
            self.stop("a person stopped it")
        else:
            self._desired = desired

    def stop(self, reason: str) -> None:
        """Request an orderly end of the run as soon as possible."""
        self._stop_reason = self._stop_reason or reason

    def on_fence(self, callback: Callable[[str], None]) -> None:
        """Call ``callback`` with the reason when fenced, or now if that already happened."""
        self._on_fence = callback
        if self._fence_reason:
            callback(self._fence_reason)

    def fence(self, reason: str) -> None:
        """Record that a newer attempt exists: this one must end and write nothing more."""
        self._fence_reason = self._fence_reason or reason
        self._on_fence(self._fence_reason)

    def stop_on_signals(self) -> None:
        """Install handlers that turn SIGTERM and SIGINT into a stop request; call from the main thread."""

        def handle(number: int, _frame: FrameType | None) -> None:
            self.stop(f"received {signal.Signals(number).name}")

        signal.signal(signal.SIGTERM, handle)
        signal.signal(signal.SIGINT, handle)


class Heartbeat:
    """Daemon thread that reports this attempt as alive and receives the desired state.

    Args:
        control: receives the answers.
        url: the run's heartbeat endpoint.
        token: the run's bearer token.
        epoch: this attempt's number.
    """

    def __init__(self, control: Control, *, url: str, token: str, epoch: int) -> None:
        self._control = control
        self._url = url
        self._body = {"epoch": epoch, "pid": os.getpid(), "host": socket.gethostname()}
        self._client = httpx.Client(headers={"Authorization": f"Bearer {token}"}, timeout=5.0)
        self._stopped = threading.Event()
        self.last_seq: Callable[[], int] = lambda: 0
        """Function that returns the last ``seq`` of the spool, once there is one."""
        self._thread = threading.Thread(target=self._loop, name="heartbeat", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the heartbeat; safe to call twice."""
        self._stopped.set()
        self._thread.join()
        self._client.close()

    def _loop(self) -> None:
        while not self._stopped.is_set() and not self._control.fence_reason:
            try:
                self._beat()
            except (httpx.HTTPError, ValueError) as error:
                log.warning("heartbeat_failed", why=describe_error(error))
            self._stopped.wait(HEARTBEAT_S)

    def _beat(self) -> None:
        response = self._client.post(self._url, json={**self._body, "seq": self.last_seq()})
        if response.status_code not in (409, 410):
            response.raise_for_status()
        answer = response.json()
        if not isinstance(answer, dict):
            raise ValueError("the heartbeat's answer is not an object")
        if response.status_code == 409:
            self._control.fence(str(answer.get("detail") or "a newer attempt of this run exists"))
            return
        if response.status_code == 410:
            self._control.stop(str(answer.get("detail") or "the run has ended on the server"))
            return
        desired = answer.get("desired")
        if desired in ("run", "pause", "stop"):
            self._control.set_desired(desired)
