"""Ships the spool to the ingest API: a daemon thread, exactly once and in order.

The server stores an event once per ``seq``, so shipping is at-least-once with a cursor:

    spool ──(durable lines behind the cursor)──▶ POST …/events ──▶ acked_seq ──▶ cursor (events.acked)

* connection errors, 5xx, 429: wait (exponential, jittered, ``Retry-After``) and send again;
* 409 with ``expected_seq``: the cursor moves to that event, backwards or forwards;
* 409 with ``epoch``: a newer attempt exists, ``fenced`` is set and nothing more is sent;
* 410: the run has ended on the server; handled like the previous case unless the whole batch is stored;
* anything else (400, 401, 403, 422, one event too large): the events can never be delivered in
  order, so ``failure`` has the reason and the run must fail: no event may be lost silently.

Unshipped events of an earlier attempt are sent as that attempt wrote them, with this attempt's token.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import httpx
import structlog

from engine.errors import TrainyardError, describe_error
from engine.events.delivery.spool import SpoolLine, SpoolSink, read_lines
from engine.files import atomic_write

CURSOR_NAME = "events.acked"
MAX_EVENTS = 2_000
MAX_BYTES = 4 << 20
"""Largest batch. Per event, the server takes a quarter less processor time for 2,000 events than for 500."""
POLL_S = 0.2
_GZIP_FROM_BYTES = 4096
_PREFIX = re.compile(rb'\{"seq":(\d+),"epoch":\d+,')
_BACKOFF_FIRST_S = 0.2
_BACKOFF_MAX_S = 10.0
_RETRIED = frozenset({404, 408, 425, 429})
"""Client errors that are retried: a proxy without its server answers 404."""

Durable: TypeAlias = Callable[[int, float], int]
"""Waits up to a timeout (s) until lines beyond an offset are safe to ship; returns their end."""

log = structlog.get_logger("shipper")


@dataclass(frozen=True, slots=True)
class Cursor:
    """Position up to which events are on the server: event ``seq``, which ends at byte ``offset``."""

    seq: int = 0
    offset: int = 0


class Shipper:
    """Daemon thread that tails a run's spool and posts its events.

    Args:
        sink: the spool this process writes.
        url: the run's events endpoint.
        token: the run's bearer token.
        on_fenced: called once, from the shipper's thread, with the server's message.
        durable: returns the offset up to which lines are safe to ship, as ``sink.wait_durable``, the default.
    """

    def __init__(
        self,
        sink: SpoolSink,
        *,
        url: str,
        token: str,
        on_fenced: Callable[[str], None],
        durable: Durable | None = None,
    ) -> None:
        self._sink = sink
        self._url = url
        self._on_fenced = on_fenced
        self._durable = durable or sink.wait_durable
        self._cursor_path = sink.path.with_name(CURSOR_NAME)
        self._cursor = load_cursor(self._cursor_path, sink.path)
        self._client = httpx.Client(
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/x-ndjson"},
            timeout=httpx.Timeout(30.0, connect=5.0),
        )
        self._batch_events = MAX_EVENTS
        self._backoff_s = _BACKOFF_FIRST_S
        self._jitter = random.Random()  # not the global one, which is part of a training run's state
        self._stopped = threading.Event()
        self.fenced = False
        self.failure = ""
        """Reason why the server will never accept the next event; empty otherwise."""
        self._thread = threading.Thread(target=self._loop, name="shipper", daemon=True)
        self._thread.start()

    @property
    def acked_seq(self) -> int:
        """Return the ``seq`` of the last event that the server confirmed."""
        return self._cursor.seq

    def drain(self, timeout_s: float) -> bool:
        """Wait until every event is on the server; return False on timeout or failure of the server."""
        self._sink.sync()
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self._thread.is_alive():
            if self._cursor.seq >= self._sink.last_seq:
                return True
            time.sleep(0.02)
        return self._cursor.seq >= self._sink.last_seq

    def close(self) -> None:
        """Stop the thread after the request in flight; safe to call twice."""
        self._stopped.set()
        self._thread.join()
        self._client.close()

    def _loop(self) -> None:
        while not self._stopped.is_set() and not self.failure and not self.fenced:
            durable = self._durable(self._cursor.offset, POLL_S)
            if durable <= self._cursor.offset:
                continue
            try:
                self._ship(self._next_batch(durable))
            except Exception as error:
                log.exception("shipper_failed")
                self._fail(f"shipping events failed: {error}")

    def _next_batch(self, durable: int) -> list[SpoolLine]:
        batch: list[SpoolLine] = []
        size = 0
        for line in read_lines(self._sink.path, self._cursor.offset, durable):
            size += len(line.data) + 1
            follows = not batch or _seq(line.data) == _seq(batch[-1].data) + 1  # a lost node leaves a gap
            if batch and (size > MAX_BYTES or len(batch) >= self._batch_events or not follows):
                break
            batch.append(line)
        return batch

    def _ship(self, batch: list[SpoolLine]) -> None:
        body = b"".join(line.data + b"\n" for line in batch)
        headers = {}
        if len(body) > _GZIP_FROM_BYTES:
            body = gzip.compress(body, compresslevel=1)
            headers["Content-Encoding"] = "gzip"
        try:
            response = self._client.post(self._url, content=body, headers=headers)
        except httpx.TransportError as error:
            self._wait(None, describe_error(error))
            return
        self._handle(response, batch)

    def _handle(self, response: httpx.Response, batch: list[SpoolLine]) -> None:
        status = response.status_code
        answer = _json_object(response)
        acked, expected = answer.get("acked_seq"), answer.get("expected_seq")
        if status == 200 and isinstance(acked, int):
            self._advance(acked, batch)
        elif status == 409 and isinstance(expected, int):
            self._move_to(expected)
        elif status == 410 and isinstance(acked, int) and acked >= _seq(batch[-1].data):
            self._advance(acked, batch)
        elif status == 410 or (status == 409 and "epoch" in answer):
            self.fenced = True
            self._on_fenced(str(answer.get("detail") or "the server has ended this attempt"))
        elif status == 413 and len(batch) > 1:
            self._batch_events = max(1, len(batch) // 2)
        elif status in _RETRIED or status >= 500 or 200 <= status < 400:
            self._wait(response.headers.get("Retry-After"), f"HTTP {status}")
        else:
            detail = str(answer.get("detail") or response.text[:200])
            first = _seq(batch[0].data)
            self._fail(f"the server refuses event {first} and all later ones (HTTP {status}): {detail}")

    def _advance(self, acked: int, batch: list[SpoolLine]) -> None:
        self._backoff_s = _BACKOFF_FIRST_S
        self._batch_events = min(MAX_EVENTS, 2 * self._batch_events)
        if acked >= _seq(batch[-1].data):
            self._save(Cursor(_seq(batch[-1].data), batch[-1].end))
            return
        for line in batch:
            if _seq(line.data) == acked:
                self._save(Cursor(acked, line.end))
                return
        self._move_to(acked + 1)

    def _move_to(self, expected: int) -> None:
        """Move the cursor to just before event ``expected``."""
        previous, following = Cursor(), 0
        for line in read_lines(self._sink.path):
            seq = _seq(line.data)
            if seq >= expected:
                following = seq
                break
            previous = Cursor(seq, line.end)
        if following != expected and previous.seq != expected - 1:
            self._fail(f"the server expects event {expected}, but this run's spool ends at {previous.seq}")
            return
        moved = previous != self._cursor
        self._save(previous)
        if not moved:
            self._wait(None, f"the server asks again for event {expected}")

    def _save(self, cursor: Cursor) -> None:
        self._cursor = cursor
        atomic_write(self._cursor_path, json.dumps({"seq": cursor.seq, "offset": cursor.offset}))

    def _wait(self, retry_after: str | None, why: str) -> None:
        seconds = self._backoff_s * self._jitter.uniform(0.5, 1.0)
        if retry_after and retry_after.isdigit():
            seconds = max(seconds, min(float(retry_after), 60.0))
        log.warning("ship_retry", why=why, seconds=round(seconds, 2), acked_seq=self._cursor.seq)
        self._backoff_s = min(self._backoff_s * 2, _BACKOFF_MAX_S)
        self._stopped.wait(seconds)

    def _fail(self, reason: str) -> None:
        log.error("ship_rejected", reason=reason, acked_seq=self._cursor.seq)
        self.failure = reason


def load_cursor(path: Path, spool: Path) -> Cursor:
    """Return the saved cursor, or the start of the spool when it is missing or does not fit the spool."""
    try:
        data = json.loads(path.read_text())
        cursor = Cursor(int(data["seq"]), int(data["offset"]))
        with spool.open("rb") as stream:
            stream.seek(max(cursor.offset - 1, 0))
            fits = cursor.offset == 0 or stream.read(1) == b"\n"
    except (OSError, ValueError, KeyError, TypeError):
        return Cursor()
    return cursor if fits else Cursor()


def _seq(data: bytes) -> int:
    """Parse ``seq`` from the start of a line; parsing whole lines would cost as much as writing them."""
    match = _PREFIX.match(data)
    if match is None:
        raise TrainyardError(f"not an event written by the engine: {data[:80]!r}")
    return int(match.group(1))


def _json_object(response: httpx.Response) -> dict[str, object]:
    try:
        answer = response.json()
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
