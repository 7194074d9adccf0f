"""The trainer on a real, very small transformer."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from engine.algorithms.advantages import group_members
from engine.algorithms.objective import TokenBatch, policy_loss
from engine.config.learning.algorithm import AlgorithmConfig
from engine.config.learning.trainer import TrainerConfig
from engine.models.builtin.transformer import Transformer
from engine.tokens import TokenRecord
from engine.trainer.batch import Sample, make_microbatch
from engine.trainer.metrics import UpdateMeter
from engine.trainer.trainer import Trainer
from engine.types import Group, TerminationReason
from tests.unit.algorithms.objective_reference import Row, Token, reference_loss
from tests.unit.trainer.builders.rl_builders import make_group, make_trajectory
from tests.unit.trainer.builders.rl_model import make_groups, make_model

torch.set_num_threads(1)
CONTEXT = 64
REWARDS = [[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0, 1.0, 0.0, 0.0], [0.0, 1.0, 0.25]]


def make_trainer(model: Transformer, *, algorithm: AlgorithmConfig | None = None, **settings: Any) -> Trainer:
    config = TrainerConfig(**{"minibatches": 1, "learning_rate": 1e-3, "threads": 1, **settings})
    return Trainer(
        model, algorithm=algorithm or AlgorithmConfig(), config=config, max_context=CONTEXT, seed=5
    )


def weights(model: Transformer) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


@contextmanager
def gradient_of(model: Transformer) -> Iterator[list[torch.Tensor]]:
    """Sum the gradients of each parameter, before clipping."""
    sums = [torch.zeros_like(parameter, dtype=torch.float64) for parameter in model.parameters()]

    def adder(total: torch.Tensor) -> Callable[[torch.Tensor], None]:
        def add(grad: torch.Tensor) -> None:
            total.add_(grad.double())

        return add

    handles = [
        parameter.register_hook(adder(total))  # type: ignore[no-untyped-call]
        for parameter, total in zip(model.parameters(), sums, strict=True)
    ]
    yield sums
    for handle in handles:
        handle.remove()


def gradient(
    groups: list[Group], *, algorithm: AlgorithmConfig | None = None, **settings: Any
) -> torch.Tensor:
    model = make_model()
    with gradient_of(model) as sums:
        make_trainer(model, algorithm=algorithm, **settings).update(groups, temperature=1.0)
    return torch.cat([total.flatten() for total in sums])


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


def stale_groups(**kwargs: Any) -> list[Group]:
    """Return groups with log-probabilities of another policy, for ratios far from 1."""
    return make_groups(make_model(seed=1), REWARDS, **kwargs)


@pytest.mark.parametrize("aggregation", ["constant_length", "token_mean", "sequence_mean"])
def test_loss_and_gradient_equal_the_reference_implementation(aggregation: str) -> None:
    """Backpropagate the reference's closed-form slopes through one unpadded trajectory at a time."""
    groups = stale_groups(
        terminations={(1, 0): TerminationReason.MAX_CONTEXT, (2, 1): TerminationReason.ENV_ERROR}
    )
    algorithm = AlgorithmConfig(aggregation=aggregation)
    model = make_model()
    rows, tensors = [], []
    for number, group in enumerate(groups):
        for trajectory, member in zip(
            group.trajectories, group_members(group.trajectories, algorithm, max_context=CONTEXT), strict=True
        ):
            ids, mask = torch.tensor(trajectory.tokens.ids).long(), torch.tensor(trajectory.tokens.mask)
            table = torch.log_softmax(model(ids[None], torch.tensor([len(ids)]))[0].double(), dim=-1)
            where = mask.nonzero().squeeze(1)
            new = table[where - 1, ids[where]]
            tensors.append(new)
            state = "lost" if member.is_infrastructure else "kept" if member.loss_mask else "filtered"
            old = trajectory.tokens.logprobs[trajectory.tokens.mask].tolist()
            tokens = tuple(Token(n, o, o, 0.0, 0.0) for n, o in zip(new.tolist(), old, strict=True))
            rows.append(Row(number, trajectory.reward or 0.0, state, len(ids), tokens))
    expected_loss, slopes, _ = reference_loss(rows, algorithm.model_dump(), CONTEXT)
    slope = torch.tensor([x for row in slopes for x in row], dtype=torch.float64)
    torch.cat(tensors).backward(slope)  # type: ignore[no-untyped-call]
    expected = torch.cat([p.grad.double().flatten() for p in model.parameters() if p.grad is not None])
    assert relative(gradient(groups, algorithm=algorithm), expected) < 1e-6
    result = make_trainer(make_model(), algorithm=algorithm).update(groups, temperature=1.0)
    # The loss is a difference of larger terms, each of which float32 rounds.
    rounding = torch.finfo(torch.float32).eps * slope.abs().sum().item()
    assert result.metrics["loss/value"] == pytest.approx(expected_loss, rel=1e-5, abs=rounding)


@pytest.mark.parametrize(
    ("aggregation", "order"), [("constant_length", 0), ("token_mean", 1), ("sequence_mean", 2)]
)
def test_the_gradient_does_not_depend_on_microbatching_order_or_padding(aggregation: str, order: int) -> None:
    algorithm = AlgorithmConfig(aggregation=aggregation)
    groups = stale_groups()
    whole = gradient(groups, algorithm=algorithm, tokens_per_microbatch=100_000)
    rng = random.Random(order)
    shuffled = [
        replace(group, trajectories=tuple(rng.sample(group.trajectories, len(group.trajectories))))
        for group in rng.sample(groups, len(groups))
    ]
    for budget in (64, 100, 300):
        part = gradient(shuffled, algorithm=algorithm, tokens_per_microbatch=budget)
        assert relative(part, whole) < 1e-6


@pytest.mark.parametrize(
    ("rewards", "termination"),
    [
        ([[1.0, 1.0], [0.0, 0.0, 0.0]], TerminationReason.SUBMITTED),
        ([[1.0, 0.0], [0.0, 1.0]], TerminationReason.MAX_STEPS),
        ([[None, None], [None]], TerminationReason.SUBMITTED),
        ([[1.0], [0.0]], TerminationReason.SUBMITTED),
        ([], TerminationReason.SUBMITTED),
    ],
)
def test_updates_without_signal_change_nothing_and_count_as_skipped(
    rewards: list[list[float | None]], termination: TerminationReason
) -> None:
    """Momentum and weight decay would move the weights if a step were made."""
    model = make_model()
    trainer = make_trainer(model, minibatches=2, weight_decay=0.1)
    trainer.update(make_groups(model, REWARDS), temperature=1.0)
    before, optimizer = weights(model), copy.deepcopy(trainer.state()["optimizer"])
    everywhere = {(g, i): termination for g in range(2) for i in range(3)}
    result = trainer.update(make_groups(model, rewards, terminations=everywhere), temperature=1.0)
    assert all(torch.equal(a, b) for a, b in zip(before, weights(model), strict=True))
    torch.testing.assert_close(trainer.state()["optimizer"], optimizer, rtol=0, atol=0)
    assert result.optimizer_steps == 0
    assert result.metrics["update/skipped"] == len(rewards)
    assert "loss/value" not in result.metrics
    assert all(math.isfinite(value) for value in result.metrics.values())


def with_logprob(group: Group, value: float) -> Group:
    tokens = group.trajectories[0].tokens
    spoiled = replace(tokens, logprobs=np.where(tokens.mask, np.float32(value), np.float32(0)))
    return replace(
        group, trajectories=(replace(group.trajectories[0], tokens=spoiled), *group.trajectories[1:])
    )


@pytest.mark.parametrize("value", [math.nan, -math.inf, -1e30])
def test_nonfinite_gradients_are_discarded_and_counted(value: float) -> None:
    model = make_model()
    trainer = make_trainer(model)
    groups = make_groups(model, REWARDS)
    before = weights(model)
    spoiled = trainer.update([with_logprob(groups[0], value), *groups[1:]], temperature=1.0)
    assert spoiled.metrics["update/nonfinite"] == 1
    assert spoiled.optimizer_steps == 0
    assert all(math.isfinite(number) for number in spoiled.metrics.values())
    assert all(torch.equal(a, b) for a, b in zip(before, weights(model), strict=True))
    trainer.update(groups, temperature=1.0)
    fresh = make_model()
    untouched = make_trainer(fresh)
    untouched.update([], temperature=1.0)
    untouched.update(groups, temperature=1.0)
    assert all(torch.equal(a, b) for a, b in zip(weights(fresh), weights(model), strict=True))


def test_clipping_is_inactive_in_the_first_step_and_active_in_later_steps() -> None:
    model = make_model()
    one_step = make_trainer(copy.deepcopy(model), learning_rate=0.1).update(
        make_groups(model, REWARDS), temperature=1.0
    )
    assert (one_step.metrics["clip/high"], one_step.metrics["clip/low"]) == (0.0, 0.0)
    assert one_step.metrics["ratio/max"] == pytest.approx(1.0, abs=1e-5)
    four_steps = make_trainer(model, learning_rate=0.1, minibatches=4).update(
        make_groups(model, REWARDS), temperature=1.0
    )
    assert four_steps.optimizer_steps == 4
    assert four_steps.metrics["clip/high"] > 0
    assert four_steps.metrics["clip/low"] > 0
    assert four_steps.metrics["mismatch/max"] < 1e-5


def test_clip_shares_match_a_manual_computation() -> None:
    """Clipping zeroes gradients only above the band for A > 0 and below it for A < 0."""
    values = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.25, 0.85])
    sample = Sample(
        ids=np.zeros(6, np.int32),
        positions=np.arange(6),
        targets=np.zeros(6, np.int32),
        sampler_logprobs=np.full(6, -1.0, np.float32),
    )
    batch = make_microbatch((sample,), torch.device("cpu"))
    batch.advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0])
    logprobs = values.log() - 1
    parts = policy_loss(
        TokenBatch(
            logprobs=logprobs, sampler_logprobs=batch.sampler_logprobs, old_logprobs=batch.sampler_logprobs,
            reference_logprobs=None, entropies=None, advantages=batch.advantages, weights=batch.weights,
            rows=batch.rows, num_rows=1,
        ),
        AlgorithmConfig(),
    )  # fmt: skip
    meter = UpdateMeter(losses=[0.0], norms=[0.0])
    meter.add(batch, logprobs, torch.zeros(6), parts)
    metrics = meter.report([], 1.0)
    assert metrics["clip/high"] == pytest.approx(1 / 6)
    assert metrics["clip/low"] == pytest.approx(1 / 6)
    assert metrics["ratio/mean"] == pytest.approx(6.1 / 6)
    assert metrics["ratio/max"] == pytest.approx(1.5)
    assert metrics["mismatch/max"] == pytest.approx(math.log(2))
    gaps = (logprobs - batch.sampler_logprobs).double()
    assert metrics["mismatch/kl_k1"] == pytest.approx(-gaps.mean().item())
    assert metrics["mismatch/kl_k3"] == pytest.approx((gaps.exp() - 1 - gaps).mean().item())
    assert metrics["ratio/effective_share"] == pytest.approx(
        gaps.exp().sum().item() ** 2 / (6 * gaps.exp().square().sum().item())
    )
    assert metrics["tokens/masked_share"] == pytest.approx(2 / 6)
    assert metrics["tokens/padding_share"] == 0


def test_gradient_clipping_and_weight_decay_follow_the_settings() -> None:
    start = torch.cat([w.flatten() for w in weights(make_model())])

    def moved(**settings: Any) -> torch.Tensor:
        model = make_model()
        make_trainer(model, learning_rate=0.01, **settings).update(
            make_groups(model, REWARDS), temperature=1.0
        )
        return torch.cat([w.flatten() for w in weights(model)]) - start

    plain = moved()
    assert moved(max_grad_norm=1e-12).norm() < 0.01 * plain.norm()
    torch.testing.assert_close(moved(weight_decay=0.5) - plain, -0.005 * start, rtol=1e-3, atol=1e-6)


def test_mismatch_metric_detects_another_temperature_and_another_policy() -> None:
    def mismatch(groups: list[Group], temperature: float) -> float:
        return make_trainer(make_model()).update(groups, temperature=temperature).metrics["mismatch/mean"]

    at_half = make_groups(make_model(), REWARDS, temperature=0.5)
    assert mismatch(at_half, 0.5) < 1e-5
    assert mismatch(at_half, 1.0) > 1e-2
    assert mismatch(stale_groups(), 1.0) > 1e-2


def test_metrics_count_every_trajectory_once() -> None:
    rewards: list[list[float | None]] = [[1.0, 0.0, 0.0, None], [1.0, 1.0], [0.0, 1.0, 1.0]]
    terminations = {(0, 2): TerminationReason.MAX_STEPS, (2, 2): TerminationReason.CANCELLED}
    model = make_model()
    groups = make_groups(model, rewards, terminations=terminations)
    result = make_trainer(model).update(groups, temperature=1.0)
    metrics = result.metrics
    assert {name: metrics[f"funnel/{name}"] for name in
            ("trajectories", "infrastructure", "filtered", "zero_advantage", "trained")} == {
        "trajectories": 9, "infrastructure": 2, "filtered": 1, "zero_advantage": 2, "trained": 4,
    }  # fmt: skip
    trained = [groups[0].trajectories[0], groups[0].trajectories[1], *groups[2].trajectories[:2]]
    assert metrics["tokens/trained"] == sum(t.tokens.num_sampled for t in trained)
    assert metrics["groups/uniform"] == pytest.approx(1 / 3)
    assert metrics["advantage/std"] == pytest.approx(math.sqrt(4 / 6))
    assert 0 <= metrics["tokens/padding_share"] < 1
    assert 0 < metrics["entropy/mean"] <= math.log(16)
    assert [[m.mask_reason for m in members] for members in result.members] == [
        ["", "", "max_steps", "infrastructure"], ["", ""], ["", "", "infrastructure"],
    ]  # fmt: skip
    dropping = make_trainer(make_model(), algorithm=AlgorithmConfig(zero_advantage_groups="drop"))
    dropped = dropping.update(groups, temperature=1.0).metrics
    for name in ("trajectories", "infrastructure", "filtered", "zero_advantage", "trained"):
        assert dropped[f"funnel/{name}"] == metrics[f"funnel/{name}"], "dropped groups are not filtered"


def test_group_order_depends_only_on_the_seed_and_the_update_number() -> None:
    def run(seed: int, earlier: int) -> list[torch.Tensor]:
        model = make_model()
        config = TrainerConfig(minibatches=2, threads=1, learning_rate=1e-3)
        trainer = Trainer(model, algorithm=AlgorithmConfig(), config=config, max_context=CONTEXT, seed=seed)
        for _ in range(earlier):
            trainer.update([], temperature=1.0)
        random.seed()
        trainer.update(make_groups(model, REWARDS), temperature=1.0)
        return weights(model)

    def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
        return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))

    assert same(run(5, 1), run(5, 1))
    assert any(not same(run(5, 0), run(seed, 0)) for seed in range(6, 12))
    assert any(not same(run(5, 0), run(5, earlier)) for earlier in range(1, 7))


def test_training_raises_the_probability_of_the_rewarded_token() -> None:
    """Train a one-step bandit: after a two-token prompt, token 3 has reward 1, all others 0."""
    torch.manual_seed(0)
    model = make_model()
    trainer = make_trainer(model, learning_rate=1e-2, minibatches=2)

    @torch.no_grad()
    def probabilities() -> torch.Tensor:
        return torch.softmax(model(torch.tensor([[1, 2]]), torch.tensor([2]))[0, -1], dim=-1)

    def sample_group(task: str, likely: torch.Tensor) -> Group:
        trajectories = []
        for index, token in enumerate(torch.multinomial(likely, 8, replacement=True).tolist()):
            logprobs = (0.0, 0.0, float(likely[token].log()))
            tokens = TokenRecord(ids=(1, 2, token), mask=(0, 0, 1), logprobs=logprobs)
            trajectories.append(make_trajectory(float(token == 3), index=index, task_id=task, tokens=tokens))
        return make_group(trajectories, task)

    before = probabilities()[3].item()
    for _ in range(16):
        likely = probabilities()
        trainer.update([sample_group(f"t{n}", likely) for n in range(4)], temperature=1.0)
    assert before < 0.2
    assert probabilities()[3].item() > 0.9
