"""Text search in all steps of one trajectory, including folded, truncated and not yet loaded parts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from webapp.rollouts.models.trajectories import Step
from webapp.rollouts.selectors import steps as reads

MAX_TEXT = 200
MAX_SHOWN = 200
_AROUND = 60


@dataclass(frozen=True, slots=True)
class Hit:
    """One occurrence of the text; ``before`` and ``after`` are its context on the same line."""

    index: int
    """Index of the step."""
    part: str
    """``thinking``, ``action``, ``observation``, ``error`` or ``response``."""
    number: int
    """Position among the hits of the same part of the step."""
    before: str
    text: str
    after: str
    url: str


@dataclass(frozen=True, slots=True)
class Found:
    """First occurrences of a text, and the number of all occurrences."""

    hits: tuple[Hit, ...]
    num_hits: int
    num_steps: int


def text_to_find(params: Mapping[str, str]) -> str:
    """Return the text of a query string's ``find``; empty for none."""
    return params.get("find", "").strip()[:MAX_TEXT]


def find_text(trajectory_id: int, text: str) -> Found:
    """Find the occurrences of a text in a trajectory's steps, ignoring case."""
    pattern = re.compile(re.escape(text), re.IGNORECASE)
    hits: list[Hit] = []
    num_hits = num_steps = 0
    for step in reads.containing(trajectory_id, text).iterator(chunk_size=50):
        in_step = 0
        for part, whole in _parts(step, pattern):
            for number, match in enumerate(pattern.finditer(whole)):
                in_step += 1
                if len(hits) < MAX_SHOWN:
                    hits.append(_hit(step.index, part, number, match, text))
        num_hits += in_step
        num_steps += bool(in_step)
    return Found(tuple(hits), num_hits, num_steps)


def _parts(step: Step, pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Yield the texts of a step by part; the raw response only where it alone contains the text."""
    action = "\n".join(str(value) for value in step.arguments.values()) if step.tool else step.response
    yield "thinking", step.thought
    yield "action", action
    yield "observation", step.observation
    yield "error", step.error
    if step.tool and not pattern.search(step.thought) and not pattern.search(action):
        yield "response", step.response


def _hit(index: int, part: str, number: int, match: re.Match[str], text: str) -> Hit:
    whole, start, end = match.string, match.start(), match.end()
    return Hit(
        index=index,
        part=part,
        number=number,
        before=whole[max(0, start - _AROUND) : start].rpartition("\n")[2],
        text=match[0],
        after=whole[end : end + _AROUND].partition("\n")[0],
        url=f"?{urlencode({'from': index, 'find': text})}#step-{index}",
    )
