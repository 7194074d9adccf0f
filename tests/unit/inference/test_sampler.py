from __future__ import annotations

import asyncio
import copy
import math
import threading
from collections import Counter
from typing import Any

import pytest
import torch

from engine.errors import ModelError
from engine.inference.base import Generation, SamplingParams
from engine.inference.builtin.sampler import TransformerPolicy
from engine.inference.builtin.sampling import sample
from engine.models.builtin.architectures import ARCHITECTURES
from engine.models.builtin.tiled_cache import TiledCache
from engine.models.builtin.transformer import Transformer
from engine.models.caches.base import Piece
from engine.models.chat.chatml import ChatML
from tests.unit.models.small import VOCAB, gap, model, prompt, recomputed, request, tokenizer


async def converse(policy: TransformerPolicy, index: int, turns: int = 3) -> list[Generation]:
    """Sample several turns; each prompt appends the sampled tokens and some new ones."""
    ids, generations = prompt(10 + index % 7, index), []
    for turn in range(turns):
        generation = await policy.generate(request(ids, seed=100 * index + turn, max_tokens=12))
        generations.append(generation)
        ids = [*ids, *generation.ids, *prompt(5 + index % 3, 1000 + index + turn)]
    return generations


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_sampled_logprobs_match_recomputed_logprobs(temperature: float) -> None:
    net = model()
    policy = TransformerPolicy(net, ChatML(tokenizer()), max_batch=4)
    prompts = [prompt(5 + 9 * i, i) for i in range(9)]
    generations = await asyncio.gather(
        *(policy.generate(request(p, seed=i, temperature=temperature)) for i, p in enumerate(prompts))
    )
    await policy.close()
    for ids, generation in zip(prompts, generations, strict=True):
        assert gap(net, ids, generation, temperature=temperature) <= 1e-5
        assert len(generation.entropy) == len(generation.versions) == len(generation.ids)


async def test_results_do_not_depend_on_the_rest_of_the_batch() -> None:
    """Results are equal bit for bit, so that arrival order does not affect training."""
    net = Transformer(ARCHITECTURES["quickstart"], seed=1)
    together = TransformerPolicy(net, ChatML(tokenizer()), max_batch=16)
    crowd = await asyncio.gather(*(converse(together, i) for i in range(12)))
    await together.close()
    narrow = TransformerPolicy(net, ChatML(tokenizer()), max_batch=1)
    for index in range(0, 12, 4):
        alone = await converse(narrow, index)
        for mine, theirs in zip(alone, crowd[index], strict=True):
            assert mine.ids == theirs.ids
            assert (mine.logprobs, mine.entropy) == (theirs.logprobs, theirs.entropy)
    await narrow.close()


def record_fed_lengths(net: Transformer, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the longest piece of every later forward pass in the returned list."""
    extend, fed = net.extend, list[int]()

    def counting(pieces: list[Piece], *rest: Any) -> torch.Tensor:
        fed.append(max(len(piece.ids) for piece in pieces))
        return extend(pieces, *rest)

    monkeypatch.setattr(net, "extend", counting)
    return fed


async def test_continued_prompts_feed_only_new_tokens_and_give_equal_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = model()
    fed = record_fed_lengths(net, monkeypatch)
    ids = prompt(40)
    policy = TransformerPolicy(net, ChatML(tokenizer()), max_batch=2)
    first = await policy.generate(request(ids, seed=1, max_tokens=6))
    longer = [*ids, *first.ids, *prompt(5, 9)]
    fed.clear()
    reused = await policy.generate(request(longer, seed=2, max_tokens=6))
    assert fed[0] == 6  # the last sampled token, which was never fed, and five new tokens
    policy.set_version(1)
    fed.clear()
    fresh = await policy.generate(request(longer, seed=2, max_tokens=6))
    assert fed[0] == len(longer)
    await policy.close()
    assert reused.ids == fresh.ids
    assert reused.logprobs == pytest.approx(fresh.logprobs, abs=1e-5)
    assert set(reused.versions) == {0}
    assert set(fresh.versions) == {1}


async def test_siblings_with_the_same_prompt_do_not_corrupt_caches() -> None:
    net = model()
    policy = TransformerPolicy(net, ChatML(tokenizer()), max_batch=8)
    ids = prompt(30)
    firsts = await asyncio.gather(*(policy.generate(request(ids, seed=s, max_tokens=8)) for s in range(4)))
    seconds = []
    for index, first in enumerate(firsts):
        longer = [*ids, *first.ids, *prompt(4, index)]
        seconds.append((longer, await policy.generate(request(longer, seed=50 + index))))
        await policy.generate(request(ids, seed=80 + index, max_tokens=3))
    await policy.close()
    for longer, generation in seconds:
        assert gap(net, longer, generation) <= 1e-5


async def test_siblings_reuse_the_cached_prefix_of_another_row(monkeypatch: pytest.MonkeyPatch) -> None:
    net = model()
    fed = record_fed_lengths(net, monkeypatch)
    shared = prompt(40)
    policy = TransformerPolicy(net, ChatML(tokenizer()), max_batch=4)
    await policy.generate(request(shared, seed=1, max_tokens=4))
    fed.clear()
    branch = [*shared, *prompt(7, 3)]
    borrowed = await policy.generate(request(branch, seed=2, max_tokens=4))
    assert fed[0] == 7
    fed.clear()
    again = await policy.generate(request(shared, seed=1, max_tokens=4))
    assert fed[0] == 1  # all but the last token, whose logits are needed
    policy.set_version(1)
    fed.clear()
    fresh = await policy.generate(request(branch, seed=2, max_tokens=4))
    assert fed[0] == len(branch)
    await policy.close()
    assert borrowed.ids == fresh.ids
    for generation, start in ((borrowed, branch), (again, shared)):
        assert gap(net, start, generation) <= 1e-5


async def test_generation_stops_at_the_stop_id_and_includes_it() -> None:
    policy = TransformerPolicy(model(), ChatML(tokenizer()))
    free = await policy.generate(request(prompt(8), seed=5, stop=VOCAB + 1, max_tokens=20))
    assert len(free.ids) == 20
    assert not free.stopped
    stop = free.ids[7]
    stopped = await policy.generate(request(prompt(8), seed=5, stop=stop, max_tokens=20))
    await policy.close()
    assert stopped.stopped
    assert stopped.ids == free.ids[: free.ids.index(stop) + 1]


async def test_greedy_sampling_takes_the_most_likely_token_with_its_logprob() -> None:
    net = model()
    policy = TransformerPolicy(net, ChatML(tokenizer()))
    generations = [await policy.generate(request(prompt(12), seed=s, temperature=0.0)) for s in (1, 2)]
    await policy.close()
    assert generations[0].ids == generations[1].ids
    ids = prompt(12)
    with torch.no_grad():
        logits = net(torch.tensor([ids]), torch.tensor([12]))[0, -1]
    assert generations[0].ids[0] == int(logits.argmax())
    assert generations[0].logprobs[0] == pytest.approx(float(torch.log_softmax(logits, -1).max()), abs=1e-5)


def test_samples_follow_the_distribution_and_top_p_renormalises_it() -> None:
    logits = torch.tensor([[0.5, 0.25, 0.15, 0.1]]).log()
    uniforms = torch.rand(4000, generator=torch.Generator().manual_seed(0)).tolist()
    many = logits.expand(4000, 4)
    full = Counter(sample(many, [SamplingParams()] * 4000, uniforms).ids)
    assert full[0] / 4000 == pytest.approx(0.5, abs=0.03)
    assert full[3] / 4000 == pytest.approx(0.1, abs=0.02)
    cut = sample(many, [SamplingParams(top_p=0.7)] * 4000, uniforms)
    assert set(cut.ids) == {0, 1}
    first = cut.ids.index(0)
    assert cut.logprobs[first] == pytest.approx(math.log(2 / 3), abs=1e-5)
    entropy = -(2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3))
    assert cut.entropy[first] == pytest.approx(entropy, abs=1e-5)
    assert sample(logits, [SamplingParams()], [0.999999]).ids == [3]


async def test_a_cancelled_request_frees_its_batch_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    net = model()
    policy = TransformerPolicy(net, ChatML(tokenizer()), max_batch=1)
    await policy.generate(request(prompt(9, 1), max_tokens=1))  # the first request measures batch invariance
    extend, num_passes = net.extend, 0
    entered, gate = threading.Event(), threading.Event()

    def held(*arguments: Any) -> torch.Tensor:
        nonlocal num_passes
        num_passes += 1
        entered.set()
        assert gate.wait(240)
        return extend(*arguments)

    monkeypatch.setattr(net, "extend", held)
    long = asyncio.create_task(policy.generate(request(prompt(4), max_tokens=250, stop=VOCAB + 1)))
    assert await asyncio.to_thread(entered.wait, 240)  # its prompt is fed, so it has the slot
    long.cancel()
    with pytest.raises(asyncio.CancelledError):
        await long
    gate.set()
    assert (await policy.generate(request(prompt(4), max_tokens=2, stop=VOCAB + 1))).ids
    await policy.close()
    assert num_passes == 3  # the cancelled prompt, and two tokens of the other request


async def test_impossible_requests_and_a_closed_policy_raise_model_errors() -> None:
    policy = TransformerPolicy(model(), ChatML(tokenizer()))
    with pytest.raises(ModelError, match="context of 256"):
        await policy.generate(request(prompt(250), max_tokens=24))
    with pytest.raises(ModelError, match="empty"):
        await policy.generate(request([]))
    with pytest.raises(ModelError, match="sampling failed"):
        await policy.generate(request([VOCAB + 5]))
    assert (await policy.generate(request(prompt(4)))).ids
    await policy.close()
    with pytest.raises(ModelError, match="closed"):
        await policy.generate(request(prompt(4)))


async def test_an_error_of_the_cache_reaches_requests_without_a_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = TransformerPolicy(model(), ChatML(tokenizer()), max_batch=4)
    await policy.generate(request(prompt(40), max_tokens=4))

    def fail(*_: Any) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(TiledCache, "copy", fail)
        siblings = [policy.generate(request([*prompt(40), *prompt(5, seed)])) for seed in (1, 2, 3)]
        async with asyncio.timeout(30):
            failures = await asyncio.gather(*siblings, return_exceptions=True)
    assert [str(failure) for failure in failures] == ["sampling failed: RuntimeError: out of memory"] * 3
    assert (await policy.generate(request(prompt(4)))).ids
    await policy.close()


def test_top_k_and_min_p_keep_the_most_likely_tokens_and_renormalise() -> None:
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log().expand(3, 4)
    params = [SamplingParams(top_k=2), SamplingParams(min_p=0.5), SamplingParams(top_k=3, top_p=0.7)]
    samples = sample(logits, params, [0.99] * 3)
    assert samples.ids == [1, 2, 1]
    kept = ([0.4, 0.3], [0.4, 0.3, 0.2], [0.4, 0.3])
    for token, logprob, entropy, likely in zip(*samples, kept, strict=True):
        shares = [x / sum(likely) for x in likely]
        assert logprob == pytest.approx(math.log(shares[token]), abs=1e-5)
        assert entropy == pytest.approx(-sum(x * math.log(x) for x in shares), abs=1e-5)
    equal = sample(torch.zeros(1, 6), [SamplingParams(top_k=2)], [0.99])
    assert equal.logprobs == pytest.approx([math.log(1 / 2)]), "exactly k"


async def test_a_publication_during_a_sequence_takes_effect_at_the_next_token() -> None:
    """Each token's log-probability matches its version's weights over the whole prefix."""
    first, trained = model(), model()
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    sampling, calls = copy.deepcopy(first), 0
    extend = sampling.extend

    def counting(*arguments: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return extend(*arguments)

    sampling.extend = counting  # type: ignore[assignment, method-assign]
    policy = TransformerPolicy(sampling, ChatML(tokenizer()), max_batch=4, trained=trained)
    prompts = [prompt(20 + i, i) for i in range(3)]
    running = [
        asyncio.create_task(policy.generate(request(ids, seed=i, max_tokens=150)))
        for i, ids in enumerate(prompts)
    ]
    while calls < 5:
        await asyncio.sleep(0)
    await policy.publish(1, StubWeights())
    generations = await asyncio.gather(*running)
    await policy.close()
    assert any(len(set(generation.versions)) == 2 for generation in generations), "nothing was in flight"
    for ids, generation in zip(prompts, generations, strict=True):
        assert list(generation.versions) == sorted(generation.versions)
        expected = [recomputed(net, [*ids, *generation.ids])[len(ids) - 1 :] for net in (first, trained)]
        for position, version in enumerate(generation.versions):
            assert generation.logprobs[position] == pytest.approx(expected[version][position], abs=1e-5)


class StubWeights:
    """Source of weights that a sampler in the trainer's process never uses."""

    async def send_weights(self, consumer: Any) -> Any:
        raise AssertionError

    async def logprobs(self, ids: Any) -> list[float]:
        raise AssertionError
