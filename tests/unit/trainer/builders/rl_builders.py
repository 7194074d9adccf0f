"""Builders of finished trajectories and groups for tests of the objective, the trainer and evaluation."""

from __future__ import annotations

import random
from collections.abc import Sequence

from engine.tokens import TokenRecord
from engine.types import (
    Grade,
    Group,
    RolloutKey,
    Task,
    TerminationReason,
    Trajectory,
    Verdict,
)


def make_task(task_id: str = "t0") -> Task:
    return Task(
        id=task_id,
        instance_id=f"task-{task_id}",
        repo="r",
        base_commit="",
        problem_statement="p",
        image="local:x",
    )


def make_trajectory(
    reward: float | None,
    termination: TerminationReason = TerminationReason.SUBMITTED,
    *,
    index: int = 0,
    task_id: str = "t0",
    iteration: int = 0,
    tokens: TokenRecord | None = None,
) -> Trajectory:
    if reward is None:
        grade = Grade(verdict=Verdict.INFRA_ERROR, reward=None)
    else:
        grade = Grade(verdict=Verdict.PASSED if reward > 0 else Verdict.FAILED, reward=reward)
    return Trajectory(
        key=RolloutKey(iteration=iteration, phase="train", task_id=task_id, index=index),
        steps=(),
        termination=termination,
        grade=grade,
        tokens=TokenRecord() if tokens is None else tokens,
    )


def make_group(trajectories: Sequence[Trajectory], task_id: str = "t0") -> Group:
    return Group(iteration=0, phase="train", task=make_task(task_id), trajectories=tuple(trajectories))


def random_tokens(
    rng: random.Random, *, vocab: int, length: int, logprob: float | None = None
) -> TokenRecord:
    """Return a two-token prompt followed by turns of sampled tokens and observations."""
    ids = [rng.randrange(vocab) for _ in range(length)]
    mask = [0, 0] + [int(rng.random() < 0.6) for _ in range(length - 2)]
    mask[2] = 1
    logprobs = [(logprob if logprob is not None else -rng.uniform(0.5, 4.0)) * m for m in mask]
    return TokenRecord(ids=ids, mask=mask, logprobs=logprobs)
