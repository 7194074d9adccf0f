"""A tokenizer without a vocabulary: ids are UTF-8 bytes, plus the four special ids.

It is fast and never splits differently.
"""

from __future__ import annotations

from collections.abc import Sequence

_SPECIALS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>")


class BytesTokenizer:
    """Tokenizer of 260 ids (``engine.models.chat.base.Tokenizer``)."""

    vocab_size: int = 256 + len(_SPECIALS)
    im_start: int = 256
    im_end: int = 257
    think_start: int = 258
    think_end: int = 259

    def encode(self, text: str) -> list[int]:
        """Return the text's bytes; markers spelled out in it stay bytes. Lone surrogates become ``?``."""
        return list(text.encode("utf-8", "replace"))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens spelled out; invalid UTF-8 becomes U+FFFD."""
        data = b"".join(bytes((i,)) if i < 256 else _SPECIALS[i - 256].encode() for i in ids)
        return data.decode("utf-8", "replace")
