"""Scheduling of rollouts under budgets: admitted in order, all reported, as a stream or in groups.

One rollout's failure never stops the others. Results do not depend on scheduling: every random
stream is seeded by the sampled item (``engine.rollout.seeds``). Only rollouts in flight are in memory.
Cancelling closes every environment and reports started rollouts as cancelled before it raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from engine.agent.prompts import Prompt, load_prompt
from engine.config.rollout import AgentConfig, RolloutConfig
from engine.environments.base import EnvironmentFactory
from engine.errors import ConfigError, ModelError
from engine.inference.base import Policy, SamplingParams, TokenPolicy
from engine.rollout.observer import GuardedObserver, ObserverFailedError, RolloutObserver
from engine.rollout.processes.remote import RemoteRollout
from engine.rollout.processes.workers import RolloutWorkers
from engine.rollout.recorded import RecordedTurns
from engine.rollout.rollout import Rollout, RolloutParts
from engine.types import Group, RolloutKey, TaskRow, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRequest:
    """Request for one rollout."""

    key: RolloutKey
    row: TaskRow
    recorded: RecordedTurns | None = None
    """Reads an earlier attempt's turns of the rollout; None: there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRequest:
    """Request for a group of sibling rollouts of one task."""

    row: TaskRow
    iteration: int
    phase: str
    size: int
    first: int = 0
    """Index of the first sibling; lower indices belong to other requests."""

    def rollouts(self) -> Iterator[RolloutRequest]:
        """Yield the request for each sibling."""
        for index in range(self.first, self.first + self.size):
            key = RolloutKey(
                iteration=self.iteration, phase=self.phase, task_id=self.row.task.id, index=index
            )
            yield RolloutRequest(key=key, row=self.row)


class RolloutScheduler:
    """Scheduler of rollouts that collects graded trajectories.

    Args:
        environments: the factory of environments.
        policy: produces the responses.
        agent: prompt, format and limits.
        rollout: limit of rollouts in flight.
        seed: the run's seed.
        observer: receives the events of rollouts.
        sampling: temperature and nucleus; the token limit comes from ``agent``.
        retry_temperatures: temperatures of further attempts at a rollout that ends without submission.
        workers: processes in which rollouts run; None runs them in this one.

    Raises:
        ConfigError: there is no such prompt, or the policy's chat format cannot express it.
    """

    def __init__(
        self,
        *,
        environments: EnvironmentFactory,
        policy: Policy,
        agent: AgentConfig,
        rollout: RolloutConfig,
        seed: int,
        observer: RolloutObserver,
        sampling: SamplingParams | None = None,
        retry_temperatures: tuple[float, ...] = (),
        workers: RolloutWorkers | None = None,
    ) -> None:
        prompt = load_prompt(agent.prompt, agent.tool_format, environments.tools)
        _check_conversation(policy, prompt)
        self._parts = RolloutParts(
            environments=environments,
            policy=policy,
            prompt=prompt,
            agent=agent,
            sampling=sampling or SamplingParams(),
            observer=GuardedObserver(observer),
            seed=seed,
            slots=asyncio.Semaphore(rollout.max_concurrent),
            retry_temperatures=retry_temperatures,
        )
        self._workers, self._parts_number = workers, -1
        if workers is not None:
            self._parts_number = workers.add_parts(self._parts)
        self._max_tasks = 2 * rollout.max_concurrent
        """Maximum number of rollouts in memory; half of them may wait for their grades."""
        self._room = asyncio.Semaphore(self._max_tasks)
        self._live: set[Rollout | RemoteRollout] = set()
        self._interruptions = 0
        """Number of times that all rollouts were interrupted."""

    async def run(self, requests: Iterable[RolloutRequest], finished: Callable[[Trajectory], None]) -> None:
        """Roll out and grade every request; keep no finished trajectory.

        Args:
            requests: consumed one by one, each as soon as there is room for its rollout.
            finished: called with each trajectory, after the observer has recorded it.

        Raises:
            asyncio.CancelledError: after all environments were closed.
            Exception: raised by an observer or ``finished``; everything in flight was cancelled first.
        """
        room = asyncio.Semaphore(self._max_tasks)

        async def roll_out(request: RolloutRequest) -> None:
            finished(await self._rollout(request).run())
            room.release()

        failures: Sequence[BaseException] = ()
        try:
            async with asyncio.TaskGroup() as tasks:
                for request in requests:
                    await room.acquire()
                    tasks.create_task(roll_out(request))
        except BaseExceptionGroup as group:
            failures = group.exceptions
        for error in failures:
            raise (error.__cause__ or error) if isinstance(error, ObserverFailedError) else error

    async def roll_out(self, request: RolloutRequest) -> Trajectory:
        """Roll out and grade one request as soon as there is room.

        Raises:
            asyncio.CancelledError: after its environment was closed and its end recorded.
            Exception: raised by the observer, or a ``RunEndingError``.
        """
        rollout, interruptions = self._rollout(request), self._interruptions
        try:
            async with self._room:
                if interruptions != self._interruptions:
                    rollout.restart()
                self._live.add(rollout)
                return await rollout.run()
        except ObserverFailedError as error:
            raise (error.__cause__ or error) from None
        finally:
            self._live.discard(rollout)

    def _rollout(self, request: RolloutRequest) -> Rollout | RemoteRollout:
        """Return a rollout that runs in this process, or in a worker."""
        if self._workers is None:
            return Rollout(parts=self._parts, key=request.key, row=request.row, recorded=request.recorded)
        return RemoteRollout(
            parts=self._parts,
            parts_number=self._parts_number,
            key=request.key,
            row=request.row,
            recorded=request.recorded,
            workers=self._workers,
        )

    async def wait_for_room(self) -> None:
        """Wait until a rollout could begin at once: every earlier request has a place, and one is free."""
        async with self._room, self._parts.slots:
            pass

    @contextmanager
    def restarted(self) -> Iterator[None]:
        """Interrupt all rollouts whose agents act; they begin anew after the body."""
        self._parts.gate.clear()
        self._interruptions += 1
        for rollout in self._live:
            rollout.restart()
        try:
            yield
        finally:
            self._parts.gate.set()

    async def collect(self, requests: Sequence[GroupRequest]) -> list[Group]:
        """Roll out and grade every requested group, in the order of the requests. Raises as ``run``."""
        trajectories: dict[RolloutKey, Trajectory] = {}

        def finished(trajectory: Trajectory) -> None:
            trajectories[trajectory.key] = trajectory

        await self.run((rollout for request in requests for rollout in request.rollouts()), finished)
        return [
            Group(
                iteration=request.iteration,
                phase=request.phase,
                task=request.row.task,
                trajectories=tuple(trajectories[rollout.key] for rollout in request.rollouts()),
            )
            for request in requests
        ]


def _check_conversation(policy: Policy, prompt: Prompt) -> None:
    """Raise ConfigError where the policy's chat format cannot express the prompt."""
    if not isinstance(policy, TokenPolicy):
        return
    system = [{"role": "system", "content": prompt.system}] if prompt.system else []
    try:
        policy.chat.open([*system, {"role": "user", "content": "x"}], prompt.declarations)
    except ModelError as error:
        raise ConfigError(
            f"the policy '{policy.name}' cannot begin with prompt {prompt.name}: {error}"
        ) from error
