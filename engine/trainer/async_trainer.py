"""Training outside of the event loop: one thread that owns a policy's weights and its trainer.

torch's gradient mode and number of threads are thread-local, so all training runs on one thread. Its kernels
release the GIL, so the event loop keeps running.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from engine.errors import TrainerError, TrainyardError, describe_error
from engine.inference.base import WeightConsumer
from engine.models.base import LanguageModel
from engine.models.chat.base import Chat
from engine.models.frozen import freeze_policy
from engine.models.loader import OpenedModel, copy_files, open_model, write_policy_files
from engine.models.precision import weight_type
from engine.models.weights.adapted import BASE
from engine.ray.placement import Notice, ignore
from engine.threads import in_thread
from engine.tokens import TokenRecord
from engine.trainer.checkpoints.checkpoint import Checkpoint, Snapshot, restore_training, take_snapshot
from engine.trainer.factory import TrainingSetup, open_trainer, training_device, trains_in_ranks
from engine.trainer.learner import Learner, UpdateResult
from engine.types import Group

POLICY_FILES = "policy-files"
"""Folder of a run with the original files of a published model: settings, tokenizer, chat template."""

T = TypeVar("T")


class AsyncTrainer:
    """A policy and its trainer on a separate thread; create it with ``open`` and close it after use."""

    model: LanguageModel
    """The policy; updates change its weights in place. Where ranks train it and vLLM samples it, this process
    has no weights."""
    chat: Chat
    """The policy's conversations in tokens."""
    _opened: OpenedModel
    _trainer: Learner

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="training")

    @classmethod
    async def open(
        cls,
        setup: TrainingSetup,
        *,
        run_dir: Path,
        home: Path,
        checkpoint: Checkpoint | None,
        notice: Notice = ignore,
    ) -> AsyncTrainer:
        """Open the run's policy and trainer at a checkpoint, or at their initial state.

        torch's random state becomes the checkpoint's, or the one of the run's seed.

        Args:
            setup: model and settings of the training.
            run_dir: the run's folder.
            home: the data folder, for checkpoint references.
            checkpoint: the checkpoint to resume from; None starts from the configured policy.
            notice: called, in the trainer's thread, while a cluster lacks free resources for the ranks.

        Raises:
            CheckpointError: a checkpoint is missing or of another model.
            TrainerError: a rank did not start.
            PreflightError: the Ray cluster of the ranks cannot be used.
        """
        trainer = cls()
        try:
            await trainer._call(partial(trainer._open, setup, run_dir, home, checkpoint, notice))
        except BaseException:
            trainer._thread.shutdown()
            raise
        return trainer

    async def update(self, groups: Sequence[Group], *, temperature: float) -> UpdateResult:
        """Run ``Trainer.update``. If cancelled, wait for the current microbatch and abandon the update.

        Raises:
            TrainerError: the update failed.
        """
        update = partial(self._trainer.update, groups, temperature=temperature)
        return await self._call(partial(self._typed, "the update", update), abandon=self._trainer.abandon)

    async def imitate(self, records: Sequence[TokenRecord], *, rate: float) -> dict[str, float]:
        """Run ``Learner.imitate``; cancelled as ``update`` is. Raises TrainerError."""
        step = partial(self._trainer.imitate, records, rate=rate)
        work = partial(self._typed, "the optimizer step", step)
        return await self._call(work, abandon=self._trainer.abandon)

    async def cross_entropy(self, records: Sequence[TokenRecord]) -> float:
        """Run ``Learner.cross_entropy``. Raises TrainerError."""
        scoring = partial(self._trainer.cross_entropy, records)
        return await self._call(partial(self._typed, "measuring the loss", scoring))

    async def send_weights(self, consumer: WeightConsumer) -> Any:
        """Run ``Learner.send_weights``; a cancelled call waits for its end.

        Raises:
            PublicationError: the consumer failed.
            TrainerError: a rank failed, or the last update was not completed.
        """
        sending = partial(self._trainer.send_weights, consumer)
        return await self._call(partial(self._typed, "sending the weights", sending))

    async def logprobs(self, ids: Sequence[int]) -> list[float]:
        """Return the log-probability of each token after the first, at temperature 1. Raises TrainerError."""
        scoring = partial(self._trainer.logprobs, ids)
        return await self._call(partial(self._typed, "scoring the probe", scoring))

    async def snapshot(
        self,
        run_dir: Path,
        iteration: int,
        *,
        cursor: Mapping[str, Any],
        provenance: Mapping[str, Any],
    ) -> Snapshot:
        """Run ``take_snapshot``. Raises TrainerError after an abandoned update."""
        take = partial(
            take_snapshot,
            run_dir,
            iteration,
            trainer=self._trainer,
            policy_files=partial(self._write_policy_files, provenance),
            cursor=cursor,
        )
        return await self._call(take)

    async def close(self) -> None:
        """Stop the trainer's ranks, if any, and the thread."""
        await self._call(self._trainer.close)
        self._thread.shutdown()

    async def _call(self, work: Callable[[], T], *, abandon: Callable[[], None] | None = None) -> T:
        """Run ``work`` in the thread and return its result; a cancelled call still waits for its end."""
        return await in_thread(work, executor=self._thread, on_cancel=abandon)

    # --- in the thread -----------------------------------------------------------------------------

    def _open(
        self,
        setup: TrainingSetup,
        run_dir: Path,
        home: Path,
        checkpoint: Checkpoint | None,
        notice: Notice,
    ) -> None:
        self._config = config = setup.trainer
        source = str(checkpoint.path) if checkpoint else setup.checkpoint
        if config.lora_rank:  # checkpoints have only the adapters
            source = str(freeze_policy(setup.checkpoint, run_dir / BASE, home=home))
        is_used = setup.sampled_here or not trains_in_ranks(config)
        opened = open_model(
            source, home=home, dtype=weight_type(config), max_context=setup.longest, read=is_used
        )
        self._opened = opened if config.lora_rank else copy_files(opened, run_dir / POLICY_FILES)
        self.model, self.chat = self._opened.model, self._opened.chat()
        if is_used:
            self.model.to(training_device(config))
        self._trainer = open_trainer(
            setup, self.model, policy=source, run_dir=run_dir, home=home, notice=notice
        )
        if checkpoint is None:
            torch.manual_seed(setup.seed)
            return
        try:
            restore_training(checkpoint, self._trainer)
        except BaseException:
            self._trainer.close()
            raise

    def _write_policy_files(self, provenance: Mapping[str, Any], folder: Path) -> None:
        write_policy_files(folder, opened=self._opened, provenance=provenance)
        if self._config.lora_rank:
            from engine.models.adapters import save_settings, target_names  # peft takes seconds to import

            save_settings(folder, self._config, target_names(self.model), str(self._opened.folder))

    @staticmethod
    def _typed(what: str, work: Callable[[], T]) -> T:
        try:
            return work()
        except TrainyardError:
            raise
        except Exception as error:
            raise TrainerError(f"{what} failed: {describe_error(error)}") from error
