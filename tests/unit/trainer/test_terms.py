"""Loss terms with several forward passes, precision, schedules and counted FLOPs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from engine.algorithms.objective import kl_estimate
from engine.config.learning.trainer import TrainerConfig
from engine.models.builtin.transformer import Transformer
from engine.trainer.learner import UpdateResult
from engine.trainer.schedule import learning_rate
from engine.types import Group
from tests.unit.trainer.builders.rl_model import make_groups, make_model
from tests.unit.trainer.builders.trainer_builders import REWARDS, make_trainer

torch.set_num_threads(1)


def flat(model: Transformer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def trained(groups: list[Group], objective: dict[str, Any], **rest: Any) -> tuple[torch.Tensor, UpdateResult]:
    model = make_model()
    result = make_trainer(model, objective, **rest).update(groups, temperature=1.0)
    return flat(model), result


@torch.no_grad()
def kl_by_hand(model: Transformer, reference: Transformer, groups: list[Group], kind: Any) -> list[float]:
    sums = []
    for trajectory in (t for group in groups for t in group.trajectories):
        ids, mask = torch.tensor(trajectory.tokens.ids)[None].long(), torch.tensor(trajectory.tokens.mask)
        where = mask.nonzero().squeeze(1)
        new, old = (
            torch.log_softmax(net(ids, torch.tensor([ids.shape[1]]))[0], -1)[where - 1, ids[0, where]]
            for net in (model, reference)
        )
        sums.append(float(kl_estimate(new, old, kind).sum()))
    return sums


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_kl_in_the_loss_is_measured_from_the_reference(kind: str) -> None:
    groups = make_groups(make_model(), REWARDS)
    reference = make_model(seed=9)
    objective = {"kl": kind, "kl_coefficient": 0.1}
    _, result = trained(groups, objective, reference=reference)
    sums = kl_by_hand(make_model(), make_model(seed=9), groups, kind)
    tokens = sum(t.tokens.num_sampled for group in groups for t in group.trajectories)
    assert result.metrics["kl/mean"] == pytest.approx(sum(sums) / tokens, rel=1e-4)
    assert result.metrics["tokens/trained"] == tokens  # including those without an advantage


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_kl_in_the_reward_changes_advantages(kind: str) -> None:
    groups = make_groups(make_model(), REWARDS)
    objective = {"kl": kind, "kl_placement": "reward", "kl_coefficient": 0.1}
    _, result = trained(groups, objective, reference=make_model(seed=9))
    sums = iter(kl_by_hand(make_model(), make_model(seed=9), groups, kind))
    for group, members in zip(groups, result.members, strict=True):
        rewards = [(t.reward or 0.0) - 0.1 * next(sums) for t in group.trajectories]
        for reward, member in zip(rewards, members, strict=True):
            baseline = (sum(rewards) - reward) / (len(rewards) - 1)
            assert member.advantage == pytest.approx(reward - baseline, abs=1e-4)


def test_a_kl_term_without_a_reference_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a reference"):
        make_trainer(make_model(), {"kl": "k3", "kl_coefficient": 0.1})


def test_importance_correction_bases_the_ratio_on_the_trainers_own_logprobs() -> None:
    """With samples of another policy, π/π_old starts at 1; the correction is the truncated π_old/μ."""
    groups = make_groups(make_model(seed=1), REWARDS)
    _, plain = trained(groups, {})
    _, corrected = trained(groups, {"importance_correction": "token_tis"})
    assert plain.metrics["ratio/max"] > 1.01
    assert corrected.metrics["ratio/max"] == pytest.approx(1.0, abs=1e-6)
    assert corrected.metrics["correction/mean"] != pytest.approx(1.0, abs=1e-3)
    assert corrected.metrics["mismatch/max"] == plain.metrics["mismatch/max"]


def test_old_logprobs_are_computed_before_the_first_optimizer_step() -> None:
    groups = make_groups(make_model(), REWARDS)
    settings = {"minibatches": 3, "learning_rate": 0.05}
    _, result = trained(groups, {"importance_correction": "token_tis"}, **settings)
    assert result.metrics["ratio/max"] > 1.05


@pytest.mark.parametrize("ratio", ["sequence", "cispo"])
def test_sequence_and_cispo_ratios_do_not_depend_on_packing(ratio: str) -> None:
    groups = make_groups(make_model(seed=1), REWARDS)
    objective = {"ratio": ratio, "kl": "k3", "kl_coefficient": 0.1, "entropy_coefficient": 0.1}
    whole, cut = (
        trained(groups, objective, reference=make_model(seed=9), tokens_per_microbatch=budget)[0]
        for budget in (100_000, 64)
    )
    assert float((whole - cut).norm() / whole.norm()) < 1e-6


def test_activation_checkpointing_does_not_change_the_trained_weights() -> None:
    groups = make_groups(make_model(), REWARDS)
    kept, recomputed = (trained(groups, {}, activation_checkpointing=on)[0] for on in (False, True))
    assert torch.equal(kept, recomputed)


def test_bfloat16_products_keep_float32_weights() -> None:
    groups = make_groups(make_model(), REWARDS)
    precise, _ = trained(groups, {})
    coarse, result = trained(groups, {}, precision="bf16")
    assert coarse.dtype == torch.float32
    assert 0 < result.metrics["mismatch/mean"] < 0.02
    start = flat(make_model())
    assert torch.nn.functional.cosine_similarity(coarse - start, precise - start, dim=0) > 0.9


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]),
        ("cosine", [0.5, 1.0, 1.0, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2]),
    ],
)
def test_learning_rate_follows_the_configured_schedule(schedule: Any, expected: list[float]) -> None:
    config = TrainerConfig(learning_rate=1.0, schedule=schedule, warmup_iterations=2, iterations=6)
    assert [learning_rate(config, n) for n in range(6)] == pytest.approx(expected)
    trainer = make_trainer(make_model(), schedule=schedule, warmup_iterations=2, iterations=6)
    for rate in expected:
        metrics = trainer.update(make_groups(make_model(), REWARDS), temperature=1.0).metrics
        assert metrics["update/learning_rate"] == pytest.approx(0.01 * rate)


def test_flops_of_every_pass_are_counted() -> None:
    groups = make_groups(make_model(), REWARDS)
    objective = {"kl": "k3", "kl_coefficient": 0.1, "importance_correction": "token_tis"}
    _, plain = trained(groups, {})
    _, scored = trained(groups, objective, reference=make_model(seed=9), activation_checkpointing=True)
    assert plain.metrics["update/recomputed_share"] == 0.0
    assert "update/mfu_scoring" not in plain.metrics
    assert 0.15 < scored.metrics["update/recomputed_share"] < 0.2  # one of six forward-pass equivalents
    assert {"update/mfu", "update/mfu_training", "update/mfu_scoring"} <= scored.metrics.keys()
    whole, training = (scored.metrics[f"update/{name}"] for name in ("mfu", "mfu_training"))
    assert whole > 0 < training
