"""Equality of packed rows with separate sequences and transformers, for every family."""

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
from engine.models.attention.exact import attend_exact
from engine.models.base import LanguageModel
from engine.models.published.networks import build_causal
from engine.models.published.pretrained import PretrainedModel
from tests.unit.models.tiny_families import FAMILIES, tiny_config

CPU = torch.device("cpu")
LENGTHS = (20, 13, 1, 31)
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Outputs:
    """Logits of all sequences and gradients of a fixed function of them."""

    logits: Tensor
    gradients: Mapping[str, Tensor]

    def assert_equals(self, other: Outputs) -> None:
        assert (self.logits - other.logits).abs().max() <= TOLERANCE * other.logits.abs().max()
        assert set(self.gradients) == set(other.gradients)
        for name, gradient in self.gradients.items():
            expected = other.gradients[name]
            assert (gradient - expected).norm() <= TOLERANCE * expected.norm(), name


def causal_of(family: str) -> PreTrainedModel:
    """Return a model with random weights far from zero, so that every part matters."""
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


def compute_outputs(model: torch.nn.Module, logits: Tensor) -> Outputs:
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(4))
    model.zero_grad()
    (logits * weights).sum().backward()  # type: ignore[no-untyped-call]
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return Outputs(logits.detach(), gradients)


@cache
def eager(family: str) -> Outputs:
    model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        tiny_config(family), attn_implementation="eager"
    ).eval()
    model.load_state_dict(causal_of(family).state_dict())
    return compute_outputs(model, torch.cat([model(ids[None]).logits[0] for ids in sequences()]))


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_rows_equal_separate_sequences_and_transformers(family: str) -> None:
    model = PretrainedModel(causal_of(family))
    packed = compute_outputs(model, logits_of(model, torch.cat(sequences()), LENGTHS))
    alone = compute_outputs(model, torch.cat([logits_of(model, ids, (len(ids),)) for ids in sequences()]))
    packed.assert_equals(eager(family))
    packed.assert_equals(alone)


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss", "gemma3_text"])
def test_activation_checkpointing_keeps_logits_and_gradients(family: str) -> None:
    model = PretrainedModel(causal_of(family))
    model.set_activation_checkpointing(True)
    recomputed = compute_outputs(model, logits_of(model, torch.cat(sequences()), LENGTHS))
    model.set_activation_checkpointing(False)
    kept = compute_outputs(model, logits_of(model, torch.cat(sequences()), LENGTHS))
    recomputed.assert_equals(kept)


@pytest.mark.parametrize("family", ["qwen3", "gpt_oss", "glm4_moe"])
def test_autocast_runs_experts_and_attention_in_bf16(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Autocast skips grouped products and positions widen queries; the residual stream stays float32."""
    model = PretrainedModel(causal_of(family))
    attention_dtypes = []

    def attend_here(q: Tensor, k: Tensor, v: Tensor, *layout: Any) -> Tensor:
        attention_dtypes.append({q.dtype, k.dtype, v.dtype})
        return attend_exact(q, k, v, *layout)

    monkeypatch.setattr("engine.models.attention.dispatch._attend_here", attend_here)
    dtypes = set()
    for block in model.blocks:
        block.register_forward_hook(lambda block, inputs, output: dtypes.add(output.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model.packed_hidden(torch.cat(sequences()), Segments.whole(LENGTHS, CPU))
    assert dtypes == {torch.float32}
    assert attention_dtypes == [{torch.bfloat16}] * len(model.blocks)
    with torch.no_grad():
        rounded = causal_of(family)
        for name, parameter in rounded.named_parameters():
            if "experts" in name:
                parameter.copy_(parameter.bfloat16())
        precise = PretrainedModel(rounded).packed_hidden(torch.cat(sequences()), Segments.whole(LENGTHS, CPU))
    assert 0 < (hidden - precise).norm() <= 0.2 * precise.norm()
    hidden.sum().backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.blocks[1].parameters())
