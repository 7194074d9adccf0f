"""Log-probabilities on the device: correct, and computed without the table of logits."""

from __future__ import annotations

import pytest
import torch

from engine.models.base import Head
from engine.models.logprobs import token_logprobs

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("softcap", [None, 20.0])
def test_logprobs_on_the_device_match_the_cpu(device: torch.device, softcap: float | None) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(300, 64, generator=generator), torch.randn(5000, 64, generator=generator)
    targets = torch.randint(5000, (300,), generator=generator)
    results = []
    for place in (torch.device("cpu"), device):
        h, w = (x.detach().to(place).requires_grad_(True) for x in (hidden, weight))
        logprobs, entropies = token_logprobs(h, Head(weight=w, softcap=softcap), targets.to(place), 0.7)
        assert entropies is not None
        (logprobs.sum() + 0.1 * entropies.sum()).backward()  # type: ignore[no-untyped-call]
        assert h.grad is not None
        assert w.grad is not None
        results.append([x.detach().cpu() for x in (logprobs, entropies, h.grad, w.grad)])
    for expected, actual in zip(*results, strict=True):
        assert (actual - expected).norm() <= 1e-4 * expected.norm()


def test_logprobs_need_less_than_half_the_memory_of_the_logits(device: torch.device) -> None:
    if device.type != "cuda":
        pytest.skip("the memory of a CUDA device is measured")
    hidden = torch.randn(8192, 512, device=device, requires_grad=True)
    weight = torch.randn(151_936, 512, device=device, requires_grad=True)
    targets = torch.randint(151_936, (8192,), device=device)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    token_logprobs(hidden, Head(weight=weight), targets, 1.0)[0].sum().backward()  # type: ignore[no-untyped-call]
    table = 8192 * 151_936 * 4
    assert torch.cuda.max_memory_allocated() - before < table / 2
