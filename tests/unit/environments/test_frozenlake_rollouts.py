"""FrozenLake through the scheduler and the agent loop, as every other environment."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config.rollout import RolloutConfig
from engine.environments.frozenlake_maps import DIRECTIONS, goal_distances, squares
from engine.inference.base import GenerationContext
from engine.rollout import GroupRequest, RolloutScheduler
from engine.rollout.environments import FrozenLakeEnvironments
from engine.types import Group, TaskRow, TerminationReason, Verdict
from tests.builders.rollout_builders import Recorder, TextPolicy
from tests.unit.environments.lake_builders import AGENT, MAP, row_of


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


async def test_the_goal_is_reward_1() -> None:
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
        told = ["started", "step 0", "step 1", "step 2", "finished"]
        assert recorder.of(trajectory.key) == told
    assert recorder.sandboxes == ["", ""]


async def test_a_hole_is_the_agents_own_ending() -> None:
    group, _ = await roll(walker("right"), row_of())
    trajectory = group.trajectories[0]
    assert (trajectory.termination, trajectory.reward) == (TerminationReason.SUBMITTED, 0.0)
    assert trajectory.grade is not None
    assert trajectory.grade.verdict is Verdict.FAILED
    assert "You fell into a hole" in trajectory.steps[-1].observation


async def test_tokens_hold_what_was_written_and_seen() -> None:
    policy = walker("down", "down", "right")
    group, _ = await roll(policy, row_of())
    tokens = group.trajectories[0].tokens
    text = policy.chat.tokenizer.decode(tokens.ids.tolist())
    assert text.startswith(f"<|im_start|>user\n{MAP}\nP 0,0 G 2,1<|im_end|>\n<|im_start|>assistant\n")
    assert "_O_\nP__\n_G_\nP 1,0 G 2,1" in text
    sampled = tokens.ids[tokens.mask].tolist()
    assert policy.chat.tokenizer.decode(sampled) == (
        "so move down<|im_end|>so move down<|im_end|>so move right<|im_end|>"
    )


async def test_siblings_slip_apart_and_again_the_same() -> None:
    lake = row_of("P_____\n" + "\n".join(["______"] * 4) + "\n_____G", slip_probability=0.5)
    policy = walker("right")
    first, _ = await roll(policy, lake, size=6)
    again, _ = await roll(policy, lake, size=6)
    seen = [[step.observation for step in trajectory.steps] for trajectory in first.trajectories]
    assert seen == [[step.observation for step in trajectory.steps] for trajectory in again.trajectories]
    assert len({str(path) for path in seen}) > 3


@pytest.mark.parametrize("slip", [0.0, 0.3])
async def test_whoever_knows_the_way_arrives_on_firm_ice(slip: float) -> None:
    grid = "P_O_\n____\nOO__\n__G_"

    def respond(context: GenerationContext) -> str:
        shown = context.steps[-1].observation if context.steps else grid
        lake = "\n".join(shown.split("\n")[:4])
        here = next(square for square, symbol in squares(lake).items() if symbol == "P")
        distances = goal_distances(grid)
        good = [
            word
            for word, (down, right) in DIRECTIONS.items()
            if distances.get((here[0] + down, here[1] + right), 99) < distances[here]
        ]
        return f"move {good[0]}"

    group, _ = await roll(TextPolicy(respond), row_of(grid, slip_probability=slip), size=30)
    rewards = [trajectory.reward for trajectory in group.trajectories]
    if slip == 0:
        assert rewards == [1.0] * 30
        assert {len(trajectory.steps) for trajectory in group.trajectories} == {5}
    else:
        assert 0 < sum(reward or 0 for reward in rewards) < 30
