"""Batches of encoded episodes of similar length, produced in a separate process.

Parsing sources takes about a tenth of a core, so it must not delay optimizer steps. A pool of
episodes is sorted by length and cut into batches, which are then shuffled: little padding,
little bias. To change the order of batches: ``batches``.
"""

from __future__ import annotations

import math
import multiprocessing
import queue
import random
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

from engine.config.run import SftRun
from engine.datasets.curation.statements import Hint
from engine.errors import TrainyardError
from engine.models.loader import read_chat
from engine.trainer.sft.data import HINTS, EncodedEpisode, EpisodeMaker, encode_episode, source_files

_POOL_BATCHES = 48
_QUEUED_BATCHES = 64
_TRIED = 100
"""Number of first episodes of which at least one must be short enough."""
Episodes = list[EncodedEpisode]
_Queue: TypeAlias = "multiprocessing.Queue[Episodes | TrainyardError]"


def episode_maker(
    config: SftRun, rng: random.Random, *, max_edits: int, hints: tuple[tuple[Hint, float], ...] = HINTS
) -> EpisodeMaker:
    """Return the generator of the episodes that a run is configured for."""
    return EpisodeMaker(
        rng,
        max_edits=max_edits,
        observation_chars=config.agent.observation_chars,
        hints=hints,
        kinds=config.sft.fault_kinds,
        max_function_lines=config.sft.max_function_lines,
    )


def batches(config: SftRun, chat_folder: Path, max_tokens: int) -> Iterator[Episodes]:
    """Yield training batches endlessly, the same for the same settings and installed packages.

    Args:
        config: the run.
        chat_folder: folder of the model's chat format.
        max_tokens: episodes with more tokens are left out.

    Raises:
        TrainyardError: the first 100 episodes are all longer.
    """
    chat = read_chat(chat_folder)
    rng = random.Random(config.seed)
    size = config.sft.sequences_per_step
    maker = episode_maker(config, rng, max_edits=config.sft.max_edits)
    pool: list[EncodedEpisode] = []
    pool_size = size  # the first pool is small so that training starts at once
    shortest = math.inf
    files = source_files("train", excluded=config.sft.excluded_packages)
    for number, episode in enumerate(maker.stream(files), 1):
        samples = encode_episode(episode, chat)
        shortest = min(shortest, *(len(sample.ids) for sample in samples))
        if number == _TRIED and shortest > max_tokens:
            raise TrainyardError(
                f"every episode is too long: of the first {_TRIED} the shortest has {shortest} tokens, but "
                f"the model's context or sft.max_tokens allows {max_tokens}"
            )
        pool += [sample for sample in samples if len(sample.ids) <= max_tokens]
        if len(pool) >= pool_size:
            pool.sort(key=lambda e: len(e.ids))
            chunks = [pool[i : i + size] for i in range(0, len(pool), size)]
            rng.shuffle(chunks)
            yield from chunks
            pool, pool_size = [], min(2 * pool_size, size * _POOL_BATCHES)


class BatchStream:
    """``batches`` from a child process; a context manager.

    Raises:
        TrainyardError: from ``next`` when no episode is short enough, or the child died.
    """

    def __init__(self, config: SftRun, chat_folder: Path, *, max_tokens: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._queue: _Queue = context.Queue(_QUEUED_BATCHES)
        self._process = context.Process(
            target=_produce, args=(config, chat_folder, max_tokens, self._queue), daemon=True
        )

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

    def next(self) -> Episodes:
        """Return the next batch; waits for it."""
        while True:
            try:
                item = self._queue.get(timeout=5)
            except queue.Empty:
                if not self._process.is_alive():
                    raise TrainyardError("the process that makes warm-start episodes died") from None
                continue
            if isinstance(item, TrainyardError):
                raise item
            return item


def _produce(config: SftRun, chat_folder: Path, max_tokens: int, out: _Queue) -> None:
    """Fill the queue until the parent has ended; it is polled, as a killed parent sends no message."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    for batch in _batches_or_error(config, chat_folder, max_tokens):
        while True:
            try:
                out.put(batch, timeout=1)
                break
            except queue.Full:
                if not parent.is_alive():
                    out.cancel_join_thread()
                    return


def _batches_or_error(
    config: SftRun, chat_folder: Path, max_tokens: int
) -> Iterator[Episodes | TrainyardError]:
    try:
        yield from batches(config, chat_folder, max_tokens)
    except TrainyardError as error:
        yield error
