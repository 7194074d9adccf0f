"""Every family computes packed what it computes alone, and what transformers' own attention computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from engine.models.attention import Segments
from engine.models.attention.exact import attend_exactly
from engine.models.base import LanguageModel
from engine.models.published.networks import build_causal
from engine.models.published.pretrained import PretrainedModel
from tests.unit.models.tiny_families import FAMILIES, tiny_config

CPU = torch.device("cpu")
LENGTHS = (20, 13, 1, 31)
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Found:
    """Logits of all sequences and gradients of a fixed function of them."""

    logits: Tensor
    gradients: Mapping[str, Tensor]

    def assert_equals(self, other: Found) -> None:
        assert (self.logits - other.logits).abs().max() <= TOLERANCE * other.logits.abs().max()
        assert set(self.gradients) == set(other.gradients)
        for name, gradient in self.gradients.items():
            expected = other.gradients[name]
            assert (gradient - expected).norm() <= TOLERANCE * expected.norm(), name


def causal_of(family: str) -> PreTrainedModel:
    """Random weights that are nowhere near zero, so that every part matters."""
    causal = build_causal(tiny_config(family), seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in causal.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return causal


def sequences() -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(5, 300, (length,), generator=generator) for length in LENGTHS]


def logits_of(model: LanguageModel, ids: Tensor, lengths: tuple[int, ...]) -> Tensor:
    head = model.head
    logits = model.packed_hidden(ids, Segments.whole(lengths, CPU)) @ head.weight.T * head.scale
    return logits if head.softcap is None else head.softcap * torch.tanh(logits / head.softcap)


def found(model: torch.nn.Module, logits: Tensor) -> Found:
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(4))
    model.zero_grad()
    (logits * weights).sum().backward()  # type: ignore[no-untyped-call]
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return Found(logits.detach(), gradients)


@cache
def eager(family: str) -> Found:
    model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        tiny_config(family), attn_implementation="eager"
    ).eval()
    model.load_state_dict(causal_of(family).state_dict())
    return found(model, torch.cat([model(ids[None]).logits[0] for ids in sequences()]))


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_is_alone_is_transformers_own(family: str) -> None:
    model = PretrainedModel(causal_of(family))
    packed = found(model, logits_of(model, torch.cat(sequences()), LENGTHS))
    alone = found(model, torch.cat([logits_of(model, ids, (len(ids),)) for ids in sequences()]))
    packed.assert_equals(eager(family))
    packed.assert_equals(alone)


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss", "gemma3_text"])
def test_recomputed_layers_have_the_same_gradients(family: str) -> None:
    model = PretrainedModel(causal_of(family))
    model.set_activation_checkpointing(True)
    recomputed = found(model, logits_of(model, torch.cat(sequences()), LENGTHS))
    model.set_activation_checkpointing(False)
    kept = found(model, logits_of(model, torch.cat(sequences()), LENGTHS))
    recomputed.assert_equals(kept)


@pytest.mark.parametrize("family", ["qwen3", "gpt_oss", "glm4_moe"])
def test_bfloat16_rounds_experts_and_attention_too(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Autocast knows no grouped products, and positions widen queries; the residual stream stays wide."""
    model = PretrainedModel(causal_of(family))
    attended = []

    def attend_here(q: Tensor, k: Tensor, v: Tensor, *layout: Any) -> Tensor:
        attended.append({q.dtype, k.dtype, v.dtype})
        return attend_exactly(q, k, v, *layout)

    monkeypatch.setattr("engine.models.attention.dispatch._attend_here", attend_here)
    dtypes = set()
    for block in model.blocks:
        block.register_forward_hook(lambda block, inputs, output: dtypes.add(output.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model.packed_hidden(torch.cat(sequences()), Segments.whole(LENGTHS, CPU))
    assert dtypes == {torch.float32}
    assert attended == [{torch.bfloat16}] * len(model.blocks)
    with torch.no_grad():
        rounded = causal_of(family)
        for name, parameter in rounded.named_parameters():
            if "experts" in name:
                parameter.copy_(parameter.bfloat16())
        precise = PretrainedModel(rounded).packed_hidden(torch.cat(sequences()), Segments.whole(LENGTHS, CPU))
    assert 0 < (hidden - precise).norm() <= 0.2 * precise.norm()
    hidden.sum().backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.blocks[1].parameters())
