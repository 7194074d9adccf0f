"""Batches of encoded episodes of similar length, made in a process of their own.

Parsing sources takes about a tenth of a core, so it must not stand between optimizer steps. A pool of
episodes is sorted by length and cut into batches, which then go out in random order: little padding,
little bias. Another order of batches belongs into ``batches``.
"""

from __future__ import annotations

import multiprocessing
import queue
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from engine.errors import TrainyardError
from engine.inference.tokenizer import load_tokenizer
from engine.trainer.sft_data import EncodedEpisode, EpisodeMaker, encode_episode, source_files

_POOL_BATCHES = 48
_QUEUED_BATCHES = 64
Batch = list[EncodedEpisode]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """What a stream of batches consists of."""

    tokenizer: Path
    """Folder with tokenizer.json."""
    excluded: tuple[str, ...]
    seed: int
    batch: int
    """Episodes per batch."""
    max_tokens: int
    """Longer episodes are skipped."""
    max_edits: int
    observation_chars: int


def batches(settings: StreamSettings) -> Iterator[Batch]:
    """Training batches without end, the same for the same settings and installed packages."""
    tokenizer = load_tokenizer(settings.tokenizer)
    rng = random.Random(settings.seed)
    maker = EpisodeMaker(rng, max_edits=settings.max_edits, observation_chars=settings.observation_chars)
    pool: list[EncodedEpisode] = []
    wanted = settings.batch  # the first pool is small so that training starts at once
    for episode in maker.stream(source_files("train", excluded=settings.excluded)):
        encoded = encode_episode(episode, tokenizer)
        if len(encoded.ids) > settings.max_tokens:
            continue
        pool.append(encoded)
        if len(pool) == wanted:
            pool.sort(key=lambda e: len(e.ids))
            cut = [pool[i : i + settings.batch] for i in range(0, len(pool), settings.batch)]
            rng.shuffle(cut)
            yield from cut
            pool, wanted = [], min(2 * wanted, settings.batch * _POOL_BATCHES)


class BatchStream:
    """``batches`` from a child process; a context manager.

    Raises:
        TrainyardError: from ``next`` when the child died.
    """

    def __init__(self, settings: StreamSettings) -> None:
        context = multiprocessing.get_context("spawn")
        self._queue: multiprocessing.Queue[Batch] = context.Queue(_QUEUED_BATCHES)
        self._process = context.Process(target=_produce, args=(settings, self._queue), daemon=True)

    def __enter__(self) -> BatchStream:
        self._process.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.join()
        self._queue.close()
        self._queue.cancel_join_thread()

    def next(self) -> Batch:
        """The next batch; waits for it."""
        while True:
            try:
                return self._queue.get(timeout=5)
            except queue.Empty:
                if not self._process.is_alive():
                    raise TrainyardError("the process that makes warm-start episodes died") from None


def _produce(settings: StreamSettings, out: multiprocessing.Queue[Batch]) -> None:
    for batch in batches(settings):
        out.put(batch)
