"""Batches of encoded episodes of similar length, produced in a separate process.

Parsing sources takes about a tenth of a core, so it must not stand between optimizer steps. A pool of
episodes is sorted by length and cut into batches, which then go out in random order: little padding,
little bias. Another order of batches belongs into ``batches``.
"""

from __future__ import annotations

import multiprocessing
import queue
import random
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from engine.config.run import SftRun
from engine.datasets.curation.statements import Hint
from engine.errors import TrainyardError
from engine.models.opening import read_chat
from engine.trainer.sft.data import HINTS, EncodedEpisode, EpisodeMaker, encode_episode, source_files

_POOL_BATCHES = 48
_QUEUED_BATCHES = 64
Batch = list[EncodedEpisode]


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


def batches(config: SftRun, chat_folder: Path) -> Iterator[Batch]:
    """Yield training batches endlessly, the same for the same settings and installed packages."""
    chat = read_chat(chat_folder)
    rng = random.Random(config.seed)
    size = config.sft.sequences_per_step
    maker = episode_maker(config, rng, max_edits=config.sft.max_edits)
    pool: list[EncodedEpisode] = []
    wanted = size  # the first pool is small so that training starts at once
    for episode in maker.stream(source_files("train", excluded=config.sft.excluded_packages)):
        encoded = encode_episode(episode, chat)
        if len(encoded.ids) > config.sft.max_tokens:
            continue
        pool.append(encoded)
        if len(pool) == wanted:
            pool.sort(key=lambda e: len(e.ids))
            cut = [pool[i : i + size] for i in range(0, len(pool), size)]
            rng.shuffle(cut)
            yield from cut
            pool, wanted = [], min(2 * wanted, size * _POOL_BATCHES)


class BatchStream:
    """``batches`` from a child process; a context manager.

    Raises:
        TrainyardError: from ``next`` when the child died.
    """

    def __init__(self, config: SftRun, chat_folder: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._queue: multiprocessing.Queue[Batch] = context.Queue(_QUEUED_BATCHES)
        self._process = context.Process(target=_produce, args=(config, chat_folder, self._queue), daemon=True)

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
        """Return the next batch; waits for it."""
        while True:
            try:
                return self._queue.get(timeout=5)
            except queue.Empty:
                if not self._process.is_alive():
                    raise TrainyardError("the process that makes warm-start episodes died") from None


def _produce(config: SftRun, chat_folder: Path, out: multiprocessing.Queue[Batch]) -> None:
    """Fill the queue until the parent is gone, which is polled because a killed parent sends no message."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    for batch in batches(config, chat_folder):
        while True:
            try:
                out.put(batch, timeout=1)
                break
            except queue.Full:
                if not parent.is_alive():
                    out.cancel_join_thread()
                    return
