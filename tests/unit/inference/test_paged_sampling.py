"""The sampler with models of other families, whose key-value cache is paged."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from engine.inference.base import Generation
from engine.inference.builtin.sampler import TransformerPolicy
from engine.models.attention import Segments
from engine.models.base import logits_of
from engine.models.caches.base import Piece
from engine.models.caches.paged import PAGE, PagedCache
from engine.models.chat.chatml import ChatML
from engine.models.precision import rounded_copy
from engine.models.published.networks import build_causal
from engine.models.published.pretrained import PretrainedModel
from engine.orchestrator.policies.frozen_weights import FrozenWeights
from engine.tokens import TokenRecord
from engine.trainer.batch import make_microbatch, make_sample
from engine.trainer.ranks import ALONE
from engine.trainer.scorer import Scorer
from tests.unit.models.small import gap, prompt, request, tokenizer
from tests.unit.models.tiny_families import FAMILIES, tiny_config

CPU = torch.device("cpu")


def make_model(family: str, dtype: torch.dtype = torch.float32) -> PretrainedModel:
    torch.set_num_threads(1)
    return PretrainedModel(build_causal(tiny_config(family), dtype=dtype))


def ids_of(length: int, seed: int) -> list[int]:
    return [5 + i % 300 for i in prompt(length, seed)]


async def converse(policy: TransformerPolicy, index: int) -> list[tuple[list[int], Generation]]:
    ids, turns = ids_of(30, 7) + ids_of(3 + index, index), []
    for turn in range(3):
        generation = await policy.generate(request(ids, seed=10 * index + turn, max_tokens=9, stop=1))
        turns.append((ids, generation))
        ids = [*ids, *generation.ids, *ids_of(20, 100 + index + turn)]
    return turns


@pytest.mark.parametrize("family", FAMILIES)
async def test_sampled_logprobs_match_recomputed_logprobs(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Conversations share a prefix, have several turns, and join and leave the batch."""
    monkeypatch.setattr("engine.models.caches.paged._BATCH", 2)
    net = make_model(family)
    policy = TransformerPolicy(net, ChatML(tokenizer()), max_batch=3)
    conversations = await asyncio.gather(*(converse(policy, index) for index in range(5)))
    await policy.close()
    assert policy.is_batch_invariant is False
    for ids, generation in [turn for turns in conversations for turn in turns]:
        assert gap(net, ids, generation) <= 1e-5


async def test_new_weights_invalidate_the_cache() -> None:
    net = make_model("qwen3")
    policy = TransformerPolicy(net, ChatML(tokenizer()), max_batch=2)
    ids = ids_of(40, 1)
    first = await policy.generate(request(ids, seed=1, max_tokens=5, stop=1))
    with torch.no_grad():
        net.head.weight.mul_(1.5)
        for parameter in net.blocks[0].parameters():
            parameter.mul_(1.2)
    policy.set_version(1)
    ids = [*ids, *first.ids, *ids_of(4, 2)]
    second = await policy.generate(request(ids, seed=2, max_tokens=5, stop=1))
    await policy.close()
    assert gap(net, ids, second) <= 1e-5


@torch.no_grad()
def test_chunked_prompts_give_the_logits_of_the_whole_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    net, text = make_model("gpt_oss"), ids_of(100, 3)
    whole = torch.tensor(text)
    expected = logits_of(net.packed_hidden(whole, Segments.whole([len(text)], CPU))[-1], net.head)
    monkeypatch.setattr("engine.models.caches.paged._CHUNK", 17)
    cache = PagedCache(net, 2)
    beside = Piece(row=1, start=0, ids=ids_of(23, 4))
    for start, end in pairwise((0, 41, 42, 100)):
        pieces = [Piece(row=0, start=start, ids=text[start:end]), *([beside] if start == 0 else [])]
        logits = cache.feed(pieces)
    torch.testing.assert_close(logits[0], expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_the_end_of_a_cut_prompt_is_fed_beside_shorter_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    net, text, others = make_model("qwen3"), ids_of(33, 3), [ids_of(7, 4), ids_of(5, 6)]
    cache = PagedCache(net, 3)
    cache.feed([Piece(row=row, start=0, ids=ids[:-1]) for row, ids in enumerate(others, 1)])
    monkeypatch.setattr("engine.models.caches.paged._CHUNK", 32)
    last = [Piece(row=row, start=len(ids) - 1, ids=ids[-1:]) for row, ids in enumerate(others, 1)]
    logits = cache.feed([Piece(row=0, start=0, ids=text), *last])
    for ids, row in zip((text, *others), logits, strict=True):
        alone = PagedCache(net, 1).feed([Piece(row=0, start=0, ids=ids)])
        torch.testing.assert_close(row, alone[0], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_copies_fit_into_a_full_cache() -> None:
    net, text = make_model("qwen3"), ids_of(PAGE + 3, 5)
    cache = PagedCache(net, 40)
    cache.feed([Piece(row=0, start=0, ids=text)])
    for row in range(1, 40):
        cache.copy(0, row, 0, PAGE + 3)
    logits = cache.feed([Piece(row=39, start=len(text), ids=[9])])
    alone = PagedCache(net, 1).feed([Piece(row=0, start=0, ids=[*text, 9])])
    torch.testing.assert_close(logits, alone, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_rows_share_pages_until_they_diverge_and_free_them() -> None:
    net, text = make_model("qwen3"), ids_of(3 * PAGE + 5, 5)
    cache = PagedCache(net, 3)

    def check(row: int, ids: list[int], logits: Tensor) -> None:
        alone = PagedCache(net, 1).feed([Piece(row=0, start=0, ids=ids)])
        torch.testing.assert_close(logits, alone[0], rtol=1e-5, atol=1e-5)
        assert len(cache.layers[0][0]) == 6 * PAGE, f"row {row}"  # capacity for half as many again at most

    check(0, text, cache.feed([Piece(row=0, start=0, ids=text)])[0])
    cache.copy(0, 1, 0, len(text))  # three shared pages, and a last page of each row
    tails = [ids_of(7, 6), ids_of(7, 8)]
    logits = cache.feed([Piece(row=row, start=len(text), ids=tail) for row, tail in enumerate(tails)])
    for row, tail in enumerate(tails):
        check(row, [*text, *tail], logits[row])
    cache.clear(0)
    other = ids_of(2 * PAGE, 9)  # takes a freed page and the sixth
    check(0, other, cache.feed([Piece(row=0, start=0, ids=other)])[0])
    longer = [*text, *tails[1]]
    check(1, [*longer, 9], cache.feed([Piece(row=1, start=len(longer), ids=[9])])[0])
    cache.clear(0)
    cache.clear(1)
    check(2, text, cache.feed([Piece(row=2, start=0, ids=text)])[0])


async def test_prompts_of_siblings_are_fed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    net, ids = make_model("qwen3"), ids_of(60, 1)
    fed: list[int] = []
    feed = PagedCache.feed

    def counted(cache: PagedCache, pieces: Sequence[Piece]) -> Tensor:
        fed.extend(len(piece.ids) for piece in pieces)
        return feed(cache, pieces)

    monkeypatch.setattr(PagedCache, "feed", counted)
    policy = TransformerPolicy(net, ChatML(tokenizer()), max_batch=4)
    requests = [request(ids, seed=seed, max_tokens=3, stop=1) for seed in range(4)]
    generations = await asyncio.gather(*(policy.generate(one) for one in requests))
    await policy.close()
    assert [number for number in fed if number > 1] == [60]
    for generation in generations:
        assert gap(net, ids, generation) <= 1e-5


async def test_half_precision_logprobs_match_the_trainer() -> None:
    """A rounded copy rounds like the trainer, after an update too; float32 sampling would differ more."""
    net = make_model("qwen3")
    copy = rounded_copy(net, torch.bfloat16)
    assert net.head.weight.dtype == torch.float32
    with torch.no_grad():
        net.head.weight.mul_(1.5)
    scorer = Scorer(net, precision="bf16", ranks=ALONE)
    gaps = {}
    for low, model in ((torch.bfloat16, copy), (None, net)):
        policy = TransformerPolicy(model, ChatML(tokenizer()), low=low, trained=net)
        await policy.publish(1, FrozenWeights(net))
        ids = ids_of(40, 3)
        generation = await policy.generate(request(ids, seed=4, max_tokens=24, stop=1))
        await policy.close()
        record = TokenRecord(
            ids=[*ids, *generation.ids],
            mask=[*[False] * len(ids), *[True] * len(generation.ids)],
            logprobs=[*[0.0] * len(ids), *generation.logprobs],
        )
        batch = make_microbatch((make_sample(record),), CPU)
        with torch.no_grad():
            logprobs = scorer(batch, 1.0, entropy=False)[0]
        gaps[low] = float((logprobs - batch.sampler_logprobs).abs().mean())
    assert gaps[torch.bfloat16] < gaps[None] / 2
