"""Excerpts of search results around the first matching word."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlencode

from webapp.rollouts.selectors.passages import Match

_BEFORE, _SHOWN = 80, 240
_LABELS = {"patches": "patch", "statements": "statement"}
_ANCHORS = {"patches": "#patch", "statements": "#prompt"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """Excerpt of a matching text."""

    match: Match
    parts: tuple[tuple[str, bool], ...]
    """Pieces of the excerpt: text, and whether it matches a word of the query."""
    query: str
    """Query string and anchor of the match on the trajectory's page."""

    @property
    def label(self) -> str:
        """Return the name of the text, such as ``thought of step 3``."""
        match = self.match
        return _LABELS.get(match.place) or f"{match.place.removesuffix('s')} of step {match.index}"

    @property
    def text(self) -> str:
        """Return the excerpt as plain text."""
        return "".join(text for text, _ in self.parts)


def snippet(match: Match, pattern: re.Pattern[str] | None) -> Snippet:
    """Return the excerpt of a text around its first matching word."""
    first = pattern.search(match.text) if pattern is not None else None
    start = max(0, first.start() - _BEFORE) if first is not None else 0
    shown = match.text[start : start + _SHOWN]
    parts: list[tuple[str, bool]] = [("… ", False)] if start else []
    end = 0
    for word in pattern.finditer(shown) if pattern is not None else ():
        parts += [(shown[end : word.start()], False), (word[0], True)]
        end = word.end()
    parts.append((shown[end:], False))
    return Snippet(match=match, parts=tuple(part for part in parts if part[0]), query=_query(match, first))


def _query(match: Match, first: re.Match[str] | None) -> str:
    if match.index is None:
        return _ANCHORS[match.place]
    find = {"find": first[0]} if first is not None else {}
    return f"?{urlencode({'from': match.index, **find})}#step-{match.index}"
