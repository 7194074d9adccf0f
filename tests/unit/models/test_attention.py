"""Attention over packed rows equals a plain formula, in every kernel available on CPUs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from engine.models.attention import Scoring, Segments, attend
from engine.models.attention.kernels import attend_flex

CPU = torch.device("cpu")
SCORINGS = {
    "plain": Scoring(),
    "scaled": Scoring(scale=0.7),
    "window": Scoring(window=4),
    "window of one": Scoring(window=1),
    "wide window": Scoring(window=1000),
    "softcap": Scoring(softcap=1.5),
    "sinks": Scoring(sinks=torch.tensor([-1.0, 0.0, 2.0, 5.0])),
    "all": Scoring(scale=0.3, window=5, softcap=2.0, sinks=torch.tensor([0.5, -3.0, 1.0, 0.0])),
}
LAYOUTS = {
    "whole": Segments.whole([9, 1, 30, 6], CPU),
    "a shared beginning": Segments(
        positions=torch.cat([torch.arange(12), torch.arange(8, 20), torch.arange(10, 32)]),
        lengths=(12, 12, 22),
        keys=(((0, 12),), ((0, 8), (12, 24)), ((0, 8), (12, 14), (24, 46))),
    ),
}


def attend_plainly(q: Tensor, k: Tensor, v: Tensor, segments: Segments, scoring: Scoring) -> Tensor:
    """Compute attention for one query of one head at a time."""
    outputs = torch.zeros(*q.shape[:2], v.shape[2], dtype=q.dtype)
    group, query = q.shape[1] // k.shape[1], 0
    for length, ranges in zip(segments.lengths, segments.keys, strict=True):
        key_places = torch.cat([torch.arange(start, end) for start, end in ranges])
        for number in range(length):
            visible = key_places[: len(key_places) - length + number + 1]
            visible = visible if scoring.window is None else visible[-scoring.window :]
            for head in range(q.shape[1]):
                scores = k[visible, head // group] @ q[query, head]
                scores = scores * (q.shape[2] ** -0.5 if scoring.scale is None else scoring.scale)
                if scoring.softcap is not None:
                    scores = scoring.softcap * torch.tanh(scores / scoring.softcap)
                total = (
                    scores if scoring.sinks is None else torch.cat([scores, scoring.sinks[head : head + 1]])
                )
                weights = (scores - total.logsumexp(0)).exp()
                outputs[query, head] = weights @ v[visible, head // group]
            query += 1
    return outputs


def inputs(kv_heads: int = 2, value_size: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    q, k = (torch.randn(46, heads, 8, generator=generator) for heads in (4, kv_heads))
    return q, k, torch.randn(46, kv_heads, value_size, generator=generator)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["window of one", "wide window", "all"])
def test_attention_equals_the_plain_formula(name: str, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.models.attention.exact._BLOCK", 7)
    q, k, v = inputs()
    segments, scoring = LAYOUTS[layout], SCORINGS[name]
    expected = attend_plainly(q, k, v, segments, scoring)
    for attention in (attend, partial(attend_flex, flex=flex_attention)):
        torch.testing.assert_close(attention(q, k, v, segments, scoring), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("kv_heads", "value_size"), [(1, 12), (4, 4)])
def test_attention_supports_shared_heads_and_other_value_sizes(kv_heads: int, value_size: int) -> None:
    q, k, v = inputs(kv_heads, value_size)
    segments = LAYOUTS["whole"]
    for scoring in SCORINGS.values():
        expected = attend_plainly(q, k, v, segments, scoring)
        torch.testing.assert_close(attend(q, k, v, segments, scoring), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", SCORINGS)
def test_attention_gradients_equal_those_of_the_plain_formula(name: str) -> None:
    sinks = SCORINGS[name].sinks
    leaves = [x.double().requires_grad_() for x in (*inputs(), *([] if sinks is None else [sinks]))]
    scoring = SCORINGS[name] if sinks is None else replace(SCORINGS[name], sinks=leaves[3])
    weights = torch.randn(46, 4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    gradients = []
    for attention in (attend, attend_plainly):
        output = attention(leaves[0], leaves[1], leaves[2], LAYOUTS["a shared beginning"], scoring)
        gradients.append(torch.autograd.grad((output * weights).sum(), leaves))
    for ours, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-10)
