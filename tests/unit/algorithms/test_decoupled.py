"""Decoupled PPO (AReaL, arXiv:2505.24298, eq. 5) token by token, against the objective's token_tis."""

from __future__ import annotations

import math

import pytest
import torch

from engine.algorithms.objective import TokenBatch, policy_loss
from engine.config.algorithm import AlgorithmConfig

EPSILON_LOW, EPSILON_HIGH = 0.2, 0.28
TOKENS = [
    # log π, log π_prox, log μ, advantage
    (-1.0, -1.1, -2.5, 1.0),
    (-0.4, -1.5, -0.3, 1.0),
    (-2.0, -0.5, -3.0, -0.7),
    (-0.2, -0.3, -0.1, -0.7),
    (-5.0, -4.9, -1.0, 2.0),
]


def areal(logprob: float, prox: float, behaviour: float, advantage: float) -> tuple[float, float]:
    """Return the loss of a token and its derivative by log π, as the paper writes them."""
    weight, ratio = math.exp(prox - behaviour), math.exp(logprob - prox)
    clipped = min(max(ratio, 1 - EPSILON_LOW), 1 + EPSILON_HIGH)
    is_inside = ratio * advantage <= clipped * advantage
    surrogate = min(ratio * advantage, clipped * advantage)
    return -weight * surrogate, -weight * ratio * advantage if is_inside else 0.0


@pytest.mark.parametrize(
    ("correction", "low", "high"), [("token_tis", 0.0, math.inf), ("icepop", 0.0, math.inf)]
)
def test_without_bounds_the_corrections_are_decoupled_ppo(correction: str, low: float, high: float) -> None:
    config = AlgorithmConfig.model_validate(
        {
            "importance_correction": correction,
            "importance_low": low,
            "importance_high": high,
            "clip_low": EPSILON_LOW,
            "clip_high": EPSILON_HIGH,
        }
    )
    columns = [torch.tensor(column, dtype=torch.float64) for column in zip(*TOKENS, strict=True)]
    logprobs = columns[0].requires_grad_()
    parts = policy_loss(
        TokenBatch(
            logprobs=logprobs,
            old_logprobs=columns[1],
            sampler_logprobs=columns[2],
            reference_logprobs=None,
            entropies=None,
            advantages=columns[3],
            weights=torch.ones(len(TOKENS), dtype=torch.float64),
            rows=torch.arange(len(TOKENS)),
            num_rows=len(TOKENS),
        ),
        config,
    )
    parts.loss.backward()  # type: ignore[no-untyped-call]
    losses, slopes = zip(*(areal(*token) for token in TOKENS), strict=True)
    assert parts.token_losses.tolist() == pytest.approx(losses, rel=1e-12)
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx(slopes, rel=1e-12)
