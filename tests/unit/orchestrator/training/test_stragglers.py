"""Groups that do not wait for all of their siblings."""

from __future__ import annotations

import asyncio

import pytest

from engine.orchestrator.training.stragglers import LATE, gather_siblings
from engine.types import Grade, TerminationReason, Trajectory, Verdict
from tests.builders.rollout_builders import make_key


def trajectory(index: int, *, lost: bool = False) -> Trajectory:
    grade = None if lost else Grade(verdict=Verdict.PASSED, reward=1.0)
    reason = TerminationReason.ENV_ERROR if lost else TerminationReason.SUBMITTED
    return Trajectory(key=make_key(index=index), steps=(), termination=reason, grade=grade)


async def ended(index: int, seconds: float, *, lost: bool = False) -> Trajectory:
    await asyncio.sleep(seconds)
    return trajectory(index, lost=lost)


async def test_enough_graded_siblings_set_a_deadline_and_lost_ones_do_not_count() -> None:
    reasons = []

    async def endless() -> Trajectory:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError as error:
            reasons.append(str(error))
            raise
        raise AssertionError

    tasks = [
        asyncio.create_task(ended(0, 0.0, lost=True)),
        asyncio.create_task(ended(1, 0.0)),
        asyncio.create_task(ended(2, 0.05)),
        asyncio.create_task(endless()),
    ]
    siblings = await gather_siblings(tasks, enough=2, seconds=0.01)
    assert [sibling.key.index for sibling in siblings] == [0, 1, 2]
    assert reasons == [LATE]


async def test_a_failing_sibling_cancels_the_others() -> None:
    async def failing() -> Trajectory:
        raise OSError("disk full")

    other = asyncio.create_task(ended(0, 3600))
    with pytest.raises(OSError, match="disk full"):
        await gather_siblings([asyncio.create_task(failing()), other], enough=None, seconds=0.0)
    assert other.cancelled()
