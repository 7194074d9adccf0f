"""Log-probabilities in chunks: exact, differentiable, and small in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.autograd import backward

from engine.inference.base import SamplingParams
from engine.inference.builtin.sampling import sample
from engine.models import logit_tiles
from engine.models import logprobs as module
from engine.models.base import Head
from engine.models.builtin.batch_invariance import choose_tiles
from engine.models.builtin.kv_cache import KVCache
from engine.models.caches.base import Piece
from engine.models.logprobs import token_logprobs
from engine.trainer.batch import Sample, make_microbatch
from engine.trainer.ranks import ALONE
from engine.trainer.scorer import Scorer
from tests.unit.models.small import VOCAB, model, prompt

torch.set_num_threads(1)
CPU = torch.device("cpu")


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
def test_it_is_the_log_softmax_and_its_gradient(
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
    found = torch.autograd.grad((slopes * torch.stack((logprobs, entropies))).sum(), (hidden, weight))
    wanted = torch.autograd.grad((slopes * torch.stack(expected)).sum(), (hidden, weight))
    torch.testing.assert_close((logprobs, entropies), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_gradcheck(monkeypatch: pytest.MonkeyPatch, softcap: float | None) -> None:
    monkeypatch.setattr(logit_tiles, "TILES", {"cpu": (2, 6)})
    hidden, weight, targets = inputs(5)

    def compute(hidden: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        head = Head(weight=weight, scale=1.3, softcap=softcap)
        logprobs, entropies = token_logprobs(hidden, head, targets, 0.7)
        assert entropies is not None
        return logprobs, entropies

    assert torch.autograd.gradcheck(compute, (hidden, weight), eps=1e-6, atol=1e-7)


@pytest.mark.parametrize("needs", [(True, False), (False, True)])
def test_only_the_gradients_that_are_needed_are_computed(
    monkeypatch: pytest.MonkeyPatch, needs: tuple[bool, bool]
) -> None:
    hidden, weight, targets = inputs(9)
    logprobs, _ = token_logprobs(hidden, Head(weight=weight), targets, 1.0)
    expected = torch.autograd.grad(logprobs.sum(), (hidden, weight))
    products: list[torch.Tensor] = []
    multiply = module._add_product

    def counted(total: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
        multiply(total, a, b)
        products.append(total)

    monkeypatch.setattr(module, "_add_product", counted)
    leaves = [x.detach().requires_grad_(need) for x, need in zip((hidden, weight), needs, strict=True)]
    backward(token_logprobs(leaves[0], Head(weight=leaves[1]), targets, 1.0)[0].sum())
    for leaf, need, gradient in zip(leaves, needs, expected, strict=True):
        assert (leaf.grad is not None) == need
        if leaf.grad is not None:
            assert torch.equal(leaf.grad, gradient)
    assert len(products) == 1


def test_a_tied_head_and_embedding_add_their_gradients() -> None:
    _, weight, targets = inputs(9)
    backward(token_logprobs(weight[targets], Head(weight=weight), targets, 1.0)[0].sum())
    found, weight.grad = weight.grad, None
    backward(full_table(weight[targets], Head(weight=weight), 1.0)[torch.arange(9), targets].sum())
    torch.testing.assert_close(found, weight.grad)


def test_bfloat16_products_sum_the_heads_gradient_in_float32() -> None:
    """Adding 400 equal bfloat16 parts in bfloat16 would stop growing at 256 of them."""
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
def test_weights_in_bfloat16_get_their_gradient_in_bfloat16(dtype: torch.dtype) -> None:
    hidden, weight, targets = inputs(64, dtype=torch.float32)
    low = weight.detach().bfloat16().requires_grad_()
    chosen = hidden.detach().to(dtype).requires_grad_()
    backward(token_logprobs(chosen, Head(weight=low), targets, 1.0)[0].sum())
    expected = full_table(hidden, Head(weight=weight), 1.0)[torch.arange(64), targets].sum()
    wanted = torch.autograd.grad(expected, (hidden, weight))
    for leaf, gradient in zip((chosen, low), wanted, strict=True):
        assert leaf.grad is not None
        assert leaf.grad.dtype == leaf.dtype
        assert (leaf.grad - gradient).norm() < 0.02 * gradient.norm()


def memory(name: str) -> int:
    """Return a number of ``/proc/self/status`` in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def test_the_whole_table_never_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    """2,048 positions over 32,000 tokens: 250 MiB a table, of which the plain way holds several.

    Ours holds what it may keep, here 16 MiB, and a few tiles.
    """
    monkeypatch.setattr(logit_tiles, "KEPT", 2**22)
    hidden, weight = torch.randn(2048, 16, requires_grad=True), torch.randn(32_000, 16, requires_grad=True)
    targets = torch.randint(32_000, (2048,))
    token_logprobs(hidden[:64], Head(weight=weight), targets[:64], 1.0)
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    before = memory("VmRSS:")
    backward(token_logprobs(hidden, Head(weight=weight), targets, 1.0)[0].sum())
    assert memory("VmHWM:") - before < 100 << 20


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.3, 0.95), (1.5, 0.7)])
def test_sampled_logprobs_equal_recomputed_ones(temperature: float, top_p: float) -> None:
    """What the cached sampler records against a packed forward, in the nucleus the recomputed logits give."""
    net = model()
    texts = [prompt(length, length) for length in (3, 20, 41)]
    cache = KVCache(net.config, 3, device=CPU, dtype=torch.float32)
    uniforms = torch.rand(30, 3, generator=torch.Generator().manual_seed(0)).tolist()
    new, starts = texts, [0, 0, 0]
    sampled: list[list[tuple[int, float]]] = [[], [], []]
    with torch.no_grad():
        for u in uniforms:
            pieces = [
                Piece(row=r, start=start, ids=ids)
                for r, (start, ids) in enumerate(zip(starts, new, strict=True))
            ]
            logits = net.extend(pieces, cache, choose_tiles(net).tiles)
            drawn = sample(logits, [SamplingParams(temperature=temperature, top_p=top_p)] * 3, u)
            for row, (token, logprob) in enumerate(zip(drawn.ids, drawn.logprobs, strict=True)):
                sampled[row].append((token, logprob))
            starts = [start + len(ids) for start, ids in zip(starts, new, strict=True)]
            new = [[token] for token in drawn.ids]
        for text, tokens in zip(texts, sampled, strict=True):
            whole = torch.tensor([[*text, *(token for token, _ in tokens)]])
            logits = net(whole, torch.tensor([whole.shape[1]]))[0][len(text) - 1 : -1]
            for (token, logprob), row in zip(tokens, logits, strict=True):
                table = torch.log_softmax(row / temperature, dim=0)
                if top_p < 1:
                    order = table.argsort(descending=True)
                    mass = table[order].double().exp().cumsum(0)
                    kept = order[: int((mass < top_p).sum()) + 1]
                    table = table - table[kept].logsumexp(0)
                assert abs(float(table[token]) - logprob) <= 1e-5


@pytest.mark.parametrize("temperature", [0.3, 1.0])
def test_the_trainers_forward_gives_the_samplers_log_probabilities(temperature: float) -> None:
    net = model()
    scorer = Scorer(net, precision="f32", ranks=ALONE)
    texts = [prompt(length, length) for length in (9, 30, 57)]
    samples = [
        Sample(
            ids=np.array(text[:-1], np.int32),
            positions=np.arange(len(text) - 1),
            targets=np.array(text[1:], np.int32),
            sampler_logprobs=np.zeros(len(text) - 1, np.float32),
        )
        for text in texts
    ]
    batch = make_microbatch(tuple(samples), CPU)
    with torch.no_grad():
        found = iter(scorer(batch, temperature)[0])
        for text in texts:
            logits = net(torch.tensor([text]), torch.tensor([len(text)]))[0, :-1]
            table = torch.log_softmax(logits / temperature, dim=1)
            for row, token in zip(table, text[1:], strict=True):
                assert abs(float(row[token] - next(found))) <= 1e-5
    assert batch.width == sum(len(text) - 1 for text in texts)
    assert table.shape[1] == VOCAB
