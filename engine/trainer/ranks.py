"""Layout of ranks (data × context), and custom collectives.

Ranks form a grid: along ``data`` they share an optimizer step's rows, along ``context`` the tokens of each
row. Under context parallelism a row of T tokens is cut into 2C chunks; rank c has chunks c and 2C − 1 − c. If
the number of key heads is divisible by C, attention exchanges tokens for heads (Ulysses): each rank attends
with its share of the heads to the whole row. Otherwise each gathers all keys and values, which are few then;
the two chunks balance the work, as later chunks attend to more keys.
torch's own ``context_parallel`` supports neither segments nor CPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from engine.models.attention import Ranges, Segments
from engine.trainer.packing import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Position of this process in the grid of ranks."""

    data_rank: int = 0
    data_size: int = 1
    context_rank: int = 0
    context_size: int = 1
    mesh: DeviceMesh | None = None
    """Device mesh ``data`` × ``context``; None with a single rank."""

    @classmethod
    def of(cls, mesh: DeviceMesh) -> Ranks:
        """Return this process's position in a mesh with the dimensions ``data`` and ``context``."""
        return cls(
            data_rank=mesh.get_local_rank("data"),
            data_size=mesh["data"].size(),
            context_rank=mesh.get_local_rank("context"),
            context_size=mesh["context"].size(),
            mesh=mesh,
        )

    @property
    def size(self) -> int:
        """Return the total number of ranks."""
        return self.data_size * self.context_size

    @property
    def is_first(self) -> bool:
        """Return whether this process is the first rank."""
        return self.data_rank == self.context_rank == 0

    def context_group(self) -> dist.ProcessGroup | None:
        """Return the ranks that share this one's rows; None when there are no others."""
        if self.mesh is None or self.context_size == 1:
            return None
        return self.mesh["context"].get_group()


ALONE = Ranks()


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedRow:
    """A packed row as one rank sees it."""

    segments: Segments
    here: Tensor | None
    """int64 [T]: indices of the row's tokens on this rank; None: all."""
    padding: int
    """Number of padding tokens to append to the samples'."""
    width: int
    """Length of the whole row, padding included."""


def shared_row(layout: Layout, ranks: Ranks, device: torch.device) -> SharedRow:
    """Return this rank's part of a row; a row without sequences is padding."""
    pieces = 2 * ranks.context_size
    total = len(layout.ids)
    padding = -total % pieces if ranks.context_size > 1 else 0
    if not total:
        padding = pieces
    width = total + padding
    positions = torch.cat([torch.from_numpy(layout.positions), torch.arange(padding)])
    lengths, keys = layout.lengths, layout.keys
    if padding:
        lengths, keys = (*lengths, padding), (*keys, ((total, width),))
    row = Segments(positions=positions.to(device), lengths=lengths, keys=keys)
    group = ranks.context_group()
    if group is None:
        return SharedRow(segments=row, here=None, padding=padding, width=width)
    chunk = width // pieces
    order = [n for rank in range(ranks.context_size) for n in (rank, pieces - 1 - rank)]
    own = order[2 * ranks.context_rank : 2 * ranks.context_rank + 2]
    here = torch.cat([torch.arange(n * chunk, (n + 1) * chunk) for n in own])
    cut = [piece for n in own for piece in _pieces_between(row, n * chunk, (n + 1) * chunk)]
    placed = torch.cat([torch.arange(n * chunk, (n + 1) * chunk) for n in order])
    segments = Segments(
        positions=positions[here].to(device),
        lengths=tuple(length for length, _ in cut),
        keys=tuple(ranges for _, ranges in cut),
        exchange=RowExchange(
            row=row,
            rank=ranks.context_rank,
            size=ranks.context_size,
            placed=placed.to(device),
            order=placed.argsort().to(device),
            group=group,
        ),
    )
    return SharedRow(segments=segments, here=here, padding=padding, width=width)


def _pieces_between(row: Segments, start: int, end: int) -> Iterator[tuple[int, Ranges]]:
    """Yield the number of queries and the keys of each piece's part between two offsets of a row."""
    for last, length, ranges in zip(accumulate(row.lengths), row.lengths, row.keys, strict=True):
        first, until = max(start, last - length), min(end, last)
        if first < until:
            yield until - first, (*ranges[:-1], (ranges[-1][0], until))


@dataclass(frozen=True, slots=True, kw_only=True)
class RowExchange:
    """Collectives of the ranks that share a row (``engine.models.attention.Exchange``)."""

    row: Segments
    rank: int
    size: int
    placed: Tensor
    """int64 [C·T]: index in the row of each rank's tokens, rank after rank."""
    order: Tensor
    """Inverse of ``placed``."""
    group: dist.ProcessGroup

    def gather(self, local: Tensor) -> Tensor:
        """Return all tokens of the row, in order."""
        gathered: Tensor = _Gather.apply(local, self.group)  # type: ignore[no-untyped-call]
        return gathered[self.order]

    def scatter_heads(self, local: Tensor) -> Tensor:
        """Return all tokens of the row, in order, with this rank's share of the heads."""
        shares = torch.stack(local.chunk(self.size, dim=1))  # [rank, T, heads / C, D]
        return self._transpose(shares).flatten(0, 1)[self.order]

    def gather_heads(self, row: Tensor) -> Tensor:
        """Return this rank's tokens with all heads: the inverse of ``scatter_heads``."""
        shares = row[self.placed].view(self.size, -1, *row.shape[1:])  # [rank, T, heads / C, D]
        return self._transpose(shares).transpose(0, 1).flatten(1, 2)

    def _transpose(self, shares: Tensor) -> Tensor:
        exchanged: Tensor = _Transpose.apply(shares, self.group)  # type: ignore[no-untyped-call]
        return exchanged


class _Gather(torch.autograd.Function):
    """Autograd function: concatenate the tensors of all ranks; backward, sum the gradients of this rank's."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        gathered = local.new_empty(group.size() * len(local), *local.shape[1:])
        dist.all_gather_into_tensor(gathered, local.contiguous(), group=group)
        return gathered

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        own = gradient.new_empty(len(gradient) // ctx.group.size(), *gradient.shape[1:])
        dist.reduce_scatter_tensor(own, gradient.contiguous(), group=ctx.group)
        return own, None


class _Transpose(torch.autograd.Function):
    """Autograd function: rank r's item s becomes rank s's item r; it is its own backward."""

    @staticmethod
    def forward(ctx: Any, items: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        received = torch.empty_like(items, memory_format=torch.contiguous_format)
        dist.all_to_all_single(received, items.contiguous(), group=group)
        return received

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _Transpose.forward(ctx, gradients[0], ctx.group), None


class _ScatterValues(torch.autograd.Function):
    """Autograd function: put a rank's own values at their slots among those of all ranks.

    Every rank computes the same loss from them, so each keeps only the gradient of its own values.
    """

    @staticmethod
    def forward(ctx: Any, local: Tensor, slots: Tensor, total: int, group: dist.ProcessGroup) -> Tensor:
        ctx.save_for_backward(slots)
        placed = local.new_zeros(total).index_copy_(0, slots, local)
        dist.all_reduce(placed, group=group)
        return placed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (slots,) = ctx.saved_tensors
        return gradients[0][slots], None, None, None


def scatter_values(local: Tensor, slots: Tensor, total: int, group: dist.ProcessGroup) -> Tensor:
    """Return the ``total`` values of all ranks of a row, given this rank's values [n] and their slots [n]."""
    placed: Tensor = _ScatterValues.apply(local, slots, total, group)  # type: ignore[no-untyped-call]
    return placed
