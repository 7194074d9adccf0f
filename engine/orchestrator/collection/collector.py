"""Collection of rollouts with only those in flight in memory; it can be resumed after any kill."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from engine.errors import RolloutsLostError
from engine.events.types import CollectionProgress, RunProgress
from engine.orchestrator.collection.first_rollouts import FirstRollouts
from engine.orchestrator.collection.ledger import Ledger
from engine.orchestrator.collection.rollout_lines import RecordedRollouts
from engine.orchestrator.context import REPORT_EVERY_S, RunContext, repeating
from engine.orchestrator.setup import why_lost
from engine.orchestrator.watch.machine import MachineLoad
from engine.orchestrator.watch.metrics import RolloutMetrics
from engine.orchestrator.watch.rollout_alarms import RolloutAlarms
from engine.rollout.scheduler import GroupRequest, RolloutRequest, RolloutScheduler
from engine.rollout.summary import RolloutSummary
from engine.types import Trajectory

RATE_WINDOW_S = 600.0
MIN_LOST_IN_A_ROW = 50
"""Minimum number of consecutive lost rollouts that ends a collection."""
MIN_TASKS_LOST = 3
"""Minimum number of tasks among these rollouts: one task may have a broken image."""


class Collector:
    """Collection of the rollouts of some tasks, over all attempts of a run.

    Args:
        run: this attempt.
        scheduler: scheduler of the rollouts.
        groups: rollouts to collect.
        ledger: finished rollouts, which are neither repeated nor reported again.
        infra_retries: number of times that rollouts lost to infrastructure are repeated.
        max_concurrent: as in the scheduler.
        recorded: steps of rollouts that were in flight; None restarts these rollouts.
        first: check of the first rollouts, if the ledger is empty; None checks nothing.
        message: name of the phase in progress reports.
        follows: names of the later phases, as text.
    """

    def __init__(
        self,
        run: RunContext,
        scheduler: RolloutScheduler,
        groups: Sequence[GroupRequest],
        ledger: Ledger,
        *,
        infra_retries: int,
        max_concurrent: int,
        recorded: RecordedRollouts | None = None,
        first: FirstRollouts | None = None,
        message: str = "rollouts",
        follows: str = "",
    ) -> None:
        self._run = run
        self._message, self._follows = message, follows
        self._scheduler = scheduler
        self._groups = groups
        self._ledger = ledger
        self._recorded = recorded
        self._first = None if ledger.count else first
        self._retries = infra_retries
        self._max_lost_in_a_row = max(MIN_LOST_IN_A_ROW, 2 * max_concurrent)
        self._instances = {group.row.task.id: group.row.task.instance_id for group in groups}
        self._total = sum(group.size for group in groups)
        self._lost_in_a_row: Counter[str] = Counter()
        """Task → rollouts lost since the last that was not lost."""
        self._last_loss = ""
        self._alarms = RolloutAlarms(run, iteration=groups[0].iteration, instances=self._instances)
        self._rate = _Rate()
        self._reported_at = 0.0
        self._reported: object = None
        """State of the rollouts in flight at the last report."""

    async def collect(self) -> RolloutMetrics:
        """Roll out the unfinished rollouts, then repeat lost ones; return the metrics of all.

        Raises:
            RunStopped, FencedError, DeliveryError: the attempt must end; rollouts in flight are cancelled.
            RolloutsLostError: infrastructure lost too many consecutive rollouts, or all.
            SpendLimitError: the policy's spend limit is reached.
            EarlyStopError: the first rollouts all failed in the same way.
        """
        self._report(force=True)
        async with repeating(self._report_changes):
            await self._roll_out(self._unfinished())
            while self._retries and self._ledger.lost:
                self._retries -= 1
                lost = frozenset(self._ledger.lost)
                await self._roll_out(request for request in self._requests() if request.key in lost)
        self._report(force=True)
        if self._ledger.lost and not self._ledger.metrics.count:
            raise RolloutsLostError(
                f"infrastructure lost all {self._total} rollouts of iteration {self._groups[0].iteration} "
                f"({self._groups[0].phase}), "
                f"the last one by: {self._last_loss}; resume the run to repeat them"
            )
        return self._ledger.close()

    @property
    def load(self) -> MachineLoad:
        """Return the load of the machine since the collection began."""
        return self._alarms.machine_load()

    def _report_changes(self) -> None:
        """Report changes of rollouts in flight too: with a slow model, no rollout ends for minutes."""
        if self._in_flight() != self._reported:
            self._report(force=True)

    def _in_flight(self) -> tuple[int, dict[str, Any]]:
        """Return the steps of rollouts in flight, and what the rollouts do; time alone changes neither."""
        counts, phase = self._run.rollouts, self._groups[0].phase
        in_flight = counts.in_flight(phase, left=self._total - self._ledger.count)
        return counts.live_steps(phase), {**in_flight, "tokens_per_s": None}

    def _requests(self) -> Iterator[RolloutRequest]:
        return (request for group in self._groups for request in group.rollouts())

    def _unfinished(self) -> Iterator[RolloutRequest]:
        """Yield the unfinished rollouts; those that were in flight continue from their recorded steps."""
        for request in self._requests():
            if not self._ledger.has(request.key):
                turns = self._recorded.turns(request.key) if self._recorded is not None else None
                yield replace(request, recorded=turns)

    async def _roll_out(self, requests: Iterator[RolloutRequest]) -> None:
        """Roll out all requests; a pause begins when the rollouts in flight have finished."""
        upcoming = next(requests, None)

        def admitted() -> Iterator[RolloutRequest]:
            nonlocal upcoming
            while upcoming is not None and self._run.control.desired() != "pause":
                request, upcoming = upcoming, next(requests, None)
                yield request

        while upcoming is not None:
            await self._run.safe_point()
            self._rate = _Rate()
            await self._run.interruptible(self._scheduler.run(admitted(), self._finished))

    def _finished(self, trajectory: Trajectory) -> None:
        rollout = RolloutSummary.of(trajectory)
        self._rate.count += 1
        self._ledger.add(rollout)
        if rollout.is_lost:
            self._last_loss = why_lost(trajectory)
            self._lost_in_a_row[rollout.key.task_id] += 1
        else:
            self._lost_in_a_row.clear()
        self._report()
        self._check_losses()
        if self._first is not None:
            self._first.add(trajectory)

    def _check_losses(self) -> None:
        """Raise RolloutsLostError after too many losses in a row, unless they are of one or two tasks."""
        count, tasks = self._lost_in_a_row.total(), len(self._lost_in_a_row)
        if count >= self._max_lost_in_a_row and tasks >= min(MIN_TASKS_LOST, len(self._instances)):
            raise RolloutsLostError(
                f"infrastructure lost the last {count} rollouts, the last one by: {self._last_loss}; "
                "resume the run to continue"
            )

    def _report(self, *, force: bool = False) -> None:
        now = time.monotonic()
        if not force and now - self._reported_at < REPORT_EVERY_S:
            return
        self._reported_at = now
        live_steps, in_flight = self._reported = self._in_flight()
        ledger, metrics = self._ledger, self._ledger.metrics
        per_second = self._rate.per_second(now)
        left = self._total - ledger.count + (len(ledger.lost) if self._retries else 0)
        state = CollectionProgress(
            graded=metrics.count,
            solved=sum(task.solved for task in metrics.tally.tasks.values()),
            endings=metrics.endings.counts,
            lost=len(ledger.lost),
            **in_flight,
            steps=metrics.steps + live_steps,
            prompt_tokens=metrics.prompt_tokens,
            generated_tokens=metrics.generated_tokens,
            per_hour=3600 * per_second if per_second else None,
            seconds_left=left / per_second if per_second else None,
            cost=ledger.cost,
        )
        self._run.sink.emit(
            RunProgress,
            message=self._message,
            done=ledger.count,
            total=self._total,
            follows=self._follows,
            seconds_left=None if self._follows else state.seconds_left,
            collection=state,
        )
        self._alarms.check(metrics, ledger.lost.values(), ended=left == 0)


class _Rate:
    """Rate of finished rollouts over the last ``RATE_WINDOW_S``."""

    def __init__(self) -> None:
        self.count = 0
        self._marks = deque([(time.monotonic(), 0)])

    def per_second(self, now: float) -> float:
        """Return rollouts per second; 0 until one has finished."""
        self._marks.append((now, self.count))
        while len(self._marks) > 2 and now - self._marks[1][0] > RATE_WINDOW_S:
            self._marks.popleft()
        since, count = self._marks[0]
        return (self.count - count) / (now - since) if now > since else 0.0
