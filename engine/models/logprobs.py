"""Log-probabilities and entropies of given tokens without the table of all logits.

The table [N, V] of 64,000 positions and 152,000 tokens has 39 GB in float32. Here only one tile of it exists
at a time, forwards and backwards: blocks of the vocabulary, and of positions inside each. A gibibyte of
logits is kept for the backward pass; all others are computed again.
With the raw logits x = hidden · weightᵀ, the head's scale s and cap c, z = c tanh(s x / c) / T (without a
cap: s x / T), the running log-sum-exp λ and p = exp(z − λ)

    log π(t) = z_t − λ                   ∂ log π(t) / ∂ z_j = [j = t] − p_j
    H        = − Σ p_j log p_j           ∂ H / ∂ z_j        = − p_j (log p_j + H)

Two parts of the vocabulary with λ₁, H₁ and λ₂, H₂ combine to λ = log(e^λ₁ + e^λ₂) and, with shares
wᵢ = e^(λᵢ − λ), the entropy H = Σ wᵢ (Hᵢ − log wᵢ).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engine.models import logit_tiles
from engine.models.base import Head


def token_logprobs(
    hidden: Tensor, head: Head, targets: Tensor, temperature: float, *, entropy: bool = True
) -> tuple[Tensor, Tensor | None]:
    """Return each target's log-probability and its distribution's entropy, both [N] and differentiable.

    Memory, besides results and gradients (summed in float32), does not depend on N and V: at most 1 GiB of
    logits for the backward pass, a few tiles of them (1 MiB each on a CPU, 256 MiB on a GPU) and one block of
    the head. Logits beyond that are computed again: four matrix products instead of three.

    Args:
        hidden: [N, H], final hidden states; their dtype is the matrix products'.
        head: the output layer; its gradient is summed in float32, and skipped if not required.
        targets: int64 [N].
        temperature: logits are divided by it, > 0.
        entropy: False leaves the entropies out, which is cheaper.

    Returns:
        In float32, or in float64 for float64 input; entropy in nats, None where left out.
    """
    logits = _Logits(scale=head.scale / temperature, cap=head.softcap and head.softcap / temperature)
    logprobs, entropies = _TokenLogprobs.apply(hidden, head.weight, targets, logits, entropy)  # type: ignore[no-untyped-call]
    return logprobs, entropies


@dataclass(frozen=True, slots=True)
class _Logits:
    """Map from hidden states to logits divided by the temperature."""

    scale: float
    cap: float | None

    def write(self, z: Tensor, hidden: Tensor, weight: Tensor) -> None:
        """Fill the tile z [n, v], float32 or float64."""
        product(hidden, weight.T, out=z)
        if self.scale != 1.0:
            z *= self.scale
        if self.cap is not None:
            z.div_(self.cap).tanh_().mul_(self.cap)

    def chain(self, change: Tensor, z: Tensor) -> Tensor:
        """Turn the gradient of z into that of the raw logits, in place."""
        if self.cap is not None:
            change *= 1 - (z / self.cap).square()
        return change if self.scale == 1.0 else change.mul_(self.scale)


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, logits: _Logits, entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        wide = _wide(hidden.dtype)
        total = hidden.new_full((len(hidden),), -torch.inf, dtype=torch.float64)
        chosen = torch.zeros_like(total)
        entropies = torch.zeros_like(total) if entropy else None
        room = logit_tiles.KEPT if any(ctx.needs_input_grad) else 0
        kept = hidden.new_empty(min(room, len(hidden) * len(weight)), dtype=wide)
        with torch.autocast(hidden.device.type, enabled=False):
            for columns, rows, block, z, _ in _tiles(hidden, weight, kept):
                logits.write(z, hidden[rows], block)
                inside, offsets = _inside(targets[rows], columns)
                chosen[rows][inside] = z[inside, offsets].double()
                peak = z.amax(1, keepdim=True)
                part = (z - peak).exp_().sum(1).double().log_() + peak.squeeze(1)
                before = total[rows].clone()
                total[rows] = torch.logaddexp(before, part)
                if entropies is not None:
                    shares = (torch.stack((before, part)) - total[rows]).exp()
                    logp = z - part.to(wide).unsqueeze(1)
                    inner = torch.stack((entropies[rows], -(logp.exp().mul_(logp)).sum(1).double()))
                    entropies[rows] = (shares * inner + torch.special.entr(shares)).sum(0)
        logprobs, total = (chosen - total).to(wide), total.to(wide)
        entropies = None if entropies is None else entropies.to(wide)
        ctx.save_for_backward(hidden, weight, targets, total, entropies, kept)
        ctx.logits = logits
        ctx.set_materialize_grads(False)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, total, entropies, kept = ctx.saved_tensors
        slopes, for_entropies = gradients
        slopes = torch.zeros_like(total) if slopes is None else slopes
        for_hidden, for_weight = (
            torch.zeros_like(x, dtype=_wide(x.dtype)) if needed else None
            for x, needed in zip((hidden, weight), ctx.needs_input_grad, strict=False)
        )
        with torch.autocast(hidden.device.type, enabled=False):
            for columns, rows, block, z, is_kept in _tiles(hidden, weight, kept):
                if not is_kept:
                    ctx.logits.write(z, hidden[rows], block)
                change = z - total[rows].unsqueeze(1)
                factor = slopes[rows].unsqueeze(1)
                if for_entropies is not None:
                    surprise = change + entropies[rows].unsqueeze(1)
                    factor = surprise.mul_(for_entropies[rows].unsqueeze(1)).add_(factor)
                    del surprise
                change.exp_().mul_(factor).neg_()
                del factor
                inside, offsets = _inside(targets[rows], columns)
                change[inside, offsets] += slopes[rows][inside]
                change = ctx.logits.chain(change, z).to(hidden.dtype)
                if for_hidden is not None:
                    _add_product(for_hidden[rows], change, block)
                if for_weight is not None:
                    _add_product(for_weight[columns], change.T, hidden[rows])
                del change  # free it before the next tile
        return (
            None if for_hidden is None else for_hidden.to(hidden.dtype),
            None if for_weight is None else for_weight.to(weight.dtype),
            *(None, None, None),
        )


class _Tile(NamedTuple):
    """A block of the table of logits."""

    columns: slice
    rows: slice
    block: Tensor
    """The columns' weights [v, H] in the products' dtype."""
    z: Tensor
    """Buffer for its logits, [n, v]."""
    is_kept: bool
    """True if the buffer is kept until the backward pass."""


def _tiles(hidden: Tensor, weight: Tensor, kept: Tensor) -> Iterator[_Tile]:
    """Yield all tiles, the first ones in ``kept``; each block of the head is cast once."""
    height, width = logit_tiles.TILES["cpu" if hidden.device.type == "cpu" else "cuda"]
    scratch, start = kept.new_empty(min(height, len(hidden)) * width), 0
    for columns in _slices(len(weight), width):
        block = weight[columns].to(hidden.dtype)
        for rows in _slices(len(hidden), height):
            shape = rows.stop - rows.start, columns.stop - columns.start
            buffer = kept[start : start + shape[0] * shape[1]]
            start += shape[0] * shape[1]
            is_kept = start <= len(kept)
            z = buffer if is_kept else scratch[: shape[0] * shape[1]]
            yield _Tile(columns, rows, block, z.view(shape), is_kept)


def _slices(length: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def _inside(targets: Tensor, columns: slice) -> tuple[Tensor, Tensor]:
    """Return the indices of the targets within these columns, and their offsets in the block."""
    indices = ((targets >= columns.start) & (targets < columns.stop)).nonzero().squeeze(1)
    return indices, targets[indices] - columns.start


def product(a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
    """Write a · b to ``out``; a GPU's product of half precision is summed and stored in float32."""
    if out.dtype == a.dtype:
        return torch.mm(a, b, out=out)
    if a.is_cuda:
        return torch.mm(a, b, out_dtype=out.dtype, out=out)
    return out.copy_(a @ b)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    else:
        total += product(a, b, out=torch.empty_like(total))


def _wide(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype == torch.float64 else torch.float32
