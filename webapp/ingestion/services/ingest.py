"""Exactly-once storage of a run's events: one transaction for events, their projections and the cursor.

    body ─▶ token ─▶ parse every line ─▶ lock the run ─▶ over? fenced? gap? ─▶ COPY ─▶ project ─▶ last_seq
                                                                                  commit ─▶ notify

The run's row lock serialises the batches of one run; different runs do not wait for each other. A token
belongs to one attempt and is valid while that attempt is the run's newest and the run has not ended.
``Event`` rows are never changed, and rows projected from them are removed only by the start of a later
attempt.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from django.db import DataError, transaction
from django.utils import timezone
from pydantic import ValidationError

from engine import redaction
from engine.errors import TrainyardError
from engine.events import token_block
from engine.events.redaction import LogBudget, LogTooLargeError, redact_line
from engine.events.types import EVENT_ADAPTER, AnyEvent, StepFinished, TrajectoryFinished, TrajectoryTrained
from engine.reading import parse_json
from engine.redaction import Redactor
from webapp.core.services import notifications
from webapp.core.services.cleaning import without_nul
from webapp.core.services.copying import copy_rows
from webapp.ingestion.services.changes import changes_of
from webapp.ingestion.services.projections import Projection
from webapp.rollouts.services.rows import moment
from webapp.runs.models.events import Event
from webapp.runs.models.runs import Run, RunAttempt
from webapp.runs.services import states
from webapp.runs.services.attempts import token_hash

MAX_BYTES = 64 * 1024 * 1024
"""Largest batch after decompression."""
MAX_LINES = 50_000
"""Maximum number of lines in a batch."""
MAX_TOKENS = token_block.MAX_TOKENS
"""Maximum number of tokens in a batch; ``MAX_BYTES`` does not limit them, as blocks are compressed."""
_EVENT_COLUMNS = ("run_id", "seq", "epoch", "type", "time", "payload")
_SPOOL_BATCH = 1_000
_OF_RUN = ("run__state", "run__epoch", "run__last_seq", "run__desired")
"""Columns of the run that answers to engines need; those of the configuration are large."""


class BadTokenError(TrainyardError):
    """The run does not exist, or the token belongs to another run."""


class TooLargeError(TrainyardError):
    """The batch or its decompressed test logs exceed ``MAX_BYTES``, ``MAX_LINES`` or ``MAX_TOKENS``."""


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


class RunOverError(TrainyardError):
    """The run has ended or waits for its next attempt, and accepts no events."""

    def __init__(self, run: Run) -> None:
        self.state = run.state
        self.acked_seq = run.last_seq
        super().__init__(
            f"run {run.pk} is {run.state} and accepts no more events; the last one stored is {run.last_seq}"
        )


@dataclass(frozen=True, slots=True)
class Receipt:
    """Result of storing a batch."""

    acked_seq: int
    accepted: int
    duplicates: int


class ParsedLine(NamedTuple):
    """An event and its stored JSON text.

    The text excludes tokens, which have their own table, and responses, which only a replay reads.
    """

    event: AnyEvent
    text: str


def knows(*, run_id: int, token: str) -> bool:
    """Return whether an attempt of the run, past ones included, has the ingest token ``token``."""
    return RunAttempt.objects.filter(run_id=run_id, token_hash=token_hash(token)).exists()


def authenticate(*, run_id: int, token: str) -> Run:
    """Return the run whose newest attempt has the ingest token ``token``.

    Raises:
        BadTokenError: no attempt of the run has the token.
        StaleEpochError: an older attempt has the token.
        RunOverError: the run has ended.
    """
    attempts = RunAttempt.objects.filter(run_id=run_id, token_hash=token_hash(token)).select_related("run")
    attempt = attempts.only("epoch", *_OF_RUN).first()
    if attempt is None:
        raise BadTokenError("this token does not belong to this run")
    _check_open(attempt.run, attempt.epoch)
    return attempt.run


def _check_open(run: Run, epoch: int) -> None:
    if epoch < run.epoch:
        raise StaleEpochError(run.epoch)
    if run.state not in states.LIVE:
        raise RunOverError(run)


def ingest(*, run_id: int, token: str, body: bytes, encoding: str = "") -> Receipt:
    """Check and store one batch of NDJSON lines.

    Raises:
        BadTokenError, TooLargeError, MalformedError, GapError, StaleEpochError, RunOverError: nothing was
            stored.
    """
    run = authenticate(run_id=run_id, token=token)
    body = _decode(body, encoding)
    if body.count(b"\n", 0, -1) >= MAX_LINES:
        raise TooLargeError(f"a batch may have {MAX_LINES} lines; send fewer events")
    logs = LogBudget(MAX_BYTES)
    lines = parse_lines(body.split(b"\n"), secrets=(token,), max_tokens=MAX_TOKENS, logs=logs)
    return store(run_id=run_id, lines=lines, attempt=run.epoch)


def ingest_spool(*, run_id: int, path: Path) -> Receipt:
    """Store the events of a spool file after the server's last event, e.g. after the engine died.

    A run that was ended by the reconciler (e.g. for missing heartbeats) keeps its state while its events are
    completed. After a run's own ``run_finished`` no event is accepted. An incomplete last line is ignored.

    Raises MalformedError, GapError.
    """
    run = Run.objects.only("last_seq").get(pk=run_id)
    accepted = 0
    with path.open("rb") as stream:
        fresh = (line for line in stream if line.endswith(b"\n") and _seq(line) > run.last_seq)
        while batch := list(islice(fresh, _SPOOL_BATCH)):
            accepted += store(run_id=run_id, lines=parse_lines(batch)).accepted
    run.refresh_from_db(fields=["last_seq"])
    return Receipt(run.last_seq, accepted, 0)


def parse_lines(
    raw: Iterable[bytes],
    *,
    secrets: tuple[str, ...] = (),
    max_tokens: int | None = None,
    logs: LogBudget | None = None,
) -> list[ParsedLine]:
    """Parse and validate lines with consecutive ``seq``, with secrets redacted.

    Args:
        raw: lines of JSON.
        secrets: further secrets, unknown to this process's redactor.
        max_tokens: maximum number of tokens of all trajectories.
        logs: budget for the decompressed test logs of all trajectories; None: a separate budget for each log.

    Raises:
        MalformedError: a line is not an event, or does not follow the previous line.
        TooLargeError: the tokens or the logs exceed their limit.
    """
    redactor = _knowing(redaction.redactor(), secrets)
    parsed: list[ParsedLine] = []
    num_tokens = 0
    for number, line in enumerate(raw, start=1):
        if not line.strip():
            continue
        try:
            parsed.append(_parse(redact_line(line, redactor, logs=logs)))
        except (ValueError, OverflowError, RecursionError) as error:
            if logs is not None and isinstance(error, LogTooLargeError):
                raise TooLargeError(f"the test logs of the batch are too long: {error}") from None
            raise MalformedError(_explain(error), number) from None
        first, last = parsed[0].event, parsed[-1].event
        if last.seq != first.seq + len(parsed) - 1:
            raise MalformedError(f"seq {last.seq} does not follow {last.seq - 1}", number)
        num_tokens += _num_tokens(last)
        if max_tokens is not None and num_tokens > max_tokens:
            raise TooLargeError(f"a batch may have {max_tokens} tokens; send fewer events")
    return parsed


@transaction.atomic
def store(*, run_id: int, lines: Sequence[ParsedLine], attempt: int | None = None) -> Receipt:
    """Store parsed events and project them.

    Args:
        run_id: the run.
        lines: events with consecutive ``seq``.
        attempt: the sending attempt; None for a spool file that is read from disk.

    Raises:
        StaleEpochError, RunOverError: the attempt may not send any more.
        GapError, MalformedError: the events cannot follow the stored events.
    """
    run = Run.objects.select_for_update().get(pk=run_id)
    if attempt is not None:
        _check_open(run, attempt)
    if not lines:
        return Receipt(run.last_seq, 0, 0)
    if lines[0].event.seq > run.last_seq + 1:
        raise GapError(run.last_seq + 1)
    fresh = lines[run.last_seq + 1 - lines[0].event.seq :]
    if fresh:
        last_seq = fresh[-1].event.seq
        _check_order(run, fresh)
        try:
            copy_rows(Event, _EVENT_COLUMNS, _event_rows(run_id, fresh))
            Projection(run).apply(line.event for line in fresh)
        except (DataError, ValueError, OverflowError) as error:
            raise MalformedError(f"a value in this batch cannot be stored: {error}", 1) from error
        if run.state not in states.LIVE:
            states.close(run_id=run_id)
        Run.objects.filter(pk=run_id).update(last_seq=last_seq, heartbeat_at=timezone.now())
        changes = changes_of(run, (line.event for line in fresh))
        notifications.run_changed(run_id, last_seq, changes.message(after=run.last_seq))
    return Receipt(lines[-1].event.seq if fresh else run.last_seq, len(fresh), len(lines) - len(fresh))


def _check_order(run: Run, fresh: Sequence[ParsedLine]) -> None:
    """Check that each attempt was started by the server, begins with one start and ends with its end event.

    Raises MalformedError.
    """
    epoch, type_ = 0, ""
    if run.last_seq:
        epoch, type_ = Event.objects.values_list("epoch", "type").get(run=run, seq=run.last_seq)
    for number, (event, _) in enumerate(fresh, start=1):
        if event.epoch > run.epoch:
            raise MalformedError(f"attempt {event.epoch} was never started", number)
        if event.epoch < epoch:
            raise MalformedError(
                f"attempt {epoch} has written already, so attempt {event.epoch} is over", number
            )
        if event.epoch == epoch and event.type == "run_started":
            raise MalformedError(f"run_started must be the first event of attempt {epoch}", number)
        if event.epoch == epoch and type_ == "run_finished":
            raise MalformedError(f"attempt {epoch} has written run_finished: nothing may follow it", number)
        epoch, type_ = event.epoch, event.type


def _event_rows(run_id: int, lines: Sequence[ParsedLine]) -> Iterator[tuple[object, ...]]:
    for event, text in lines:
        yield (run_id, event.seq, event.epoch, event.type, moment(event.time), text)


@lru_cache(maxsize=64)
def _knowing(redactor: Redactor, secrets: tuple[str, ...]) -> Redactor:
    return redactor.with_secrets(*secrets)


def _parse(line: bytes) -> ParsedLine:
    if _is_suspect(line):
        record = json.loads(line, parse_constant=_refuse, parse_float=_finite, parse_int=_finite_integer)
        line = json.dumps(without_nul(record), ensure_ascii=False).encode()
    event = EVENT_ADAPTER.validate_json(line)
    if _num_tokens(event) or (isinstance(event, StepFinished) and event.sampled is not None):
        return ParsedLine(event, event.model_dump_json(exclude={"tokens", "sampled"}))
    return ParsedLine(event, line.decode())


def _num_tokens(event: AnyEvent) -> int:
    if isinstance(event, TrajectoryFinished | TrajectoryTrained) and event.tokens is not None:
        return event.tokens.length
    return 0


_SHAPES = bytes.maketrans(b"123456789E", b"000000000e")


def _is_suspect(line: bytes) -> bool:
    """Return whether a line may have a value that PostgreSQL's JSON refuses; it is parsed and cleaned."""
    # Written out, because a generator takes longer than the searches.
    if b"\\u0000" in line or b"NaN" in line or b"Infinity" in line:
        return True
    # Numbers that may exceed the range of a float, with all digits 0: a search of the translated line takes
    # a seventh of that for a pattern, which begins at every digit.
    shape = line.translate(_SHAPES)
    return b"0e000" in shape or b"0e+000" in shape or b"0" * 300 in shape


def _refuse(number: str) -> Any:
    raise ValueError(f"{number[:20]} is no number that can be stored")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)


def _finite_integer(text: str) -> int:
    return int(text) if len(text) < 300 else _refuse(text)


def _explain(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")
    return str(error)


def _seq(line: bytes) -> int:
    try:
        return int(parse_json(line)["seq"])
    except (ValueError, KeyError, TypeError) as error:
        raise MalformedError(f"not an event: {error}", 1) from None


def _decode(body: bytes, encoding: str) -> bytes:
    """Return the body of a batch, decompressed up to ``MAX_BYTES``."""
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
