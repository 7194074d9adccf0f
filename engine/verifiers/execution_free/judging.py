"""Scoring of many trajectories: several at once, failures retried, every result under its own key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from engine.errors import ModelError, ScoreError
from engine.threads import in_thread
from engine.verifiers.execution_free.answers import Score
from engine.verifiers.execution_free.transcripts import Transcript

Key = TypeVar("Key", bound=Hashable)


class Judge(Protocol):
    """Model that scores transcripts."""

    async def score(self, transcript: Transcript, *, attempt: int = 0) -> Score:
        """Score one transcript.

        Args:
            transcript: transcript, shortened if it does not fit.
            attempt: number of earlier attempts at it.

        Raises:
            ScoreError, ModelError: there is no score.
            RunEndingError: no other transcript would get one either.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement(Generic[Key]):
    """Result of judging one trajectory: a score or an error."""

    key: Key
    score: Score | None
    error: str
    """Reason of the last failure; empty with a score."""
    attempts: int


async def judge_all(
    judge: Judge, transcripts: Iterable[tuple[Key, Transcript]], *, parallel: int = 4, max_attempts: int = 3
) -> AsyncIterator[Judgement[Key]]:
    """Yield the judgement of every transcript as soon as it is complete.

    Args:
        judge: scores one transcript at a time.
        transcripts: transcripts with the keys of their judgements; read in a thread, as needed.
        parallel: maximum number of transcripts judged at once.
        max_attempts: attempts at a transcript that gets no score.

    Raises:
        RunEndingError: no further transcript would get a score; those in flight are cancelled.
    """
    rest = iter(transcripts)
    active: set[asyncio.Task[Judgement[Key]]] = set()
    try:
        while True:
            while len(active) < parallel and (item := await in_thread(lambda: next(rest, None))) is not None:
                active.add(asyncio.create_task(judge_one(judge, *item, max_attempts=max_attempts)))
            if not active:
                return
            done, _ = await asyncio.wait(active, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=lambda task: task.exception() is not None):  # results before errors
                yield task.result()
            active -= done
    finally:
        for task in active:
            task.cancel()
        await asyncio.gather(*active, return_exceptions=True)


async def judge_one(judge: Judge, key: Key, transcript: Transcript, *, max_attempts: int) -> Judgement[Key]:
    """Judge one transcript, with retries. Raises RunEndingError."""
    for attempt in range(max_attempts):
        try:
            score = await judge.score(transcript, attempt=attempt)
        except (ScoreError, ModelError) as error:
            reason = str(error) or type(error).__name__
            if isinstance(error, ScoreError) and not error.retry:
                break
        else:
            return Judgement(key=key, score=score, error="", attempts=attempt + 1)
    return Judgement(key=key, score=None, error=reason, attempts=attempt + 1)
