"""Log-probabilities computed in tiles: values, gradients and memory."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import backward

from engine.models import logit_tiles
from engine.models.base import Head
from engine.models.logprobs import token_logprobs
from tests.builders.process_memory import forget_peak, memory

torch.set_num_threads(1)


def inputs(n: int, *, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(n)
    hidden = torch.randn(n, 7, generator=generator, dtype=dtype, requires_grad=True)
    weight = torch.randn(19, 7, generator=generator, dtype=dtype, requires_grad=True)
    return hidden, weight, torch.randint(19, (n,), generator=generator)


def full_table(hidden: torch.Tensor, head: Head, temperature: float) -> torch.Tensor:
    """Return the log-probabilities [N, V] computed at once."""
    logits = head.scale * hidden @ head.weight.T
    if head.softcap is not None:
        logits = head.softcap * torch.tanh(logits / head.softcap)
    return torch.log_softmax(logits / temperature, dim=1)


@pytest.mark.parametrize(
    ("temperature", "scale", "softcap", "kept"),
    [
        (1.0, 1.0, None, 0),
        (0.3, 1.0, None, 100),
        (0.3, 0.4, None, 2**20),
        (0.7, 1.5, 2.0, 100),
        (1.0, 1.5, 2.0, 0),
    ],
)
def test_logprobs_and_gradients_equal_those_of_log_softmax(
    monkeypatch: pytest.MonkeyPatch, temperature: float, scale: float, softcap: float | None, kept: int
) -> None:
    monkeypatch.setattr(logit_tiles, "TILES", {"cpu": (8, 6)})
    monkeypatch.setattr(logit_tiles, "KEPT", kept)
    hidden, weight, targets = inputs(37)
    head = Head(weight=weight, scale=scale, softcap=softcap)
    logprobs, entropies = token_logprobs(hidden, head, targets, temperature)
    assert entropies is not None
    table = full_table(hidden, head, temperature)
    expected = table[torch.arange(37), targets], -(table.exp() * table).sum(1)
    slopes = torch.randn(2, 37, dtype=torch.float64)
    gradients = torch.autograd.grad((slopes * torch.stack((logprobs, entropies))).sum(), (hidden, weight))
    expected_gradients = torch.autograd.grad((slopes * torch.stack(expected)).sum(), (hidden, weight))
    torch.testing.assert_close((logprobs, entropies), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients, expected_gradients, rtol=1e-10, atol=1e-12)


def test_bfloat16_products_sum_the_heads_gradient_in_float32() -> None:
    """A bfloat16 sum of 400 equal parts would stop growing at 256 of them."""
    rows = 400 * logit_tiles.TILES["cpu"][0]
    hidden = torch.ones(rows, 1, dtype=torch.bfloat16)
    weight = torch.zeros(2, 1, requires_grad=True)
    targets = torch.zeros(rows, dtype=torch.int64)
    logprobs, _ = token_logprobs(hidden, Head(weight=weight), targets, 1.0)
    assert logprobs.dtype == torch.float32
    backward(logprobs.sum())
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32
    torch.testing.assert_close(weight.grad, torch.tensor([[rows / 2], [-rows / 2]]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_bfloat16_weights_get_a_bfloat16_gradient(dtype: torch.dtype) -> None:
    hidden, weight, targets = inputs(64, dtype=torch.float32)
    rounded = weight.detach().bfloat16().requires_grad_()
    activations = hidden.detach().to(dtype).requires_grad_()
    backward(token_logprobs(activations, Head(weight=rounded), targets, 1.0)[0].sum())
    expected = full_table(hidden, Head(weight=weight), 1.0)[torch.arange(64), targets].sum()
    wanted = torch.autograd.grad(expected, (hidden, weight))
    for leaf, gradient in zip((activations, rounded), wanted, strict=True):
        assert leaf.grad is not None
        assert leaf.grad.dtype == leaf.dtype
        assert (leaf.grad - gradient).norm() < 0.02 * gradient.norm()


def test_the_full_table_of_logits_is_never_materialised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure 2,048 positions and 32,000 tokens, for which a full table takes 250 MiB.

    The computation in tiles keeps at most ``KEPT`` logits, here 16 MiB, and a few tiles.
    """
    monkeypatch.setattr(logit_tiles, "KEPT", 2**22)
    hidden, weight = torch.randn(2048, 16, requires_grad=True), torch.randn(32_000, 16, requires_grad=True)
    targets = torch.randint(32_000, (2048,))
    token_logprobs(hidden[:64], Head(weight=weight), targets[:64], 1.0)
    forget_peak()
    before = memory("VmRSS:")
    backward(token_logprobs(hidden, Head(weight=weight), targets, 1.0)[0].sum())
    assert memory("VmHWM:") - before < 100 << 20
