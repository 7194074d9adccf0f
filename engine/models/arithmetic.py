"""FLOPs of a model's passes, for the model FLOPs utilisation (MFU) with a device's peak (``devices``).

A product of a token with a weight takes 2 FLOPs forwards, 2 for the gradient of its input and, unless the
weight is frozen, 2 for the gradient of the weight: 6 per weight and token in all (PaLM, arXiv:2204.02311,
appendix B), 4 under adapters. Attention counts the computed pairs of query and key: the causal half, without
keys before a window. Recomputation by activation checkpointing is counted separately and is not part of the
MFU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.models.sizes import ModelSizes

Piece = tuple[int, int]
"""Number of consecutive queries, and of keys that the last one attends to without a window: ``(n, n)`` is a
whole sequence, ``(n, p + n)`` continues a prefix of p tokens computed elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassFlops:
    """FLOPs of a pass over some pieces."""

    forward: float
    backward: float = 0.0
    recomputed: float = 0.0
    """Products computed again in the backward pass, because of activation checkpointing."""

    @property
    def model(self) -> float:
        """Return the FLOPs that count for the MFU: those without recomputation."""
        return self.forward + self.backward


def pass_flops(
    sizes: ModelSizes,
    pieces: Iterable[Piece],
    targets: int,
    *,
    training: bool,
    checkpointing: bool = False,
) -> PassFlops:
    """Return the FLOPs of scoring, or of a forward and a backward pass.

    Args:
        sizes: of the model.
        pieces: the computed pieces.
        targets: number of positions at which logits are computed.
        training: with a backward pass; False only scores.
        checkpointing: layers are computed again in the backward pass.
    """
    pieces = list(pieces)
    tokens = sum(queries for queries, _ in pieces)
    products = 2.0 * tokens * sum(block.products for block in sizes.blocks)
    attention = 2.0 * sum(
        block.attention * _pairs_of(pieces, block.window) for block in sizes.blocks if block.attention
    )
    head = 2.0 * sizes.head * targets
    if not training:
        return PassFlops(forward=products + attention + head)
    weights = 2.0 * tokens * sum(block.trained_products for block in sizes.blocks)
    backward = products + weights + 2 * attention + head * (2 if sizes.head_trained else 1)
    return PassFlops(
        forward=products + attention + head,
        backward=backward,
        recomputed=products + attention if checkpointing else 0.0,
    )


def attended_pairs(queries: int, keys: int, window: int | None) -> int:
    """Return the number of pairs of query and key in a causal piece.

    Args:
        queries: number of queries of the piece.
        keys: number of keys that its last query sees, itself included.
        window: maximum number of keys of a query; None: no maximum.
    """
    before = keys - queries
    growing = queries if window is None else min(queries, max(0, window - before))
    whole = growing * before + growing * (growing + 1) // 2
    return whole + (queries - growing) * (window or 0)


def _pairs_of(pieces: Sequence[Piece], window: int | None) -> int:
    return sum(attended_pairs(queries, keys, window) for queries, keys in pieces)
