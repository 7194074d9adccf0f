"""Progress of training by phase: current work, what follows, time left with evaluations."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from engine.config.run import TrainRun
from engine.events.types import RunProgress
from engine.orchestrator.context import RunContext
from engine.orchestrator.training.progress import TrainProgress

REPORT_EVERY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Work of a training run, from its configuration."""

    iterations: int
    rollouts: int
    """Rollouts of an iteration."""
    evaluated: int
    """Rollouts of the evaluations that are due at the same time."""
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
            every=settings.every,
        )

    def evaluations_after(self, done: int) -> int:
        """Return how often evaluations are due after ``done`` iterations and their evaluation."""
        left = range(done + 1, self.iterations + 1)
        return sum(n == self.iterations or (self.every is not None and n % self.every == 0) for n in left)


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
        async with self._phase(message, plan.rollouts, follows, later):
            yield

    @contextlib.asynccontextmanager
    async def update(self) -> AsyncIterator[None]:
        """Report the update of the current iteration."""
        number, plan = self._progress.iteration, self._plan
        evaluations = plan.evaluations_after(number)
        message = f"iteration {number + 1} of {plan.iterations}: update"
        later = self._later_rollouts(number + 1, evaluations)
        async with self._phase(message, 0, self._later(number + 1, evaluations), later):
            yield

    @contextlib.asynccontextmanager
    async def evaluation(self, name: str, samples: int, *, then: int) -> AsyncIterator[None]:
        """Report an evaluation after the finished iterations.

        Args:
            name: of the evaluation.
            samples: its rollouts.
            then: rollouts of the other evaluations that follow at once.
        """
        done = self._progress.iteration
        evaluations = self._plan.evaluations_after(done)
        another = ("another evaluation",) if then else ()
        later = then + self._later_rollouts(done, evaluations)
        message = (
            f"evaluation '{name}' after {done} iterations" if done else f"evaluation '{name}' before training"
        )
        async with self._phase(message, samples, (*another, *self._later(done, evaluations)), later):
            yield

    def _later(self, done: int, evaluations: int) -> tuple[str, ...]:
        iterations = self._plan.iterations - done
        counts = ((iterations, "iteration"), (evaluations, "evaluation"))
        return tuple(f"{count} {noun}{'s' * (count > 1)}" for count, noun in counts if count)

    def _later_rollouts(self, done: int, evaluations: int) -> int:
        return (self._plan.iterations - done) * self._plan.rollouts + evaluations * self._plan.evaluated

    @contextlib.asynccontextmanager
    async def _phase(
        self, message: str, total: int, follows: tuple[str, ...], later: int
    ) -> AsyncIterator[None]:
        """Report now and while the phase lasts.

        Args:
            message: what is done.
            total: rollouts of the phase.
            follows: what is done afterwards.
            later: rollouts of what is done afterwards.
        """
        counts = self._run.rollouts
        before = counts.finished
        self._began = self._began if self._began is not None else time.monotonic()
        reported: tuple[int, int, int] | None = None

        def report() -> None:
            nonlocal reported
            done = min(counts.finished - before, total)
            state = (done, counts.running, counts.live_steps)
            if state == reported:
                return
            reported = state
            activity = (
                f" ({counts.running} running, {counts.live_steps} steps)" if total and counts.running else ""
            )
            self._run.sink.emit(
                RunProgress,
                message=message + activity,
                done=done,
                total=total,
                follows=", ".join(follows),
                seconds_left=self._seconds_left(total - done + later),
            )

        async def repeat() -> None:
            while True:
                await asyncio.sleep(REPORT_EVERY_S)
                report()

        report()
        task = asyncio.create_task(repeat())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def _seconds_left(self, rollouts: int) -> float | None:
        """Return the time for so many rollouts at this attempt's rate, updates included; None if unknown."""
        finished = self._run.rollouts.finished
        if not finished or not rollouts or self._began is None:
            return None
        return rollouts * (time.monotonic() - self._began) / finished
