"""Interfaces of text and conversations in tokens; importing them loads no model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Tokenizer(Protocol):
    """Conversion between token ids and text; ``encode`` never adds special tokens on its own."""

    vocab_size: int
    im_start: int
    im_end: int
    """End of a turn; with ``im_start`` ChatML's turn markers. Generation stops at ``im_end``."""
    think_start: int
    think_end: int

    def encode(self, text: str) -> list[int]:
        """Return the ids of plain text; ChatML markers inside hostile text are encoded as plain bytes."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens spelled out."""
