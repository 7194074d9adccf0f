"""Training sets of judges: equal numbers of right and wrong trajectories, as conversations with the answer.

For each origin and each task with both outcomes, ``per_task`` right and wrong trajectories are taken, those
that ended by submission first (as for DeepSWE's verifier). A set of several origins is their union:
trajectories of the policy itself and of others make up SWE-Gym's mixture. ``extra`` adds pairs from tasks
with one outcome only; their right and wrong members are of different tasks. A pair is left out if either
member does not fit.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import ScoreError
from engine.files import atomic_open
from engine.models.chat.base import Message
from engine.verifiers.execution_free.prompts import (
    ANSWER_END,
    ANSWER_START,
    ANSWERS,
    JudgedPart,
    judge_messages,
)
from engine.verifiers.execution_free.shortening import shorten
from engine.verifiers.execution_free.transcripts import Transcript


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """A graded trajectory that may become an example."""

    key: str
    """Unique key of the trajectory."""
    task_id: str
    instance_id: str
    """Name shared by the versions of a task."""
    origin: str
    """Source of the trajectory: ``on_policy``, ``off_policy``, or the name of a model."""
    transcript: Transcript
    resolved: bool
    submitted: bool = True
    """Whether the agent ended it by submitting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A conversation whose last message is the right judgement."""

    key: str
    task_id: str
    instance_id: str
    origin: str
    resolved: bool
    messages: tuple[Message, ...]
    shortened: int
    """Number of pieces of the trajectory that were replaced or removed so that it fits."""


Pair = tuple[Labelled, Labelled]
"""A right and a wrong trajectory of one origin, in random order."""


def choose(candidates: Iterable[Labelled], *, seed: int = 0, per_task: int = 1, extra: int = 0) -> list[Pair]:
    """Return pairs of a right and a wrong trajectory of the same origin, in random order.

    Args:
        candidates: graded trajectories.
        seed: seed of the choice between trajectories of the same task and ending, and of the order.
        per_task: maximum number of pairs of a task and origin; no trajectory is in two of them.
        extra: maximum number of further pairs of each origin, from tasks with one outcome only.
    """
    generator = random.Random(seed)
    groups: dict[str, dict[str, list[Labelled]]] = defaultdict(lambda: defaultdict(list))
    for candidate in candidates:
        groups[candidate.origin][candidate.task_id].append(candidate)
    chosen: list[Pair] = []
    for _, tasks in sorted(groups.items()):
        single: dict[bool, list[Labelled]] = {True: [], False: []}
        for _, members in sorted(tasks.items()):
            right, wrong = (_picked(members, outcome, per_task, generator) for outcome in (True, False))
            if right and wrong:
                chosen += zip(right, wrong, strict=False)
            else:
                single[bool(right)].append((right or wrong)[0])
        pairs = min(extra, *map(len, single.values()))
        chosen += zip(*(generator.sample(single[outcome], pairs) for outcome in (True, False)), strict=True)
    generator.shuffle(chosen)
    return [pair if generator.random() < 0.5 else pair[::-1] for pair in chosen]


def _picked(
    members: Sequence[Labelled], resolved: bool, count: int, generator: random.Random
) -> list[Labelled]:
    """Return at most ``count`` of the trajectories with an outcome, submitted ones first."""
    matching = sorted(
        (member for member in members if member.resolved == resolved), key=lambda member: member.key
    )
    picked: list[Labelled] = []
    for submitted in (True, False):
        pool = [member for member in matching if member.submitted == submitted]
        picked += generator.sample(pool, min(len(pool), count - len(picked)))
    return picked


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleFormat:
    """Format of the conversations, which are shortened as by a judge with this context."""

    limit: int
    """Maximum length of a prompt, tokens."""
    prompt_tokens: Callable[[Sequence[Message]], int]
    """Returns the exact length of a prompt."""
    text_tokens: Callable[[str], int]
    """Returns the length of one text."""
    part: JudgedPart = "trajectory"
    """Input of the judge."""

    def example(self, one: Labelled) -> Example:
        """Return a trajectory's conversation. Raises ScoreError if even that does not fit."""
        shortened = shorten(
            one.transcript,
            limit=self.limit,
            prompt_tokens=lambda shown: self.prompt_tokens(judge_messages(shown, self.part)),
            text_tokens=self.text_tokens,
        )
        answer = ANSWERS[0] if one.resolved else ANSWERS[1]
        reply: Message = {"role": "assistant", "content": f"{ANSWER_START}{answer}{ANSWER_END}"}
        return Example(
            key=one.key,
            task_id=one.task_id,
            instance_id=one.instance_id,
            origin=one.origin,
            resolved=one.resolved,
            messages=(*judge_messages(shortened.transcript, self.part), reply),
            shortened=shortened.pieces,
        )


def examples(
    chosen: Iterable[Pair], form: ExampleFormat, *, too_long: list[str] | None = None
) -> Iterator[Example]:
    """Yield the conversations of pairs.

    Args:
        too_long: receives the keys of trajectories left out because they, or their partners, do not fit.
    """
    for pair in chosen:
        try:
            conversations = [form.example(member) for member in pair]
        except ScoreError:
            if too_long is not None:
                too_long += [member.key for member in pair]
        else:
            yield from conversations


def write_examples(path: Path, found: Iterable[Example]) -> int:
    """Write examples as JSON lines of OpenAI messages, replacing the file; return their number."""
    count = 0
    with atomic_open(path) as file:
        for example in found:
            file.write(json.dumps(_line(example), ensure_ascii=False) + "\n")
            count += 1
    return count


def _line(one: Example) -> dict[str, Any]:
    return {
        "messages": list(one.messages),
        "trajectory": one.key,
        "task": one.task_id,
        "origin": one.origin,
        "resolved": one.resolved,
        "shortened": one.shortened,
    }
