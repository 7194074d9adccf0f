"""Progress of training by phase: current work, later work, and time left including evaluations."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from engine.config.run import TrainRun
from engine.events.types import CollectionProgress, RunProgress
from engine.orchestrator.context import RunContext, repeating
from engine.orchestrator.training.progress import TrainProgress
from engine.orchestrator.watch.event_observer import TRAIN_PHASE


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Work of a training run, from its configuration."""

    iterations: int
    rollouts: int
    """Rollouts of an iteration."""
    evaluated: int
    """Rollouts of the evaluations that are due at the same time."""
    is_sync: bool
    """Whether an iteration's rollouts are those that finish in its collection."""
    every: int | None
    """Interval between evaluations, iterations; None evaluates after the last iteration only."""

    @classmethod
    def of(cls, config: TrainRun) -> Plan:
        """Return the plan of a configuration."""
        settings = config.evaluation
        return cls(
            iterations=config.trainer.iterations,
            rollouts=config.trainer.tasks_per_iteration * config.rollout.group_size,
            evaluated=settings.samples + settings.train_samples,
            is_sync=config.schedule.mode == "sync",
            every=settings.every,
        )

    def evaluations_after(self, done: int) -> int:
        """Return the number of evaluations due later than the one after ``done`` iterations."""
        return sum(self.is_due(n, self.every) for n in range(done + 1, self.iterations + 1))

    def is_due(self, done: int, every: int | None) -> bool:
        """Return whether an action of every ``every`` iterations, and of the last, is due after ``done``."""
        return done == self.iterations or (every is not None and done % every == 0)


class TrainingPhases:
    """Reports of a training run's progress, at least every few seconds while something changes.

    Args:
        run: this attempt.
        plan: the work of the run.
        progress: counters of the run.
    """

    def __init__(self, run: RunContext, plan: Plan, progress: TrainProgress) -> None:
        self._run, self._plan, self._progress = run, plan, progress
        self._began: float | None = None

    @contextlib.asynccontextmanager
    async def rollouts(self) -> AsyncIterator[None]:
        """Report the collection of the current iteration."""
        number, plan = self._progress.iteration, self._plan
        message = f"iteration {number + 1} of {plan.iterations}: rollouts"
        evaluations = plan.evaluations_after(number)
        follows = ("update", *self._later(number + 1, evaluations))
        later = self._later_rollouts(number + 1, evaluations)
        # Other schedules collect all the time, for several iterations at once.
        total = plan.rollouts if plan.is_sync else 0
        async with self._phase(message, TRAIN_PHASE, total, follows, later + plan.rollouts - total):
            yield

    @contextlib.asynccontextmanager
    async def update(self) -> AsyncIterator[None]:
        """Report the update of the current iteration."""
        number, plan = self._progress.iteration, self._plan
        evaluations = plan.evaluations_after(number)
        message = f"iteration {number + 1} of {plan.iterations}: update"
        later = self._later_rollouts(number + 1, evaluations)
        async with self._phase(message, "", 0, self._later(number + 1, evaluations), later):
            yield

    @contextlib.asynccontextmanager
    async def evaluation(self, name: str, samples: int, *, kept: int, then: int) -> AsyncIterator[None]:
        """Report an evaluation after the finished iterations.

        Args:
            name: of the evaluation.
            samples: its rollouts.
            kept: those finished by earlier attempts.
            then: rollouts of the other evaluations that follow immediately.
        """
        done = self._progress.iteration
        evaluations = self._plan.evaluations_after(done)
        another = ("another evaluation",) if then else ()
        later = then + self._later_rollouts(done, evaluations)
        message = (
            f"evaluation '{name}' after {done} iterations" if done else f"evaluation '{name}' before training"
        )
        follows = (*another, *self._later(done, evaluations))
        async with self._phase(message, f"eval:{name}", samples, follows, later, kept=kept):
            yield

    def _later(self, done: int, evaluations: int) -> tuple[str, ...]:
        iterations = self._plan.iterations - done
        counts = ((iterations, "iteration"), (evaluations, "evaluation"))
        return tuple(f"{count} {noun}{'s' * (count > 1)}" for count, noun in counts if count)

    def _later_rollouts(self, done: int, evaluations: int) -> int:
        return (self._plan.iterations - done) * self._plan.rollouts + evaluations * self._plan.evaluated

    @contextlib.asynccontextmanager
    async def _phase(
        self, message: str, rollouts: str, total: int, follows: tuple[str, ...], later: int, *, kept: int = 0
    ) -> AsyncIterator[None]:
        """Report now, while the phase lasts and at its end.

        Args:
            message: text of the phase.
            rollouts: name of the phase in the rollouts' keys; '' without rollouts.
            total: their number; 0 counts none as done.
            follows: later phases.
            later: rollouts of later phases.
            kept: rollouts of the phase that are finished already.
        """
        counts = self._run.rollouts
        before = counts.of(rollouts)
        self._began = self._began if self._began is not None else time.monotonic()
        reported: tuple[int, CollectionProgress | None] | None = None

        def report(*, ended: bool = False) -> None:
            nonlocal reported
            since = counts.of(rollouts)
            since.subtract(before)
            done = total if ended else min(kept + since["finished"], total)
            state = None
            if rollouts:
                state = CollectionProgress(
                    graded=since["graded"],
                    solved=since["solved"],
                    lost=since["lost"],
                    steps=since["steps"],
                    generated_tokens=since["tokens"],
                    **counts.in_flight(rollouts, left=total - done),
                )
            if (done, state) == reported:
                return
            reported = (done, state)
            self._run.sink.emit(
                RunProgress,
                message=message,
                done=done,
                total=total,
                follows=", ".join(follows),
                seconds_left=self._seconds_left(total - done + later),
                collection=state,
            )

        report()
        async with repeating(report):
            yield
        report(ended=True)

    def _seconds_left(self, rollouts: int) -> float | None:
        """Return the time of the remaining rollouts at this attempt's rate, with updates; None if unknown."""
        finished = self._run.rollouts.num_finished
        if not finished or not rollouts or self._began is None:
            return None
        return rollouts * (time.monotonic() - self._began) / finished
