"""Two ranks compute what one computes, of every family: sharing a packed row, or sharding the parameters."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.multiprocessing.spawn import spawn
from torch.nn import functional

from engine.models.attention import Segments
from engine.models.published.networks import build_causal
from engine.models.published.pretrained import PretrainedModel
from engine.models.sharding import shard
from engine.trainer.packing import Layout, lay_out
from engine.trainer.ranks import ALONE, Ranks, RowExchange, SharedRow, shared_row
from tests.unit.models.tiny_families import FAMILIES, tiny_config

LENGTHS = (9, 14)
CPU = torch.device("cpu")
CASES: Mapping[str, tuple[str, dict[str, Any]]] = {
    **{family: (family, {}) for family in FAMILIES},
    "keys are gathered": ("qwen3", {"num_key_value_heads": 1}),
    "windows and sinks, keys are gathered": ("gpt_oss", {"num_key_value_heads": 1}),
    "three query heads for two ranks": ("mistral", {"num_attention_heads": 3, "num_key_value_heads": 3}),
}


def model_of(case: str) -> PretrainedModel:
    family, settings = CASES[case]
    causal = build_causal(tiny_config(family, **settings), seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in causal.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return PretrainedModel(causal)


def layout() -> Layout:
    """Four sequences, of which two begin alike."""
    a, b, c, d = (np.random.default_rng(n).integers(5, 300, 14 + n, np.int32) for n in range(4))
    return lay_out([a, np.concatenate([a[:9], b]), c, d], share=4)


def computed(case: str, row: SharedRow) -> tuple[Tensor, dict[str, Tensor]]:
    """Hidden states of this rank's tokens, and gradients of a fixed function of them."""
    model = model_of(case)
    ids = torch.from_numpy(layout().ids).long()
    weights = torch.randn(len(ids), 32, generator=torch.Generator().manual_seed(3))
    ids, weights = functional.pad(ids, (0, row.padding)), functional.pad(weights, (0, 0, 0, row.padding))
    if row.here is not None:
        ids, weights = ids[row.here], weights[row.here]
    hidden = model.packed_hidden(ids, row.segments)
    (hidden * weights).sum().backward()  # type: ignore[no-untyped-call]
    return hidden.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def _rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    try:
        place = Ranks.of(init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "context")))
        row = shared_row(layout(), place, CPU)
        found = {}
        for case in CASES:
            hidden, gradients = computed(case, row)
            for gradient in gradients.values():
                dist.all_reduce(gradient)
            found[case] = hidden, gradients
        mesh = init_device_mesh("cpu", (2,))
        shards = {family: sharded_gradients(family, [LENGTHS[rank]], mesh) for family in FAMILIES}
        torch.save((row.here, found, exchanged(row), shards), Path(folder) / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


class _Root(nn.Module):
    """A module around everything that touches a parameter."""

    def __init__(self, model: PretrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.model.packed_hidden(ids, Segments.whole([len(ids)], CPU))
        return hidden @ self.model.head.weight.T


def sharded_gradients(family: str, lengths: Sequence[int], mesh: DeviceMesh | None) -> dict[str, Tensor]:
    """Gradients of the sum over sequences of these lengths; with a mesh, over all ranks' sequences."""
    model = model_of(family)
    model.set_activation_checkpointing(mesh is not None)
    root = _Root(model)
    if mesh is not None:
        shard(root, model.blocks, mesh, compute=None)
    for length in lengths:
        generator = torch.Generator().manual_seed(length)
        ids = torch.randint(5, 300, (length,), generator=generator)
        weights = torch.randn(length, 320, generator=generator)
        (root(ids) * weights).sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name: g.full_tensor() if isinstance(g, DTensor) else g for name, g in gradients.items()}


def exchanged(row: SharedRow) -> tuple[Tensor, Tensor]:
    """A row of numbered tokens and heads, as this rank gets it, and its own part after the way back."""
    exchange = row.segments.exchange
    assert isinstance(exchange, RowExchange)
    assert row.here is not None
    numbers = (row.here[:, None] * 10 + torch.arange(4)).unsqueeze(2).double()
    scattered = exchange.scatter_heads(numbers)
    assert torch.equal(exchange.gather_heads(scattered), numbers)
    return scattered.squeeze(2), exchange.gather(numbers).squeeze(2)


@pytest.fixture(scope="module")
def both() -> list[Any]:
    with tempfile.TemporaryDirectory() as folder:
        spawn(_rank, args=(folder,), nprocs=2, join=True)  # type: ignore[no-untyped-call]
        return [torch.load(Path(folder) / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_compute_what_one_does(both: list[Any], case: str) -> None:
    total = len(layout().ids)
    hidden, gradients = computed(case, shared_row(layout(), ALONE, CPU))
    for here, found, _, _ in both:
        their_hidden, their_gradients = found[case]
        real = here < total
        assert (their_hidden[real] - hidden[here[real]]).abs().max() <= 1e-5 * hidden.abs().max()
        assert set(their_gradients) == set(gradients)
        for name, gradient in gradients.items():
            assert (their_gradients[name] - gradient).norm() <= 1e-5 * gradient.norm(), name


@pytest.mark.parametrize("family", FAMILIES)
def test_sharded_parameters_get_the_gradients_of_whole_ones(both: list[Any], family: str) -> None:
    expected = sharded_gradients(family, LENGTHS, None)
    for *_, shards in both:
        assert set(shards[family]) == set(expected)
        for name, gradient in expected.items():
            assert gradient.norm() > 0, name
            assert (shards[family][name] - gradient).norm() <= 1e-5 * gradient.norm(), name


def test_ranks_exchange_tokens_for_heads(both: list[Any]) -> None:
    """Each rank gets all tokens, in order, with its half of the heads; gathered, with all."""
    for rank, (_, _, (scattered, gathered), _) in enumerate(both):
        tokens = torch.arange(len(gathered))[:, None] * 10
        assert torch.equal(gathered, (tokens + torch.arange(4)).double())
        assert torch.equal(scattered, (tokens + torch.arange(2) + 2 * rank).double())
