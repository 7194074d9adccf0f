"""Limits of a conversation, counted in tokens or estimated."""

from __future__ import annotations

from engine.models.chat.base import Tokenizer
from engine.tools import cap_characters

_BYTES_PER_TOKEN = 3
"""Fewer than in most texts and code (about 4), so that estimates tend to be too high."""


def cap_tokens(text: str, limit: int, tokenizer: Tokenizer) -> tuple[str, int]:
    """Keep at most ``limit`` tokens, head and tail; return the text and the number of characters cut.

    The note with the number of cut tokens does not count towards the limit.
    """
    if len(text.encode("utf-8", "replace")) <= limit:  # no token is shorter than a byte
        return text, 0
    ids = tokenizer.encode(text)
    if len(ids) <= limit:
        return text, 0
    first = (limit + 1) // 2
    # A character may be cut in two: the halves decode to replacement characters.
    head = tokenizer.decode(ids[:first]).rstrip("\ufffd")
    tail = tokenizer.decode(ids[len(ids) - (limit - first) :]).lstrip("\ufffd")
    note = f"\n[{len(ids) - limit} tokens left out]\n"
    return f"{head}{note}{tail}", max(len(text) - len(head) - len(tail), 1)


def estimate_tokens(text: str) -> int:
    """Return the approximate number of tokens of a text, for policies whose tokenizer is unknown."""
    return -(-len(text.encode("utf-8", "replace")) // _BYTES_PER_TOKEN)


def cap_estimated(text: str, limit: int) -> tuple[str, int]:
    """Keep about ``limit`` tokens by their estimate; return the text and the number of characters cut."""
    tokens = estimate_tokens(text)
    return cap_characters(text, limit * len(text) // tokens) if tokens > limit else (text, 0)
