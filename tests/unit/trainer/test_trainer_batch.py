"""Samples and microbatches: trained positions, weights and complete partitioning."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.algorithms.advantages import group_members
from engine.config.learning.algorithm import AlgorithmConfig
from engine.tokens import TokenRecord
from engine.trainer.batch import Sample, make_microbatch, make_samples, share_rows
from engine.types import Group, TerminationReason
from tests.unit.trainer.builders.rl_builders import make_group, make_trajectory, random_tokens

CPU = torch.device("cpu")
RECORD = TokenRecord(
    ids=(7, 8, 3, 4, 9, 5, 6),
    mask=(0, 0, 1, 1, 0, 1, 0),
    logprobs=(0.0, 0.0, -0.5, -0.25, 0.0, -1.5, 0.0),
    versions=(-1, -1, 0, 0, -1, 0, -1),
    steps=(-1, -1, 0, 0, 0, 1, 1),
)


def samples_of(*groups: Group, max_context: int = 10) -> list[Sample]:
    algorithm = AlgorithmConfig()
    members = [group_members(group.trajectories, algorithm, max_context=64) for group in groups]
    return make_samples(groups, members, algorithm, max_context=max_context)


def pair(first: TokenRecord, second: TokenRecord) -> Group:
    return make_group([make_trajectory(1.0, tokens=first), make_trajectory(0.0, index=1, tokens=second)])


def test_samples_contain_the_position_before_each_sampled_token() -> None:
    """Each sampled token is predicted one position earlier, so the last one is not forwarded."""
    winner, loser = samples_of(pair(RECORD, RECORD))
    for sample, advantage in ((winner, 1.0), (loser, -1.0)):
        assert sample.ids.tolist() == [7, 8, 3, 4, 9]
        assert sample.positions.tolist() == [1, 2, 4]
        assert sample.targets.tolist() == [3, 4, 5]
        assert sample.sampler_logprobs.tolist() == [-0.5, -0.25, -1.5]
        assert (sample.advantage, sample.weight) == (advantage, 1.0 / 20)


def test_a_forked_trajectory_becomes_several_samples_that_count_once() -> None:
    """The samples share advantage and weight; one without sampled tokens is omitted."""
    steps = [*RECORD.steps.tolist(), -1, 0, 1, 1, -1]
    forked = TokenRecord(
        ids=[*RECORD.ids.tolist(), 7, 9, 2, 3, 8],
        mask=[*RECORD.mask.tolist(), 0, 0, 1, 1, 0],
        logprobs=[*RECORD.logprobs.tolist(), 0, 0, -2.0, -3.0, 0],
        steps=steps,
    )
    assert forked.starts.tolist() == [0, 7, 11]
    first, second, other = samples_of(pair(forked, RECORD))
    assert first.ids.tolist() == [7, 8, 3, 4, 9]
    assert second.ids.tolist() == [7, 9, 2]
    assert second.positions.tolist() == [1, 2]
    assert second.targets.tolist() == [2, 3]
    assert second.sampler_logprobs.tolist() == [-2.0, -3.0]
    assert [(s.advantage, s.weight) for s in (first, second, other)] == [(1, 0.05), (1, 0.05), (-1, 0.05)]
    token_mean = AlgorithmConfig(aggregation="token_mean")
    groups = [pair(forked, RECORD)]
    members = [group_members(group.trajectories, token_mean, max_context=64) for group in groups]
    assert [s.weight for s in make_samples(groups, members, token_mean, max_context=10)] == [1 / 8] * 3


def test_trajectories_without_signal_count_in_the_normaliser_but_are_not_forwarded() -> None:
    uniform = make_group([make_trajectory(0.0, index=i, tokens=RECORD) for i in range(2)])
    filtered = make_group(
        [make_trajectory(1.0, TerminationReason.MAX_STEPS, index=i, tokens=RECORD) for i in (0, 1)]
    )
    lost = make_group([make_trajectory(None, index=i, tokens=RECORD) for i in range(2)])
    samples = samples_of(pair(RECORD, RECORD), uniform, filtered, lost)
    assert [sample.weight * sample.advantage for sample in samples] == pytest.approx([1.0 / 60, -1.0 / 60])


def test_a_trajectory_without_sampled_tokens_makes_no_sample() -> None:
    assert len(samples_of(pair(RECORD, TokenRecord()))) == 1


def test_a_record_whose_first_token_was_sampled_is_refused() -> None:
    with pytest.raises(AssertionError):
        samples_of(pair(replace(RECORD, mask=np.ones(7, np.bool_)), RECORD))


@pytest.mark.parametrize("budget", [8, 64, 200, 10_000])
def test_microbatches_contain_every_sampled_token_once_within_the_budget(budget: int) -> None:
    rng = random.Random(3)
    records = [random_tokens(rng, vocab=50, length=rng.randint(4, 60)) for _ in range(24)]
    samples = samples_of(*(pair(a, b) for a, b in zip(records[::2], records[1::2], strict=True)))
    (rows,) = share_rows(samples, tokens_per_microbatch=budget)
    batches = [make_microbatch(row, CPU) for row in rows]
    actual = []
    for batch in batches:
        assert batch.width <= budget or len(batch.lengths) == 1
        assert batch.width == len(batch.ids) == sum(batch.lengths)
        context = batch.ids[batch.columns].tolist()
        columns = (batch.targets, batch.sampler_logprobs, batch.advantages, batch.weights)
        actual += list(zip(context, *(column.tolist() for column in columns), strict=True))
    expected = [
        (s.ids[position], target, torch.tensor(old).item(), s.advantage, torch.tensor(s.weight).item())
        for s in samples
        for position, target, old in zip(s.positions, s.targets, s.sampler_logprobs, strict=True)
    ]
    assert sorted(actual) == sorted(expected)
    if budget == 10_000:
        assert len(batches) == 1
