"""Limits of a conversation, counted in tokens."""

from __future__ import annotations

from engine.models.chat.base import Tokenizer


def cap_tokens(text: str, limit: int, tokenizer: Tokenizer) -> tuple[str, int]:
    """Keep at most ``limit`` tokens, head and tail; return the text and the number of characters cut.

    The note that tells how many tokens were cut comes on top of the limit.
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
