"""Scheduling of rollout groups under budgets: admitted and returned in order, all accounted for.

One rollout's failure never stops the others. Results do not depend on scheduling: every random
stream is seeded by the sampled item (``engine.rollout.seeds``). Cancelling ``collect`` closes every
environment and reports what had started as cancelled before it raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from engine.agent.prompts import Prompt, load_prompt
from engine.config.rollout import AgentConfig, RolloutConfig
from engine.environments.base import EnvironmentFactory
from engine.errors import ConfigError, ModelError
from engine.inference.base import Policy, SamplingParams, TokenPolicy
from engine.rollout.observer import GuardedObserver, ObserverFailedError, RolloutObserver
from engine.rollout.rollout import Rollout, RolloutParts
from engine.types import Group, RolloutKey, TaskRow, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRequest:
    """Request for a group of sibling rollouts of one task."""

    row: TaskRow
    iteration: int
    phase: str
    size: int


class RolloutScheduler:
    """Collects graded trajectories.

    Args:
        environments: the factory of environments.
        policy: produces the responses.
        agent: prompt, format and limits.
        rollout: how many trajectories may be in flight.
        seed: the run's seed.
        observer: receives the events of rollouts.
        sampling: temperature and nucleus; the token limit comes from ``agent``.

    Raises:
        ConfigError: there is no such prompt, or the policy's conversations cannot express it.
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
        )

    async def collect(self, requests: Sequence[GroupRequest]) -> list[Group]:
        """Roll out and grade every requested group, in the order of the requests.

        Raises:
            asyncio.CancelledError: after all environments were closed.
            Exception: raised by an observer; everything in flight was cancelled first.
        """
        members = [[self._start(request, index) for index in range(request.size)] for request in requests]
        await _all_or_cancelled([task for group in members for task in group])
        return [
            Group(
                iteration=request.iteration,
                phase=request.phase,
                task=request.row.task,
                trajectories=tuple(task.result() for task in group),
            )
            for request, group in zip(requests, members, strict=True)
        ]

    def _start(self, request: GroupRequest, index: int) -> asyncio.Task[Trajectory]:
        key = RolloutKey(
            iteration=request.iteration, phase=request.phase, task_id=request.row.task.id, index=index
        )
        return asyncio.create_task(Rollout(parts=self._parts, key=key, row=request.row).run())


async def _all_or_cancelled(tasks: Collection[asyncio.Task[Trajectory]]) -> None:
    """Wait for all tasks; if one raises or the caller is cancelled, cancel and await the rest first."""
    if not tasks:
        return
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    except asyncio.CancelledError:
        await _cancel(tasks)
        raise
    for error in filter(None, (task.exception() for task in done)):
        await _cancel(tasks)
        raise (error.__cause__ or error) if isinstance(error, ObserverFailedError) else error


async def _cancel(tasks: Collection[asyncio.Task[Trajectory]]) -> None:
    """Cancel each task exactly once: a second time would interrupt the closing of its environment."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # marks it as seen


def _check_conversation(policy: Policy, prompt: Prompt) -> None:
    """Raise ConfigError where no rollout could begin in the policy's conversations."""
    if not isinstance(policy, TokenPolicy):
        return
    system = [{"role": "system", "content": prompt.system}] if prompt.system else []
    try:
        policy.chat.open([*system, {"role": "user", "content": "x"}], prompt.declarations)
    except ModelError as error:
        raise ConfigError(
            f"the policy '{policy.name}' cannot begin with prompt {prompt.name}: {error}"
        ) from error
