"""FrozenLake rollouts through the scheduler and the agent loop."""

from __future__ import annotations

from typing import Any

from engine.config.rollout import RolloutConfig
from engine.rollout import GroupRequest, RolloutScheduler
from engine.rollout.environments import FrozenLakeEnvironments
from engine.types import Group, TaskRow, TerminationReason, Verdict
from tests.builders.rollout_builders import Recorder, TextPolicy
from tests.unit.environments.lake_builders import AGENT, row_of


async def roll(policy: TextPolicy, row: TaskRow, *, size: int = 1, **agent: Any) -> tuple[Group, Recorder]:
    recorder = Recorder()
    config = AGENT.model_copy(update={"max_context": 4096, "max_response": 64, **agent})
    scheduler = RolloutScheduler(
        environments=FrozenLakeEnvironments(agent=config),
        policy=policy,
        agent=config,
        rollout=RolloutConfig(),
        seed=7,
        observer=recorder,
    )
    (group,) = await scheduler.collect([GroupRequest(row=row, iteration=0, phase="train", size=size)])
    return group, recorder


def walker(*directions: str) -> TextPolicy:
    return TextPolicy([f"so move {direction}" for direction in directions])


async def test_reaching_the_goal_gives_reward_1() -> None:
    group, recorder = await roll(walker("down", "down", "right"), row_of(), size=2)
    for trajectory in group.trajectories:
        assert trajectory.termination is TerminationReason.SUBMITTED
        assert trajectory.grade is not None
        assert (trajectory.grade.verdict, trajectory.reward, trajectory.patch) == (Verdict.PASSED, 1.0, "")
        assert [step.thought for step in trajectory.steps] == ["so"] * 3
        assert [step.call and step.call.arguments["direction"] for step in trajectory.steps] == [
            "down", "down", "right",
        ]  # fmt: skip
        assert [step.done for step in trajectory.steps] == [False, False, True]
        events = ["started", "step 0", "step 1", "step 2", "finished"]
        assert recorder.of(trajectory.key) == events
    assert recorder.sandboxes == ["", ""]


async def test_falling_into_a_hole_gives_reward_0() -> None:
    group, _ = await roll(walker("right"), row_of())
    trajectory = group.trajectories[0]
    assert (trajectory.termination, trajectory.reward) == (TerminationReason.SUBMITTED, 0.0)
    assert trajectory.grade is not None
    assert trajectory.grade.verdict is Verdict.FAILED
    assert trajectory.steps[-1].observation == "_X_\n___\n_G_\nYou fell into a hole after 1 move."


async def test_siblings_slip_independently_and_reproducibly() -> None:
    lake = row_of("P_____\n" + "\n".join(["______"] * 4) + "\n_____G", slip_probability=0.5)
    policy = walker("right")
    first, _ = await roll(policy, lake, size=6)
    again, _ = await roll(policy, lake, size=6)
    seen = [[step.observation for step in trajectory.steps] for trajectory in first.trajectories]
    assert seen == [[step.observation for step in trajectory.steps] for trajectory in again.trajectories]
    assert len({str(path) for path in seen}) > 3
