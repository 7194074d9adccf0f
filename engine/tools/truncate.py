"""Truncation of long output: head and tail are kept, the rest is counted."""

from __future__ import annotations

HEAD_LINES = 40
TAIL_LINES = 40


def condense_lines(text: str) -> tuple[str, int]:
    """Keep the first and last 40 lines; return the text and the number of characters cut."""
    lines = text.split("\n")
    if len(lines) <= HEAD_LINES + TAIL_LINES:
        return text, 0
    cut = lines[HEAD_LINES:-TAIL_LINES]
    characters = sum(map(len, cut)) + len(cut)
    note = f"[{len(cut)} lines, {characters} characters left out]"
    return "\n".join([*lines[:HEAD_LINES], note, *lines[-TAIL_LINES:]]), characters


def cap_characters(text: str, limit: int) -> tuple[str, int]:
    """Keep at most ``limit`` characters; return the text and the number of characters cut.

    The note with the number of cut characters is not counted against the limit.
    """
    if len(text) <= limit:
        return text, 0
    head = (limit + 1) // 2
    tail = limit - head
    cut = len(text) - limit
    return f"{text[:head]}\n[{cut} characters left out]\n{text[len(text) - tail :]}", cut
