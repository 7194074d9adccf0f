"""Traces of an update: the terms computed from them multiply up to the logged loss."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.algorithms.arithmetic import SampledTokens, token_terms
from engine.config.learning.algorithm import AlgorithmConfig
from engine.config.learning.trainer import TrainerConfig
from engine.config.presets import PRESETS
from engine.tokens import TokenRecord
from engine.trainer.learner import UpdateResult
from engine.trainer.trainer import Trainer
from engine.types import Group
from tests.unit.trainer.builders.rl_builders import make_group, make_trajectory
from tests.unit.trainer.builders.rl_model import make_groups, make_model

CONTEXT = 64
ROWS = [1, 2, 3, 4, 5, 6, 1, 2, 9, 8, 7, 6]
MASK = [0, 0, 1, 1, 0, 1, 0, 0, 0, 1, 1, 0]
FORKED = TokenRecord(
    ids=ROWS,
    mask=MASK,
    logprobs=[-1.5 * m for m in MASK],
    steps=[-1, -1, 0, 0, 0, 1, -1, -1, -1, 2, 2, 2],
)
"""Tokens of a rollout whose conversation was rendered anew."""


def update(groups: Sequence[Group], algorithm: AlgorithmConfig, **settings: Any) -> UpdateResult:
    config = TrainerConfig(**{"threads": 1, "traced_groups": 1.0, "learning_rate": 3e-3, **settings})
    trainer = Trainer(
        make_model(), algorithm=algorithm, config=config, max_context=CONTEXT, seed=5, reference=make_model(7)
    )
    try:
        return trainer.update(groups, temperature=1.0)
    finally:
        trainer.close()


def with_fork(forked: TokenRecord) -> Group:
    """Return a group of a solved rollout with a fork, and of a failed one without."""
    plain = TokenRecord(ids=ROWS[:6], mask=MASK[:6], logprobs=[-1.0 * m for m in MASK[:6]])
    return make_group([make_trajectory(1.0, tokens=forked), make_trajectory(0.0, index=1, tokens=plain)])


def parts(groups: Sequence[Group], result: UpdateResult, algorithm: AlgorithmConfig) -> list[float]:
    """Return every traced token's part of the logged loss."""
    tokens = [trajectory.tokens for group in groups for trajectory in group.trajectories]
    members = [member for siblings in result.members for member in siblings]
    found: list[float] = []
    for index, trace in result.traces.items():
        record, sampler = tokens[index], tokens[index].logprobs[tokens[index].mask]
        columns = trace.record
        assert len(columns) == record.num_sampled
        old, reference = columns.old_logprobs, columns.reference_logprobs
        sampled = SampledTokens(
            logprobs=columns.logprobs.astype(float).tolist(),
            old_logprobs=(sampler if old is None else old).astype(float).tolist(),
            sampler_logprobs=sampler.astype(float).tolist(),
            reference_logprobs=None if reference is None else reference.astype(float).tolist(),
            entropies=columns.entropies.astype(float).tolist(),
        )
        advantage = members[index].advantage
        assert advantage is not None
        for part in sampled.split(sample.num_sampled for sample in record.samples()):
            terms = token_terms(part, advantage, algorithm)
            found += [term.loss * trace.weight / len(result.losses) for term in terms]
    return found


def assert_parts_add_up(seed: int, preset: str) -> None:
    generator = random.Random(f"{seed}-{preset}")
    rewards = [[generator.choice([0.0, 0.5, 1.0]) for _ in range(generator.randint(2, 5))] for _ in range(3)]
    groups = make_groups(make_model(3), rewards, seed=seed)
    algorithm = AlgorithmConfig(preset=preset)
    minibatches = generator.choice([1, 2, 3])
    result = update(groups, algorithm, minibatches=minibatches)
    found = parts(groups, result, algorithm)
    logged = result.metrics.get("loss/value", 0.0)
    assert math.fsum(found) == pytest.approx(logged, abs=1e-6 * max(1.0, math.fsum(map(abs, found))))


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_parts_of_tokens_add_up_to_the_logged_loss(preset: str) -> None:
    for seed in range(4):
        assert_parts_add_up(seed, preset)


def test_a_share_of_the_groups_with_a_gradient_is_traced() -> None:
    rewards = [[1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [0.0, 0.0], [0.5, 0.0]]
    groups = make_groups(make_model(), rewards)
    algorithm = AlgorithmConfig()

    def traced(share: float) -> set[int]:
        return {index // 2 for index in update(groups, algorithm, traced_groups=share).traces}

    assert traced(0.0) == set()
    assert len(traced(0.2)) == 1
    assert traced(0.4) == traced(0.4)
    assert traced(1.0) == {0, 2, 4}


def test_traces_do_not_depend_on_packing_and_forks_are_joined() -> None:
    """Train on a rollout whose conversation was rendered anew, in one row and in several."""
    assert len(FORKED.samples()) == 2
    results = [
        update([with_fork(FORKED)], AlgorithmConfig(), minibatches=1, tokens_per_microbatch=size).traces
        for size in (64, 2048)
    ]
    for traces in results:
        assert [len(traces[index].record) for index in (0, 1)] == [5, 3]
    for index in (0, 1):
        few, many = results[0][index].record, results[1][index].record
        np.testing.assert_allclose(few.logprobs, many.logprobs, atol=1e-5)
        np.testing.assert_allclose(few.entropies, many.entropies, atol=1e-5)


@pytest.mark.parametrize("settings", [{"preset": "gspo"}, {"importance_correction": "sequence_mask"}])
def test_parts_of_forks_add_up_with_means_over_each_sample(settings: dict[str, Any]) -> None:
    now = update([with_fork(FORKED)], AlgorithmConfig(), minibatches=1).traces[0].record.logprobs
    # The sampler's probabilities are today's in the first sample, and a third of them in the second.
    logprobs = np.zeros(len(FORKED), np.float32)
    logprobs[FORKED.mask] = now - np.repeat([0.0, math.log(3)], [3, 2])
    group, algorithm = with_fork(replace(FORKED, logprobs=logprobs)), AlgorithmConfig(**settings)
    result = update([group], algorithm, minibatches=1)
    found = math.fsum(parts([group], result, algorithm))
    assert found == pytest.approx(result.metrics["loss/value"], abs=1e-6)


@pytest.mark.parametrize("value", [1e38, math.inf])
def test_skipped_steps_have_no_traces(value: float) -> None:
    groups = make_groups(make_model(), [[1.0, 0.0], [0.0, 1.0]])
    spoiled = groups[0].trajectories[0].tokens
    logprobs = np.where(spoiled.mask, np.float32(-value), np.float32(0))
    first = replace(groups[0].trajectories[0], tokens=replace(spoiled, logprobs=logprobs))
    groups[0] = replace(groups[0], trajectories=(first, *groups[0].trajectories[1:]))
    result = update(groups, AlgorithmConfig(), minibatches=2)
    assert (result.metrics["update/nonfinite"], result.optimizer_steps) == (1, 1)
    assert set(result.traces) == {2, 3}
