"""Stores a run's events exactly once: one transaction holds the events, their projections, the cursor.

    body ─▶ token ─▶ parse every line ─▶ lock the run ─▶ fence? gap? ─▶ COPY ─▶ project ─▶ last_seq
                                                                            commit ─▶ notify

The run's row lock puts batches of one run in line; different runs do not wait for each other.
"""

from __future__ import annotations

import gzip
import hashlib
import hmac
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from django.db import DataError, transaction
from django.utils import timezone
from pydantic import ValidationError

from engine.errors import TrainyardError
from engine.events.types import EVENT_ADAPTER, AnyEvent
from webapp.models import Event, Run
from webapp.services import notifications
from webapp.services.cleaning import without_nul
from webapp.services.copying import copy_rows
from webapp.services.projections import Projection
from webapp.services.trajectory_rows import moment

MAX_BYTES = 64 * 1024 * 1024
"""Largest batch after decompression."""
_EVENT_COLUMNS = ("run_id", "seq", "epoch", "type", "time", "payload")
_SPOOL_BATCH = 1_000


class BadTokenError(TrainyardError):
    """No such run, or not its token."""


class TooLargeError(TrainyardError):
    """The batch exceeds ``MAX_BYTES``: send fewer events."""


class MalformedError(TrainyardError):
    """A line is not an event; nothing of the batch was stored."""

    def __init__(self, message: str, line: int) -> None:
        self.line = line
        super().__init__(f"line {line}: {message}")


class GapError(TrainyardError):
    """Events before this batch are missing."""

    def __init__(self, expected_seq: int) -> None:
        self.expected_seq = expected_seq
        super().__init__(f"event {expected_seq} must come next")


class StaleEpochError(TrainyardError):
    """A newer attempt of the run exists."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        super().__init__(f"attempt {epoch} of this run exists: an older one may not write any more")


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of a batch."""

    acked_seq: int
    accepted: int
    duplicates: int


class ParsedLine(NamedTuple):
    """One event and the JSON text it is stored as."""

    event: AnyEvent
    text: str


def authenticate(*, run_id: int, token: str) -> Run:
    """The run, if ``token`` is its ingest token. Raises BadTokenError."""
    run = Run.objects.filter(pk=run_id).defer("config", "summary").first()
    digest = hashlib.sha256(token.encode()).hexdigest()
    if run is None or not run.token_hash or not hmac.compare_digest(run.token_hash, digest):
        raise BadTokenError("this token does not belong to this run")
    return run


def ingest(*, run_id: int, token: str, body: bytes, encoding: str = "") -> Receipt:
    """Check and store one batch of NDJSON lines.

    Raises:
        BadTokenError, TooLargeError, MalformedError, GapError, StaleEpochError: nothing was stored.
    """
    run = authenticate(run_id=run_id, token=token)
    lines = parse_lines(_decode(body, encoding).split(b"\n"))
    if lines and lines[0].event.epoch < run.epoch:
        raise StaleEpochError(run.epoch)
    return store(run_id=run_id, lines=lines)


def ingest_spool(*, run_id: int, path: Path) -> Receipt:
    """Store what a spool file has beyond the server's cursor, e.g. after the engine died.

    The events are taken under the run's current epoch, as a new attempt would send them. A torn last
    line is left out. Raises MalformedError, GapError.
    """
    run = Run.objects.only("epoch", "last_seq").get(pk=run_id)
    accepted = 0
    with path.open("rb") as stream:
        fresh = (line for line in stream if line.endswith(b"\n") and _seq(line) > run.last_seq)
        while batch := list(islice(fresh, _SPOOL_BATCH)):
            lines = parse_lines(batch, epoch=run.epoch)
            accepted += store(run_id=run_id, lines=lines).accepted
    run.refresh_from_db(fields=["last_seq"])
    return Receipt(run.last_seq, accepted, 0)


def parse_lines(raw: Iterable[bytes], *, epoch: int | None = None) -> list[ParsedLine]:
    """Validate lines of one epoch (replaced by ``epoch``) with consecutive ``seq``. Raises MalformedError."""
    parsed: list[ParsedLine] = []
    for number, line in enumerate(raw, start=1):
        if not line.strip():
            continue
        try:
            parsed.append(_parse(line, epoch))
        except (ValueError, OverflowError) as error:
            raise MalformedError(_explain(error), number) from None
        first, last = parsed[0].event, parsed[-1].event
        if last.epoch != first.epoch:
            raise MalformedError("a batch must be of one epoch", number)
        if last.seq != first.seq + len(parsed) - 1:
            raise MalformedError(f"seq {last.seq} does not follow {last.seq - 1}", number)
    return parsed


@transaction.atomic
def store(*, run_id: int, lines: Sequence[ParsedLine]) -> Receipt:
    """Store parsed events and project them. Raises GapError, StaleEpochError, MalformedError."""
    run = Run.objects.select_for_update().get(pk=run_id)
    if not lines:
        return Receipt(run.last_seq, 0, 0)
    epoch = lines[0].event.epoch
    if epoch < run.epoch:
        raise StaleEpochError(run.epoch)
    if epoch > run.epoch:
        raise MalformedError(f"attempt {epoch} was never started", 1)
    if lines[0].event.seq > run.last_seq + 1:
        raise GapError(run.last_seq + 1)
    fresh = lines[run.last_seq + 1 - lines[0].event.seq :]
    if fresh:
        last_seq = fresh[-1].event.seq
        try:
            copy_rows(Event, _EVENT_COLUMNS, _event_rows(run_id, fresh))
            Projection(run).apply(line.event for line in fresh)
        except (DataError, ValueError, OverflowError) as error:
            raise MalformedError(f"a value in this batch cannot be stored: {error}", 1) from error
        Run.objects.filter(pk=run_id).update(last_seq=last_seq, heartbeat_at=timezone.now())
        notifications.run_changed(run_id, last_seq)
    return Receipt(lines[-1].event.seq if fresh else run.last_seq, len(fresh), len(lines) - len(fresh))


def _event_rows(run_id: int, lines: Sequence[ParsedLine]) -> Iterator[tuple[object, ...]]:
    for event, text in lines:
        yield (run_id, event.seq, event.epoch, event.type, moment(event.time), text)


def _parse(line: bytes, epoch: int | None) -> ParsedLine:
    if epoch is not None or any(mark in line for mark in _SUSPECT):
        record = json.loads(line, parse_constant=_refuse_constant)
        if isinstance(record, dict) and epoch is not None:
            record["epoch"] = epoch
        line = json.dumps(without_nul(record), ensure_ascii=False).encode()
    event = EVENT_ADAPTER.validate_json(line)
    moment(event.time)
    return ParsedLine(event, line.decode())


_SUSPECT = (b"\\u0000", b"NaN", b"Infinity")
"""What PostgreSQL's JSON and text cannot hold; lines with such bytes get a closer look."""


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _explain(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")
    return str(error)


def _seq(line: bytes) -> int:
    try:
        return int(json.loads(line)["seq"])
    except (ValueError, KeyError, TypeError) as error:
        raise MalformedError(f"not an event: {error}", 1) from None


def _decode(body: bytes, encoding: str) -> bytes:
    """The batch as sent, with gzip undone up to ``MAX_BYTES``."""
    if encoding.lower() == "gzip":
        try:
            with gzip.GzipFile(fileobj=BytesIO(body)) as stream:
                body = stream.read(MAX_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise MalformedError(f"not gzip: {error}", 1) from None
    elif encoding not in ("", "identity"):
        raise MalformedError(f"Content-Encoding '{encoding}' is not supported; use gzip", 1)
    if len(body) > MAX_BYTES:
        raise TooLargeError(f"a batch may have {MAX_BYTES} bytes; send fewer events")
    return body
