"""Activations of a model's layers in bytes per token, measured by passes over tensors without storage.

The model's own code is measured, on a machine of any size. Attention over short pieces models the fused
kernels of GPUs, which keep queries, keys, values and outputs, but no scores.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

from engine.models.attention import Segments
from engine.models.base import LanguageModel
from engine.models.memory.live_bytes import LiveBytes
from engine.models.memory.plan import Activations

_PIECE = 31
_TOKENS = (8 * _PIECE, 16 * _PIECE)
"""Lengths of the two rows whose difference is measured, so that constant terms cancel out. No weight may have
one of them as a dimension."""


def measure_activations(
    model: LanguageModel, *, weights: torch.dtype | None = None, autocast: torch.dtype | None = None
) -> Activations:
    """Measure a model's activations; its parameters are not read and may be on the meta device.

    Args:
        model: with frozen weights and adapters as in training, without activation checkpointing.
        weights: type of the weights in the products, e.g. as FSDP2 gathers them; None: their own.
        autocast: type of autocast; None: off.
    """
    rows = []
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, _fakes(model, mode, weights):
        for tokens in _TOKENS:
            with torch.autocast("cpu", autocast, enabled=autocast is not None):
                rows.append(_measure(model, tokens))
    difference = _TOKENS[1] - _TOKENS[0]
    inputs, kept, layer, outside = (round((b - a) / difference) for a, b in zip(*rows, strict=True))
    return Activations(inputs=inputs, kept=kept, layer=layer, outside=outside)


@contextlib.contextmanager
def _fakes(model: nn.Module, mode: FakeTensorMode, dtype: torch.dtype | None) -> Iterator[None]:
    """Replace parameters and buffers by CPU tensors without storage; restore them on exit."""
    fakes: dict[int, Tensor] = {}
    owners: list[dict[str, Any]] = [p for m in model.modules() for p in (m._parameters, m._buffers)]
    kept = [(tensors, dict(tensors)) for tensors in owners]

    def fake(tensor: Tensor) -> Tensor:
        if id(tensor) not in fakes:
            target = dtype if tensor.is_floating_point() and isinstance(tensor, nn.Parameter) else None
            empty = torch.empty(tensor.shape, dtype=target or tensor.dtype, device="cpu")
            fakes[id(tensor)] = (
                nn.Parameter(empty, requires_grad=tensor.requires_grad)
                if isinstance(tensor, nn.Parameter)
                else mode.from_tensor(tensor.cpu())
            )
        return fakes[id(tensor)]

    for tensors, originals in kept:
        tensors.update({name: fake(t) for name, t in originals.items() if t is not None})
    try:
        yield
    finally:
        for tensors, originals in kept:
            tensors.update(originals)


def _measure(model: LanguageModel, tokens: int) -> tuple[int, int, int, int]:
    """Return the fields of ``Activations`` for a whole row."""
    ids = torch.zeros(tokens, dtype=torch.int64)
    segments = Segments.whole([_PIECE] * (tokens // _PIECE), ids.device)
    weights = {shape for p in model.parameters() for shape in (p.shape, p.shape[::-1])}
    with _without_layers(model) as calls, LiveBytes(weights) as whole:
        whole.exclude([*model.parameters(), *model.buffers(), ids, segments.positions])
        hidden = model.packed_hidden(ids, segments)
    inputs = sum(_first(args, kwargs).nbytes for _, args, kwargs in calls)
    outside = whole.now
    del hidden
    by_kind: dict[Hashable, tuple[int, int]] = {}
    for block, args, kwargs in calls:
        kind = _kind(block)
        if kind not in by_kind:
            by_kind[kind] = _measure_layer(block, args, kwargs, weights)
    kept = sum(by_kind[_kind(block)][0] for block, _, _ in calls)
    return inputs, kept, max(peak for _, peak in by_kind.values()), outside


Call = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


@contextlib.contextmanager
def _without_layers(model: LanguageModel) -> Iterator[list[Call]]:
    """Replace each layer by the identity; yield the list of recorded calls."""
    calls: list[Call] = []
    blocks = list(model.blocks)

    def stand_in(block: nn.Module) -> Any:
        def forward(*args: Any, **kwargs: Any) -> Tensor:
            calls.append((block, args, kwargs))
            return _first(args, kwargs)

        return forward

    for block in blocks:
        block.forward = stand_in(block)
    try:
        yield calls
    finally:
        for block in blocks:
            del block.forward


def _kind(block: nn.Module) -> Hashable:
    """Return a key that is equal for layers of one kind."""
    shapes = ((name, p.shape, p.requires_grad) for name, p in block.named_parameters())
    return type(block), tuple(shapes)


def _measure_layer(
    block: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], weights: set[torch.Size]
) -> tuple[int, int]:
    """Return the bytes kept after a layer's forward pass, and the peak including its backward pass."""

    def fresh(value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point():
            return value.detach().requires_grad_(value.requires_grad)
        return value

    args, kwargs = tree_map(fresh, args), tree_map(fresh, dict(kwargs))
    _first(args, kwargs).requires_grad_(True)  # even if the embedding is frozen: an earlier layer is not
    inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    with LiveBytes(weights) as live:
        live.exclude([*block.parameters(), *block.buffers(), *inputs])
        output = block(*args, **kwargs)
        kept = live.now
        output.backward(torch.ones_like(output))
    block.zero_grad()
    return kept, live.peak


def _first(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    hidden = args[0] if args else kwargs["hidden_states"]
    assert isinstance(hidden, Tensor)
    return hidden
