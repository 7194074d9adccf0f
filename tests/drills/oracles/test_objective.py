"""Presets against the loss functions of TRL.

Every test compares the loss and its gradient by each log-probability, on random batches in float64.
Where TRL uses a name differently, the compared settings make both agree; the differences are in the table of
``engine/algorithms/README.md``. ``requirements/oracles.txt`` installs TRL.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.algorithms.advantages import TrajectoryOutcome, outcome_members
from engine.algorithms.objective import TokenBatch, policy_loss
from engine.algorithms.weights import trajectory_weights
from engine.config.learning.algorithm import AlgorithmConfig
from engine.types import TerminationReason

torch.set_num_threads(1)
ROWS, WIDTH, LIMIT = 6, 9, 40
NO_FILTER: dict[str, Any] = {"filtered_reasons": ()}


class Case:
    """A padded batch [ROWS, WIDTH] of trajectories of unequal lengths, in the format of the oracles."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)

        def noise(scale: float) -> Tensor:
            return torch.randn((ROWS, WIDTH), generator=generator, dtype=torch.float64) * scale

        lengths = torch.randint(1, WIDTH + 1, (ROWS,), generator=generator)
        self.mask = (torch.arange(WIDTH) < lengths[:, None]).double()
        self.old = -noise(2.0).abs()
        self.new = self.old + noise(0.4)
        self.reference = self.old + noise(0.4)
        self.sampler = self.old + noise(0.4)
        self.advantages = torch.randn(ROWS, generator=generator, dtype=torch.float64)

    def ours(self, settings: dict[str, Any]) -> tuple[float, Tensor]:
        """Compute the product's loss and its gradient [ROWS, WIDTH]."""
        config = AlgorithmConfig(**(NO_FILTER | settings))
        groups = [
            [
                TrajectoryOutcome(index=i, reward=float(i), termination=TerminationReason.SUBMITTED)
                for i in range(ROWS)
            ]
        ]
        members = outcome_members(groups, config, max_context=LIMIT)[0]
        lengths = self.mask.sum(-1).long()
        weights = trajectory_weights(members, lengths.tolist(), config, max_context=LIMIT)
        where = self.mask.bool()
        new = self.new.clone().requires_grad_()
        corrected = config.importance_correction != "none"

        def repeated(values: Tensor) -> Tensor:
            return torch.repeat_interleave(values, lengths)

        batch = TokenBatch(
            logprobs=new[where],
            sampler_logprobs=(self.sampler if corrected else self.old)[where],
            old_logprobs=self.old[where],
            reference_logprobs=self.reference[where],
            entropies=None,
            advantages=repeated(self.advantages),
            weights=repeated(torch.tensor(weights, dtype=torch.float64)),
            rows=repeated(torch.arange(ROWS)),
            num_rows=ROWS,
        )
        loss = policy_loss(batch, config).loss
        (gradient,) = torch.autograd.grad(loss, new)
        return loss.item(), gradient


def agree(ours: tuple[float, Tensor], theirs: tuple[float, Tensor], tolerance: float = 1e-12) -> None:
    assert ours[0] == pytest.approx(theirs[0], rel=tolerance, abs=tolerance / 100)
    torch.testing.assert_close(ours[1], theirs[1], rtol=10 * tolerance, atol=tolerance / 100)
    assert ours[1].abs().sum() > 0


def trl_loss(case: Case, **settings: Any) -> tuple[float, Tensor]:
    """Compute ``GRPOTrainer._compute_loss`` and its gradient in training mode."""
    grpo_trainer = pytest.importorskip("trl.trainer.grpo_trainer", reason="TRL is not installed")
    new = case.new.clone().requires_grad_()
    trainer = object.__new__(grpo_trainer.GRPOTrainer)
    use_vllm = "importance_sampling_ratio" in settings
    trainer.__dict__ |= {
        "aux_loss_enabled": False, "top_entropy_quantile": 1.0, "off_policy_mask_threshold": None,
        "importance_sampling_level": "token", "beta": 0.0, "loss_type": "grpo", "epsilon_low": 0.2,
        "epsilon_high": 0.2, "use_vllm": use_vllm, "vllm_importance_sampling_correction": use_vllm,
        "max_completion_length": LIMIT, "current_gradient_accumulation_steps": 1,
        "_entropy_bonus_enabled": False, "model": SimpleNamespace(training=True),
        "args": SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1),
        "accelerator": SimpleNamespace(
            num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x
        ),
        "_metrics": {"train": _Anything()},
        "_get_per_token_logps_and_entropies": lambda *_, **__: (new, torch.zeros_like(new), None),
    }  # fmt: skip
    if "delta" in settings:
        trainer.args.delta = settings.pop("delta")
    inputs = {
        "prompt_ids": torch.zeros(ROWS, 1), "prompt_mask": torch.ones(ROWS, 1), "completion_ids": case.mask,
        "completion_mask": case.mask, "advantages": case.advantages, "old_per_token_logps": case.old,
        "ref_per_token_logps": case.reference, "num_items_in_batch": case.mask.sum(),
        "importance_sampling_ratio": settings.pop("importance_sampling_ratio", None),
    }  # fmt: skip
    trainer.__dict__ |= settings
    loss = trainer._compute_loss(None, inputs)
    (gradient,) = torch.autograd.grad(loss, new)
    return loss.item(), gradient


class _Anything(dict[str, list[float]]):
    def __missing__(self, key: str) -> list[float]:
        return []


GRPO = {"preset": "grpo", "kl": "none", "kl_coefficient": 0.0}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("settings", "oracle"),
    [
        (GRPO, {"loss_type": "grpo"}),
        ({"preset": "grpo"}, {"loss_type": "grpo", "beta": 0.04}),
        (GRPO | {"dual_clip": 1.5}, {"loss_type": "grpo", "delta": 1.5}),
        ({"preset": "dr_grpo"}, {"loss_type": "dr_grpo"}),
        ({"preset": "dapo"}, {"loss_type": "dapo", "epsilon_high": 0.28}),
        # TRL caps at ε_high itself and not at 1 + ε_high.
        ({"preset": "cispo"}, {"loss_type": "cispo", "epsilon_high": 5.0}),
        ({"preset": "cispo", "clip_high": 0.2}, {"loss_type": "cispo", "epsilon_high": 1.2}),
        (
            {"preset": "gspo", "clip_low": 0.1, "clip_high": 0.1},
            {
                "loss_type": "grpo",
                "importance_sampling_level": "sequence",
                "epsilon_low": 0.1,
                "epsilon_high": 0.1,
            },
        ),
    ],
)
def test_loss_and_gradient_match_trl(settings: dict[str, Any], oracle: dict[str, Any], seed: int) -> None:
    case = Case(seed)
    agree(case.ours(settings), trl_loss(case, **oracle))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mode", ["token_tis", "icepop"])
def test_importance_correction_matches_trl(mode: str, seed: int) -> None:
    """TRL's token_truncate and token_mask, with the ratio that its rollout code computes."""
    case = Case(seed)
    ratio = torch.exp(case.old - case.sampler)
    if mode == "token_tis":
        ratio = ratio.clamp(min=0.5, max=1.5)
    else:
        ratio = ratio.masked_fill((ratio < 0.5) | (ratio > 1.5), 0.0)
    settings = GRPO | {"importance_correction": mode, "importance_low": 0.5, "importance_high": 1.5}
    agree(case.ours(settings), trl_loss(case, loss_type="grpo", importance_sampling_ratio=ratio))


def test_comparison_with_trl_detects_a_different_clip() -> None:
    case = Case(0)
    with pytest.raises(AssertionError):
        agree(case.ours(GRPO | {"clip_high": 0.25}), trl_loss(case, loss_type="grpo"))
