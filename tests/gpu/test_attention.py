"""Packed attention in one fused kernel against exact attention, and families on the device."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.models.attention import Scoring, Segments, attend
from engine.models.published.networks import build_causal
from engine.models.published.pretrained import PretrainedModel
from tests.unit.models.tiny_families import FAMILIES, tiny_config

pytestmark = pytest.mark.gpu
LENGTHS = (130, 1, 64, 317)


def relative(actual: Tensor, expected: Tensor) -> float:
    return float((actual.double().cpu() - expected.double().cpu()).norm() / expected.double().norm())


@pytest.mark.parametrize("kv_heads", [2, 8])
@pytest.mark.parametrize("window", [None, 50])
def test_fused_attention_matches_attention_over_separate_sequences(
    device: torch.device, kv_heads: int, window: int | None
) -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(sum(LENGTHS), heads, 64, generator=generator) for heads in (8, kv_heads, kv_heads)]
    weights = torch.randn(sum(LENGTHS), 8, 64, generator=generator)
    results = []
    for place, dtype in ((torch.device("cpu"), torch.float32), (device, torch.bfloat16)):
        q, k, v = (x.to(place, dtype).detach().requires_grad_(True) for x in tensors)
        out = attend(q, k, v, Segments.whole(LENGTHS, place), Scoring(window=window))
        (out * weights.to(out)).sum().backward()  # type: ignore[no-untyped-call]
        assert q.grad is not None
        assert k.grad is not None
        assert v.grad is not None
        results.append((out.detach(), q.grad, k.grad, v.grad))
    for expected, actual in zip(*results, strict=True):
        assert relative(actual, expected) <= 0.02


@pytest.mark.parametrize("family", FAMILIES)
def test_outputs_of_a_family_on_the_device_match_the_cpu(device: torch.device, family: str) -> None:
    ids = torch.randint(5, 300, (45,), generator=torch.Generator().manual_seed(1))
    lengths = (20, 25)
    expected = _hidden(family, torch.device("cpu"), torch.float32, ids, lengths)
    assert relative(_hidden(family, device, torch.float32, ids, lengths), expected) <= 1e-4
    assert relative(_hidden(family, device, torch.bfloat16, ids, lengths), expected) <= 0.1


@torch.no_grad()
def _hidden(
    family: str, device: torch.device, dtype: torch.dtype, ids: Tensor, lengths: tuple[int, ...]
) -> Tensor:
    model = PretrainedModel(build_causal(tiny_config(family, head_dim=16), seed=1)).to(device, dtype)
    return model.packed_hidden(ids.to(device), Segments.whole(lengths, device))
