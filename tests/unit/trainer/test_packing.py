"""Packing of sequences: common prefixes are computed once without changing results."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from engine.config.learning.algorithm import AlgorithmConfig
from engine.config.learning.trainer import TrainerConfig
from engine.models.attention import Scoring, Segments, attend
from engine.models.attention.kernels import attend_flex
from engine.models.builtin.transformer import Transformer
from engine.tokens import TokenRecord
from engine.trainer.packing import Ids, Layout, lay_out, pack, packed_length
from engine.trainer.trainer import Trainer
from engine.types import Group
from tests.unit.trainer.builders.rl_builders import make_group, make_trajectory, random_tokens
from tests.unit.trainer.builders.rl_model import VOCAB, make_model, recorded
from tests.unit.trainer.test_trainer import gradient_of

HEADS, KV_HEADS, SIZE = 4, 2, 16
SCORINGS = {
    "plain": Scoring(),
    "window": Scoring(window=5),
    "sinks": Scoring(sinks=torch.tensor([0.5, -1.0, 0.0, 2.0], dtype=torch.float64)),
    "softcap": Scoring(softcap=3.0, window=7),
}

sequences_of_few_tokens = st.lists(
    st.lists(st.integers(0, 2), min_size=1, max_size=12).map(lambda ids: np.array(ids, np.int32)),
    min_size=1,
    max_size=8,
)


def siblings() -> list[Ids]:
    """Return four sequences with a common prompt (two share more, two are equal) and an unrelated one."""
    rng = np.random.default_rng(0)
    prompt, turn = rng.integers(0, 50, 20), rng.integers(0, 50, 9)
    tails = [rng.integers(50, 99, n) for n in (3, 8, 5)]
    whole = [
        np.concatenate([prompt, tails[0]]),
        np.concatenate([prompt, turn, tails[1]]),
        np.concatenate([prompt, turn, tails[2]]),
        np.concatenate([prompt, tails[0]]),
        rng.integers(0, 50, 11),
    ]
    return [ids.astype(np.int32) for ids in whole]


def segments_of(layout: Layout) -> Segments:
    return Segments(positions=torch.from_numpy(layout.positions), lengths=layout.lengths, keys=layout.keys)


@given(sequences=sequences_of_few_tokens, share=st.integers(1, 4))
def test_layout_contains_every_sequence_and_each_common_prefix_once(sequences: list[Ids], share: int) -> None:
    layout = lay_out(sequences, share=share)
    for ids, places in zip(sequences, layout.places, strict=True):
        assert layout.ids[places].tolist() == ids.tolist()
        assert layout.positions[places].tolist() == list(range(len(ids)))
    assert len(layout.ids) == packed_length(sequences, share=share)
    if share == 1:
        prefixes = {tuple(ids[: n + 1].tolist()) for ids in sequences for n in range(len(ids))}
        assert len(layout.ids) == len(prefixes)
    assert sum(layout.lengths) == len(layout.ids)


@given(sequences=sequences_of_few_tokens, budget=st.integers(4, 40), share=st.integers(1, 6))
@settings(max_examples=200)
def test_packed_rows_contain_each_sequence_once_within_the_budget(
    sequences: list[Ids], budget: int, share: int
) -> None:
    rows = pack(sequences, budget, share=share)
    assert sorted(index for row in rows for index in row) == list(range(len(sequences)))
    sizes = [len(lay_out([sequences[i] for i in row], share=share).ids) for row in rows]
    assert all(size <= budget or len(row) == 1 for size, row in zip(sizes, rows, strict=True))


def test_siblings_share_a_row_even_if_an_unrelated_sequence_fits_better() -> None:
    prompt = np.arange(30, dtype=np.int32)
    members = [np.concatenate([prompt, np.full(10, 50 + n, np.int32)]) for n in range(3)]
    unrelated = np.full(35, 99, np.int32)
    assert sorted(map(sorted, pack([members[0], unrelated, *members[1:]], 60, share=8))) == [[0, 2, 3], [1]]


def test_siblings_exceeding_the_budget_are_split_into_rows_with_a_repeated_prefix() -> None:
    prompt = np.arange(30, dtype=np.int32)
    members = [np.concatenate([prompt, np.full(10, 50 + n, np.int32)]) for n in range(4)]
    assert sorted(map(sorted, pack(members, 50, share=8))) == [[0, 1], [2, 3]]


Projected = tuple[Tensor, Tensor, Tensor]


def run_attention(qkv: Projected, segments: Segments, scoring: Scoring, *, flex: bool = False) -> Tensor:
    q, k, v = qkv
    return (
        attend_flex(q, k, v, segments, scoring, flex_attention)
        if flex
        else attend(q, k, v, segments, scoring)
    )


def select_tokens(qkv: Projected, places: Tensor) -> Projected:
    q, k, v = qkv
    return q[places], k[places], v[places]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("flex", [False, True], ids=["exact", "flex"])
@pytest.mark.parametrize("name", SCORINGS)
def test_packed_attention_and_gradients_equal_those_of_separate_sequences(name: str, flex: bool) -> None:
    scoring = SCORINGS[name]
    layout = lay_out(siblings(), share=4)
    sequence_places = [torch.from_numpy(places) for places in layout.places]
    generator = torch.Generator().manual_seed(1)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64, requires_grad=not flex)

    width = len(layout.ids)
    qkv = randn(width, HEADS, SIZE), randn(width, KV_HEADS, SIZE), randn(width, KV_HEADS, SIZE)
    packed = run_attention(qkv, segments_of(layout), scoring, flex=flex)
    alone = [
        run_attention(select_tokens(qkv, places), Segments.whole([len(places)], torch.device("cpu")), scoring)
        for places in sequence_places
    ]
    together = [packed[places] for places in sequence_places]
    torch.testing.assert_close(torch.cat(together), torch.cat(alone), rtol=1e-9, atol=1e-12)
    if flex:  # uncompiled flex_attention has no gradients
        return
    factors = torch.randn(sum(map(len, alone)), HEADS, SIZE, generator=generator, dtype=torch.float64)
    expected = torch.autograd.grad((torch.cat(alone) * factors).sum(), qkv)
    gradients = torch.autograd.grad((torch.cat(together) * factors).sum(), qkv)
    for gradient, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-9, atol=1e-12)


PROMPT = 40


def siblings_of_a_prompt(model: Transformer) -> list[Group]:
    """Return two groups, each of four members with one prompt."""
    rng = random.Random(0)
    groups = []
    for name in "ab":
        prompt = [rng.randrange(VOCAB) for _ in range(PROMPT)]
        members = []
        for index in range(4):
            rest = random_tokens(rng, vocab=VOCAB, length=rng.randint(12, 20))
            tokens = TokenRecord(
                ids=[*prompt, *rest.ids.tolist()],
                mask=[*[False] * PROMPT, *rest.mask.tolist()],
                logprobs=[0.0] * (PROMPT + len(rest)),
            )
            trajectory = make_trajectory(
                float(index % 2), index=index, task_id=name, tokens=recorded(model, tokens)
            )
            members.append(trajectory)
        groups.append(make_group(members, name))
    return groups


def updated(groups: list[Group], budget: int) -> tuple[Tensor, dict[str, float]]:
    """Return the full gradient of an optimizer step before clipping, and the metrics."""
    model = make_model()
    config = TrainerConfig(minibatches=1, threads=1, tokens_per_microbatch=budget)
    trainer = Trainer(model, algorithm=AlgorithmConfig(), config=config, max_context=128, seed=0)
    with gradient_of(model) as sums:
        metrics = trainer.update(groups, temperature=1.0).metrics
    return torch.cat([total.flatten() for total in sums]), metrics


@pytest.mark.parametrize("budget", [64, 128, 4096])
def test_a_packed_update_has_the_gradient_of_separate_sequences(
    monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    groups = siblings_of_a_prompt(make_model())
    shared, metrics = updated(groups, budget)
    monkeypatch.setattr("engine.trainer.batch._SHARE", 10_000)
    separate, separate_metrics = updated(groups, 64)
    assert float((shared - separate).norm() / separate.norm()) < 1e-6
    assert metrics["loss/value"] == pytest.approx(separate_metrics["loss/value"], abs=1e-7)
    assert separate_metrics["tokens/shared_share"] == 0
    if budget == 4096:
        tokens = sum(int(np.flatnonzero(t.tokens.mask)[-1]) for group in groups for t in group.trajectories)
        assert metrics["tokens/shared_share"] == pytest.approx(6 * PROMPT / tokens)
