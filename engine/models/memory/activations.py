"""Activations of a model's layers in bytes per token, found by passes over tensors without storage.

Any architecture is measured as it computes, on a machine that could not hold it. Attention over short pieces
stands for the fused kernels of GPUs, which keep queries, keys, values and outputs, and no table of scores.
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
"""Lengths of the two rows whose difference is measured: what does not grow with tokens cancels out. They are
no size that a weight has."""


def measure_activations(
    model: LanguageModel, *, weights: torch.dtype | None = None, autocast: torch.dtype | None = None
) -> Activations:
    """Measure a model; its parameters are not used, so that it may be on the meta device.

    Args:
        model: frozen and with adapters as it is to be trained, without activation checkpointing.
        weights: type of the weights in the products, e.g. as FSDP2 gathers them; None: their own.
        autocast: type of autocast; None: off.
    """
    rows = []
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, _fakes(model, mode, weights):
        for tokens in _TOKENS:
            with torch.autocast("cpu", autocast, enabled=autocast is not None):
                rows.append(_measure(model, tokens))
    more = _TOKENS[1] - _TOKENS[0]
    inputs, kept, layer, outside = (round((b - a) / more) for a, b in zip(*rows, strict=True))
    return Activations(inputs=inputs, kept=kept, layer=layer, outside=outside)


@contextlib.contextmanager
def _fakes(model: nn.Module, mode: FakeTensorMode, dtype: torch.dtype | None) -> Iterator[None]:
    """Replace parameters and buffers by tensors on the CPU that have no storage, then put them back."""
    made: dict[int, Tensor] = {}
    places: list[dict[str, Any]] = [p for m in model.modules() for p in (m._parameters, m._buffers)]
    kept = [(tensors, dict(tensors)) for tensors in places]

    def fake(tensor: Tensor) -> Tensor:
        if id(tensor) not in made:
            wanted = dtype if tensor.is_floating_point() and isinstance(tensor, nn.Parameter) else None
            empty = torch.empty(tensor.shape, dtype=wanted or tensor.dtype, device="cpu")
            made[id(tensor)] = (
                nn.Parameter(empty, requires_grad=tensor.requires_grad)
                if isinstance(tensor, nn.Parameter)
                else mode.from_tensor(tensor.cpu())
            )
        return made[id(tensor)]

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
        whole.know([*model.parameters(), *model.buffers(), ids, segments.positions])
        hidden = model.packed_hidden(ids, segments)
    inputs = sum(_first(args, kwargs).nbytes for _, args, kwargs in calls)
    outside = whole.now
    del hidden
    found: dict[Hashable, tuple[int, int]] = {}
    for block, args, kwargs in calls:
        kind = _kind(block)
        if kind not in found:
            found[kind] = _measure_layer(block, args, kwargs, weights)
    kept = sum(found[_kind(block)][0] for block, _, _ in calls)
    return inputs, kept, max(peak for _, peak in found.values()), outside


Call = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


@contextlib.contextmanager
def _without_layers(model: LanguageModel) -> Iterator[list[Call]]:
    """Let each layer return its input, and yield the list of the calls to them."""
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
    """Return a value that layers of one kind share."""
    shapes = ((name, p.shape, p.requires_grad) for name, p in block.named_parameters())
    return type(block), tuple(shapes)


def _measure_layer(
    block: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], weights: set[torch.Size]
) -> tuple[int, int]:
    """Return the bytes that a layer keeps after its forward pass, and the maximum with its backward pass."""

    def fresh(value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point():
            return value.detach().requires_grad_(value.requires_grad)
        return value

    args, kwargs = tree_map(fresh, args), tree_map(fresh, dict(kwargs))
    _first(args, kwargs).requires_grad_(True)  # also where the embedding is frozen: a layer before it is not
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    with LiveBytes(weights) as live:
        live.know([*block.parameters(), *block.buffers(), *given])
        output = block(*args, **kwargs)
        kept = live.now
        output.backward(torch.ones_like(output))
    block.zero_grad()
    return kept, live.peak


def _first(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    hidden = args[0] if args else kwargs["hidden_states"]
    assert isinstance(hidden, Tensor)
    return hidden
