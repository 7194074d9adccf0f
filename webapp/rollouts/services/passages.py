"""Full-text index of finished trajectories, filled in the background.

Ingest does not index: it adds a ``Scan`` for each trajectory that ends, and sends a task. The task stores the
words of thoughts, actions, observations and patch as ``Passage`` rows. The texts are read whole, up to
limits that only hostile ones exceed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from django.db import InterfaceError, OperationalError, connection, transaction
from django.db.models.functions import Left

from webapp.core.services.locks import alone
from webapp.rollouts.models.passages import Passage
from webapp.rollouts.models.scans import Scan
from webapp.rollouts.models.trajectories import Step, Trajectory
from webapp.rollouts.selectors import scans as reads
from webapp.rollouts.selectors.passages import ACTION, OBSERVATION
from webapp.rollouts.selectors.query_words import words_of
from webapp.rollouts.services.scans import LOCK

BATCH = 50
"""Most trajectories of one task."""
TASK_S = 2.0
"""Time after which a task begins no further trajectory, seconds."""
PASSAGE_CHARS = 32_000
MOST_REPEATS = 250
"""Length of a passage, and how often it has a word. PostgreSQL keeps the first 256 positions of a word, none
above 16,383; phrases need them."""
SHARED_WORDS = 100
"""Words of a text that two consecutive passages share, so that a phrase is in one of them."""
MOST_TEXT_CHARS = 2_000_000
"""Largest text of a step that is read whole; more is not indexed."""
MOST_CHARS = 20_000_000
"""Characters of a trajectory after which no further step is indexed."""
_BETWEEN_STEPS = "endofstep"
"""Word between the texts of two steps, so that no phrase spans them."""

log = logging.getLogger(__name__)


Row = tuple[str, int, int | None, int | None, str]
"""Place, number, first and last step, and words of a passage."""


def index_pending() -> bool:
    """Index trajectories that have ended, the newest first, for a few seconds.

    Returns:
        Whether there may be more; False also if another process works on finished rollouts.
    """
    with alone(LOCK) as is_alone:
        ids = reads.next_unindexed(BATCH) if is_alone else []
        until = time.monotonic() + TASK_S
        for pk in ids:
            _index(pk)
            if time.monotonic() > until:
                break
    return bool(ids)


def _index(pk: int) -> None:
    row = Trajectory.objects.filter(pk=pk).values("epoch", "finished_at").first()
    if row is None:
        return
    try:
        passages = list(_passages(pk))
    except (OSError, OperationalError, InterfaceError):  # trouble of this machine: a later task tries again
        raise
    except Exception:  # models and sandboxes determine the texts: none may hold up the others
        log.exception("trajectory %d cannot be indexed", pk)
        passages = []
    same = {"trajectory__epoch": row["epoch"], "trajectory__finished_at": row["finished_at"]}
    with transaction.atomic():
        # A later attempt deletes the ``Scan`` before the passages: it waits for this lock.
        scans = Scan.objects.select_for_update(of=("self",)).filter(pk=pk, is_indexed=False, **same)
        if not scans:
            return
        with connection.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO webapp_passage (trajectory_id, place, number, first_step, last_step, words)"
                " VALUES (%s, %s, %s, %s, %s, to_tsvector('simple', %s))",
                [(pk, *passage) for passage in passages],
            )
        Scan.objects.filter(pk=pk).update(is_indexed=True)


def _passages(pk: int) -> Iterator[Row]:
    """Yield the passages of a trajectory."""
    place = Passage.Place
    drafts = [_Draft(name) for name in (place.THOUGHTS, place.ACTIONS, place.OBSERVATIONS, place.PATCHES)]
    steps = (
        Step.objects.filter(trajectory_id=pk)
        .order_by("index")
        .annotate(
            thought_text=Left("thought", MOST_TEXT_CHARS),
            action_text=Left(ACTION, MOST_TEXT_CHARS),
            observation_text=Left(OBSERVATION, MOST_TEXT_CHARS),
        )
        .values_list("index", "thought_text", "action_text", "observation_text")
    )
    chars = 0
    with transaction.atomic():  # of the cursor
        for index, *texts in steps.iterator(chunk_size=10):
            for draft, text in zip(drafts, texts, strict=False):
                yield from draft.add(index, text or "")
                chars += len(text or "")
            if chars > MOST_CHARS:
                log.warning("trajectory %d is indexed up to step %d: it is too long", pk, index)
                break
    patch = Trajectory.objects.filter(pk=pk).values_list(Left("patch", MOST_TEXT_CHARS), flat=True).get()
    yield from drafts[-1].add(None, patch)
    for draft in drafts:
        if draft.words:
            yield draft.take()


@dataclass(slots=True)
class _Draft:
    """Passages of one place under construction."""

    place: str
    number: int = 0
    words: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    chars: int = 0
    first: int | None = None
    last: int | None = None

    def add(self, step: int | None, text: str) -> Iterator[Row]:
        """Add a text; yield the passages that are complete."""
        words = words_of(text)
        if words and self.words:
            self._extend([_BETWEEN_STEPS], step)
        while words:
            is_first = not self.words
            fitting = self._extend(words, step)
            if fitting == len(words):
                return
            yield self.take()
            # An empty passage took at least one word: half of them are new in the next one.
            words = words[fitting - min(SHARED_WORDS, fitting // 2 if is_first else fitting) :]

    def _extend(self, words: Sequence[str], step: int | None) -> int:
        """Add words as far as the passage has room for them, at least one; return their number."""
        counts, chars, number = self.counts, self.chars, 0
        for word in words:
            repeats = counts.get(word, 0) + 1
            chars += len(word) + 1
            if (chars > PASSAGE_CHARS or repeats > MOST_REPEATS) and (number or self.words):
                break
            counts[word] = repeats
            number += 1
        self.first = step if not self.words else self.first
        self.last = step if number else self.last
        self.words += words[:number]
        self.chars = chars
        return number

    def take(self) -> Row:
        """Return the current passage and begin the next one."""
        row = (self.place, self.number, self.first, self.last, " ".join(self.words))
        self.number += 1
        self.words, self.counts, self.chars = [], {}, 0
        return row
