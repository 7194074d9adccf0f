"""Sizes of the tiles in which logits are computed (``logprobs``); importing this does not load torch."""

from __future__ import annotations

from collections.abc import Mapping

TILES: Mapping[str, tuple[int, int]] = {"cpu": (256, 1024), "cuda": (4096, 16_384)}
"""Positions and tokens of a tile: a CPU's fits its cache, a GPU's keeps it busy."""
TILES_AT_ONCE = 4
"""Tiles that exist at once."""
KEPT = 2**28
"""Maximum number of logits kept for the backward pass; the others are computed again."""
