"""Supervised fine-tuning on stored trajectories, with the trainer of reinforcement learning.

    run_started
    open the model ─▶ examples from the run folder's trajectories.jsonl ─▶ run_planned
    for each optimizer step of all epochs:
        safe point  (pause, stop)
        evaluation loss if due ─▶ optimizer step ─▶ iteration_finished ─▶ checkpoint if due
    run_finished

An iteration is one optimizer step. The order of the examples is a function of the run's seed, so a resumed
attempt makes the same steps.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from engine.config.run import FineTuneRun, JudgeTrainingRun
from engine.errors import TrainerError
from engine.events.stored_trajectories import TRAJECTORIES_FILE, read_trajectories
from engine.events.types import CheckpointSaved, IterationFinished, IterationStarted, RunPlanned
from engine.orchestrator.context import RunContext, RunResult, RunStopped
from engine.orchestrator.setup import announce, peak_memory_mb
from engine.trainer.async_trainer import AsyncTrainer
from engine.trainer.batch import IMITATION
from engine.trainer.checkpoints.checkpoint import Checkpoint, load_latest
from engine.trainer.checkpoints.writer import CheckpointWriter
from engine.trainer.factory import TrainingSetup
from engine.trainer.schedule import learning_rate
from engine.trainer.sft.examples import (
    Examples,
    epoch_ends,
    heldout_instances,
    make_examples,
    plan_steps,
    records_of,
)
from engine.trainer.sft.recorded import ConversationRenderer

_PROGRESS_EVERY_S = 2.0
ImitatingRun = FineTuneRun | JudgeTrainingRun
Summary = dict[str, float | int | str | None]


async def fine_tune(config: FineTuneRun, run: RunContext) -> RunResult:
    """Train on the run folder's trajectories, or resume from the run's last checkpoint."""
    return await imitate(config, run, lambda trainer: _examples(config, run, trainer))


async def imitate(
    config: ImitatingRun, run: RunContext, make: Callable[[AsyncTrainer], Examples]
) -> RunResult:
    """Train on examples, or resume from the run's last checkpoint.

    Args:
        config: the run's configuration.
        run: this attempt.
        make: returns the examples for the opened model, the same in every attempt; called in a thread.
    """
    started = time.monotonic()
    checkpoint = await asyncio.to_thread(load_latest, run.run_dir)
    announce(run, resumed_from=checkpoint.iteration if checkpoint else None)
    setup = TrainingSetup(
        checkpoint=config.trainer.start,
        trainer=config.trainer.trainer(1),  # each step is given its learning rate
        algorithm=IMITATION,
        max_context=config.trainer.max_tokens,
        longest=0,
        seed=config.seed,
        sampled_here=False,
    )
    trainer = await AsyncTrainer.open(
        setup, run_dir=run.run_dir, home=run.home, checkpoint=checkpoint, notice=run.notice()
    )
    loop = None
    try:
        examples = await run.interruptible(asyncio.to_thread(make, trainer))
        loop = FineTuningLoop(config, run, trainer, examples, checkpoint)
        await loop.run()
    except RunStopped as stop:
        return RunResult(state="stopped", reason=str(stop), summary=loop.summary if loop else {})
    finally:
        if loop is not None:
            await loop.close()
        await trainer.close()
    summary = {**loop.summary, "seconds": round(time.monotonic() - started, 1)}
    return RunResult(state="succeeded", summary=summary)


def _examples(config: FineTuneRun, run: RunContext, trainer: AsyncTrainer) -> Examples:
    path = run.run_dir / TRAJECTORIES_FILE
    instances = [trajectory.instance_id for trajectory in read_trajectories(path)]
    reported_at = 0.0

    def progress(done: int) -> None:
        nonlocal reported_at
        if time.monotonic() - reported_at > _PROGRESS_EVERY_S:
            reported_at = time.monotonic()
            run.check()
            run.progress("reading trajectories", done, len(instances))

    examples = make_examples(
        read_trajectories(path),
        trainer.chat,
        ConversationRenderer(trainer.chat, config.conversation),
        config.trainer,
        heldout=heldout_instances(instances, config.trainer.heldout_share, config.seed),
        max_tokens=min(config.trainer.max_tokens, trainer.model.max_context),
        progress=progress,
    )
    run.progress("", 0, 0)  # iterations show the progress from here on
    return examples


class FineTuningLoop:
    """Optimizer steps of one attempt.

    Args:
        config: the run's configuration.
        run: this attempt.
        trainer: at the checkpoint's state.
        examples: examples to imitate.
        checkpoint: the checkpoint that the attempt resumes from; None starts over.
    """

    def __init__(
        self,
        config: ImitatingRun,
        run: RunContext,
        trainer: AsyncTrainer,
        examples: Examples,
        checkpoint: Checkpoint | None,
    ) -> None:
        self._config, self._run, self._trainer, self._examples = config, run, trainer, examples
        self._steps = plan_steps(len(examples.train), config.trainer, config.seed)
        self._epoch_ends = epoch_ends(len(examples.train), config.trainer)
        self._schedule = config.trainer.trainer(len(self._steps))
        self._heldout = records_of(examples.heldout, range(len(examples.heldout)))
        self._writer = CheckpointWriter(run.run_dir, keep=config.trainer.keep_checkpoints)
        self._step = checkpoint.iteration if checkpoint else 0
        self._losses: dict[str, float] = checkpoint.cursor.get("losses", {}) if checkpoint else {}
        """Losses of the summary, over all attempts."""

    async def run(self) -> None:
        """Make all remaining steps. Raises RunStopped."""
        self._run.sink.emit(RunPlanned, total_iterations=len(self._steps))
        if self._examples.dropped:
            await asyncio.to_thread(self._warn)
        if not self._step:
            await self._evaluate_first()
        while self._step < len(self._steps):
            await self._run.safe_point()
            await self._train()
            self._announce(self._writer.finished())
            if self._is_due(self._config.trainer.checkpoint_every):
                await self._save()

    @property
    def summary(self) -> Summary:
        """Return the headline numbers so far."""
        return {
            **self._examples.counts,
            **self._losses,
            "steps": self._step,
            "peak_memory_mb": round(peak_memory_mb(), 1),
        }

    async def close(self) -> None:
        """Finish and announce the checkpoint being written."""
        self._announce(await asyncio.to_thread(self._writer.wait))
        await asyncio.to_thread(self._writer.close)

    async def _train(self) -> None:
        step = self._step
        chosen = self._steps[step]
        tasks = [self._examples.train[index].task_id for index in chosen]
        self._run.sink.emit(IterationStarted, iteration=step, policy_version=step, task_ids=tasks)
        records = records_of(self._examples.train, chosen)
        rate = learning_rate(self._schedule, step)
        metrics = await self._run.interruptible(self._trainer.imitate(records, rate=rate))
        self._step += 1
        if "loss/value" in metrics:
            self._losses["train_loss"] = metrics["loss/value"]
        if self._heldout and self._is_due(self._config.trainer.evaluate_every):
            metrics |= await self._evaluate()
        self._run.sink.emit(IterationFinished, iteration=step, policy_version=step + 1, metrics=metrics)

    async def _evaluate_first(self) -> None:
        if self._heldout:
            metrics = await self._evaluate()
            self._losses["heldout_loss_before"] = metrics["loss/heldout"]

    async def _evaluate(self) -> dict[str, float]:
        loss = await self._run.interruptible(self._trainer.cross_entropy(self._heldout))
        if not math.isfinite(loss):
            raise TrainerError(
                f"the evaluation loss is {loss} after {self._step} steps: lower trainer.learning_rate, or "
                "train the model in float32"
            )
        self._losses["heldout_loss"] = loss
        return {"loss/heldout": loss}

    def _is_due(self, every: int | None) -> bool:
        """Return whether an action of every ``every`` steps, or each epoch, is due; at the end all are."""
        if self._step == len(self._steps):
            return True
        return self._step in self._epoch_ends if every is None else self._step % every == 0

    async def _save(self) -> None:
        """Start a checkpoint; it is written while the next steps are computed."""
        self._announce(await asyncio.to_thread(self._writer.wait))
        snapshot = await self._trainer.snapshot(
            self._run.run_dir,
            self._step,
            cursor={"step": self._step, "losses": self._losses},
            provenance={
                "run": self._run.run_id,
                "recipe": self._config.recipe,
                "from": self._config.trainer.start,
                "steps": self._step,
            },
        )
        self._writer.save(snapshot)

    def _announce(self, saved: Checkpoint | None) -> None:
        if saved is not None:
            self._run.sink.emit(
                CheckpointSaved,
                iteration=saved.iteration,
                policy_version=saved.iteration,
                path=str(saved.path),
                checksum=saved.checksum,
            )

    def _warn(self) -> None:
        dropped = sorted(self._examples.dropped.items())
        counts = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in dropped)
        self._run.alert("warning", "trajectories_dropped", f"not trained on: {counts}")
