"""Parsing of the thinking at the start of a response, in tokens and in text."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from engine.models.chat.base import Reply, Tokenizer
from engine.tools.parser import THINK_END, THINK_START


def read_thinking(
    tokenizer: Tokenizer, ids: Sequence[int], markers: tuple[int, int], *, opened: bool
) -> Reply:
    """Split a response whose thinking lies between two marker ids.

    Thinking comes first: an opening marker after any text is text, and so is everything after the first
    closing one.

    Args:
        ids: the response without its stop token.
        markers: ids of the opening and of the closing marker.
        opened: whether the prompt ended with the opening marker.
    """
    start, end = markers
    text = tokenizer.decode(ids)
    begin = 0
    if start in ids and not tokenizer.decode(ids[: ids.index(start)]).strip():
        begin, opened = ids.index(start) + 1, True
    if not opened:
        return Reply(text=text, thinking="", content=text)
    closed = end in ids[begin:]
    stop = ids.index(end, begin) if closed else len(ids)
    return Reply(
        text=text,
        thinking=tokenizer.decode(ids[begin:stop]),
        content=tokenizer.decode(ids[stop + 1 :]),
        thinking_tokens=stop - begin,
        thinking_closed=closed,
    )


def read_written_thinking(tokenizer: Tokenizer, ids: Sequence[int], *, opened: bool) -> Reply:
    """Split a response of a model that spells the thinking markers out in several tokens.

    Args:
        ids: the response without its stop token.
        opened: whether the prompt ended with the opening marker.
    """
    text = tokenizer.decode(ids)
    begun = text.lstrip().startswith(THINK_START)
    if not begun and not opened:
        return Reply(text=text, thinking="", content=text)
    start = text.index(THINK_START) + len(THINK_START) if begun else 0
    end = text.find(THINK_END, start)
    first = _tokens_of(tokenizer, ids, start)
    return Reply(
        text=text,
        thinking=text[start : end if end >= 0 else None],
        content=text[end + len(THINK_END) :] if end >= 0 else "",
        thinking_tokens=(_tokens_of(tokenizer, ids, end) if end >= 0 else len(ids)) - first,
        thinking_closed=end >= 0,
    )


def _tokens_of(tokenizer: Tokenizer, ids: Sequence[int], length: int) -> int:
    """Return the number of tokens that cover the first ``length`` characters of the decoded text."""
    return bisect.bisect_left(range(len(ids)), length, key=lambda count: len(tokenizer.decode(ids[:count])))


def split_thinking(text: str) -> tuple[str | None, str, bool]:
    """Return the thinking that a text begins with (None without), the rest, and whether it was closed."""
    if not text.startswith(THINK_START):
        return None, text, True
    thinking, closed, rest = text.removeprefix(THINK_START).partition(THINK_END)
    return thinking, rest, bool(closed)
