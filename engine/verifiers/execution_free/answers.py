"""The two answers of a judge as tokens, and P(YES) from their log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import ScoreError
from engine.models.chat.base import Chat
from engine.verifiers.execution_free.prompts import ANSWER_END, ANSWER_START, ANSWERS


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Score of one trajectory."""

    p_yes: float
    """P(YES) / (P(YES) + P(NO))."""
    yes_logprob: float
    no_logprob: float
    prompt_tokens: int
    """Length of the judge's prompt; for an endpoint the reported length, 0 if it reports none."""
    shortened: int = 0
    """Number of pieces that were replaced or removed so that the prompt fits."""
    cost: float | None = None
    """US dollars; None without a known price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedChoice:
    """The two answers as tokens behind a judge's prompt."""

    start: tuple[int, ...]
    """Ids that both answers begin with, ``<judgement>`` included."""
    yes: tuple[int, ...]
    """Ids by which YES differs from NO; with the closing tag only if a token spans both."""
    no: tuple[int, ...]


def forced_choice(chat: Chat) -> ForcedChoice:
    """Return the answers in a model's tokens, cut by id: shared beginnings and ends are not scored."""
    yes, no = (chat.reply_ids(f"{ANSWER_START}{answer}{ANSWER_END}") for answer in ANSWERS)
    start, end = differing(yes, no)
    return ForcedChoice(
        start=tuple(yes[:start]), yes=tuple(yes[start : len(yes) - end]), no=tuple(no[start : len(no) - end])
    )


def differing(one: Sequence[object], other: Sequence[object]) -> tuple[int, int]:
    """Return the lengths of the common prefix and suffix; at least one token of each is left between."""
    start = _shared(one, other)
    end = min(_shared(one[::-1], other[::-1]), len(one) - start - 1, len(other) - start - 1)
    return start, end


def _shared(one: Sequence[object], other: Sequence[object]) -> int:
    """Return the length of the common prefix."""
    for length, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return length
    return min(len(one), len(other))


def probability_of_yes(yes_logprob: float, no_logprob: float) -> float:
    """Return P(YES) / (P(YES) + P(NO)).

    Raises:
        ScoreError: neither answer has a probability, or a log-probability is not a number.
    """
    if math.isnan(yes_logprob) or math.isnan(no_logprob) or max(yes_logprob, no_logprob) > 1e-3:
        raise ScoreError(
            f"the log-probabilities of YES ({yes_logprob}) and NO ({no_logprob}) are not numbers ≤ 0"
        )
    if yes_logprob == no_logprob == -math.inf:
        raise ScoreError("neither YES nor NO has a probability after this prompt")
    difference = no_logprob - yes_logprob
    if difference > 0:  # exp of a positive number could overflow
        return math.exp(-difference) / (1 + math.exp(-difference))
    return 1 / (1 + math.exp(difference))
