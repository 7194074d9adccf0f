"""Shortening of transcripts that exceed a judge's context, by stated rules.

Until the prompt fits, in this order:

1. thoughts are replaced by a marker, the longest first (as R2E-Gym's verifier does);
2. observations are replaced by a marker, the oldest first (as DeepSWE's verifier was trained);
3. whole turns are removed, the oldest first; their number is stated.

Tool calls of the turns that stay, the problem statement and the patch are never shortened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from engine.errors import ScoreError
from engine.verifiers.execution_free.prompts import turn_text
from engine.verifiers.execution_free.transcripts import Transcript, Turn

THOUGHT_MARKER = "<Thought condensed for saving context>"
OBSERVATION_MARKER = "<Observation condensed for saving context>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortened:
    """A transcript that fits, with the numbers of its cuts."""

    transcript: Transcript
    thoughts: int = 0
    """Number of thoughts that were replaced."""
    observations: int = 0
    """Number of observations that were replaced."""
    turns: int = 0
    """Number of turns that were removed."""

    @property
    def pieces(self) -> int:
        """Return the number of replacements and removals."""
        return self.thoughts + self.observations + self.turns


@dataclass(frozen=True, slots=True)
class _Cut:
    """A replacement or removal, and the estimated number of tokens that it saves."""

    saving: int
    apply: Callable[[Shortened], Shortened]


def shorten(
    transcript: Transcript,
    *,
    limit: int,
    prompt_tokens: Callable[[Transcript], int],
    text_tokens: Callable[[str], int],
) -> Shortened:
    """Return the transcript, shortened only as far as needed.

    Args:
        transcript: as stored.
        limit: maximum length of the whole prompt, tokens.
        prompt_tokens: exact length of a transcript's prompt; called a few times.
        text_tokens: length of one text; called once for each text that may be replaced.

    Raises:
        ScoreError: the prompt does not fit even without any turn.
    """
    result = Shortened(transcript=transcript)
    excess = prompt_tokens(transcript) - limit
    cuts = _cuts(transcript, text_tokens)
    while excess > 0:
        saved = 0
        while saved < excess:
            cut = next(cuts, None)
            if cut is None:
                break
            saved += cut.saving
            result = cut.apply(result)
        if not saved:
            raise ScoreError(
                f"the judge's prompt is {excess} tokens too long for {limit} without any turn: problem "
                "statement and patch alone do not fit; raise the judge's context",
                retry=False,
            )
        excess = prompt_tokens(result.transcript) - limit
    return result


def _cuts(transcript: Transcript, size: Callable[[str], int]) -> Iterator[_Cut]:
    turns = transcript.turns
    thoughts = [(size(turn.thought) - size(THOUGHT_MARKER), index) for index, turn in enumerate(turns)]
    for saving, index in sorted(thoughts, key=lambda pair: (-pair[0], pair[1])):
        if saving > 0:
            yield _Cut(saving, _without_thought(index))
    for index, turn in enumerate(turns):
        saving = size(turn.observation) - size(OBSERVATION_MARKER)
        if saving > 0:
            yield _Cut(saving, _without_observation(index))
    for index, turn in enumerate(turns):
        remaining = Turn(
            thought=min(turn.thought, THOUGHT_MARKER, key=size),
            action=turn.action,
            observation=min(turn.observation, OBSERVATION_MARKER, key=size),
        )
        yield _Cut(size(turn_text(index + 1, remaining)), _without_oldest)


def _without_thought(index: int) -> Callable[[Shortened], Shortened]:
    def apply(found: Shortened) -> Shortened:
        return replace(
            found,
            transcript=_with_text(found.transcript, index, thought=THOUGHT_MARKER),
            thoughts=found.thoughts + 1,
        )

    return apply


def _without_observation(index: int) -> Callable[[Shortened], Shortened]:
    def apply(found: Shortened) -> Shortened:
        return replace(
            found,
            transcript=_with_text(found.transcript, index, observation=OBSERVATION_MARKER),
            observations=found.observations + 1,
        )

    return apply


def _without_oldest(found: Shortened) -> Shortened:
    transcript = found.transcript
    shorter = replace(transcript, turns=transcript.turns[1:], omitted_turns=transcript.omitted_turns + 1)
    return replace(found, transcript=shorter, turns=found.turns + 1)


def _with_text(transcript: Transcript, index: int, **text: str) -> Transcript:
    turns = list(transcript.turns)
    turns[index] = replace(turns[index], **text)
    return replace(transcript, turns=tuple(turns))
