"""Replay of the steps that an earlier attempt recorded, in a fresh environment.

Recorded responses are executed in order, without sampling, and each observation is compared with the recorded
one. Where they differ, the rest of the record is dropped and the rollout continues from the new observation:
trained histories must match their environment. Differences in times and memory addresses alone are ignored.
The recorded text is then kept, because later recorded responses were sampled with it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.inference.base import ChatResponse, Generation
from engine.types import ReplayDifference, ReplaySummary, Step

_VARYING = re.compile(
    r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z| ?[+-]\d\d:?\d\d)?)?\b"
    r"|\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +\d{1,2} +(?:\d\d:\d\d|\d{4})\b"
    r"|(?<![:\w.])\d\d:\d\d:\d\d(?:[.,]\d+)?\b"
    r"|\b(?:\d+m)?\d+\.\d+ ?(?:ns|us|µs|ms|s|seconds?)\b"
    r"|\b0x[0-9a-f]{6,16}\b"
)
"""Dates, times of day with seconds or in file listings, durations with a fraction, memory addresses."""
_COMPARED = ("error", "exit_code", "done")
"""Fields of a step that are compared beside its observation."""
_EXCERPT_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedTurn:
    """A finished step and the policy's response in it."""

    step: Step
    response: Generation | ChatResponse
    waited_seconds: float = 0.0
    """Part of the step's ``model_seconds`` that does not count towards the rollout's time limit."""
    is_replayed: bool = False
    """True where the step repeats an earlier attempt's record with the same outcome."""
    has_call: bool = False
    """Whether the response held a call in the tool format, valid or not; False where it was recorded."""
    was_cut_off: bool = False
    """Whether the response ended at a limit; False where it was recorded."""


class Replay:
    """Queue of a rollout's recorded turns to repeat.

    Args:
        turns: finished turns of an earlier attempt, from the first on; empty in a new rollout.
    """

    def __init__(self, turns: Sequence[FinishedTurn] = ()) -> None:
        self._recorded = len(turns)
        self._turns = deque(turns)
        self._expected: Step | None = None
        """Recorded step that is being repeated."""
        self._responses = 0
        self._agreed = -1
        self._differences: list[ReplayDifference] = []

    def take(self, *, prompt_tokens: int) -> FinishedTurn | None:
        """Return the next turn to repeat; None when none is left.

        Args:
            prompt_tokens: length of the prompt; a different recorded length ends the replay.
        """
        if not self._turns:
            return None
        turn = self._turns.popleft()
        recorded = turn.step.prompt_tokens
        if isinstance(turn.response, Generation) and recorded != prompt_tokens:
            self._differ(turn.step.index, "prompt_tokens", str(recorded), str(prompt_tokens))
            return None
        self._expected = turn.step
        self._responses += 1
        return turn

    def settle(self, step: Step) -> Step:
        """Compare a repeated step with its record; return it, with the recorded text if they agree.

        Other steps are returned unchanged.
        """
        expected, self._expected = self._expected, None
        if expected is None:
            return step
        for name in _COMPARED:
            recorded, actual = getattr(expected, name), getattr(step, name)
            if recorded != actual and not (name == "error" and _is_alike(recorded, actual)):
                self._differ(step.index, name, str(recorded), str(actual))
        recorded, actual = expected.observation, step.observation
        if recorded != actual:
            self._differ(step.index, "observation", recorded, actual, is_minor=_is_alike(recorded, actual))
        if any(item.step == step.index and not item.is_minor for item in self._differences):
            return step
        self._agreed = step.index
        return replace(step, observation=recorded, error=expected.error)

    def agreed(self, step: Step) -> bool:
        """Return whether a step was repeated with the recorded outcome."""
        return step.index == self._agreed

    def summary(self) -> ReplaySummary | None:
        """Return the numbers of steps and the differences so far; None without a record."""
        if not self._recorded:
            return None
        return ReplaySummary(
            recorded=self._recorded, replayed=self._responses, differences=tuple(self._differences)
        )

    def _differ(self, index: int, name: str, recorded: str, found: str, *, is_minor: bool = False) -> None:
        """Record a difference; drop the remaining turns unless it is minor."""
        first = next(
            (at for at, (a, b) in enumerate(zip(recorded, found, strict=False)) if a != b),
            min(len(recorded), len(found)),
        )
        start = max(0, first - _EXCERPT_CHARS // 4)
        shown = slice(start, start + _EXCERPT_CHARS)
        self._differences.append(
            ReplayDifference(
                step=index, field=name, recorded=recorded[shown], found=found[shown], is_minor=is_minor
            )
        )
        if not is_minor:
            self._turns.clear()


def _is_alike(recorded: str, found: str) -> bool:
    """Return whether two texts are equal but for times and memory addresses."""
    return _VARYING.sub("\0", recorded) == _VARYING.sub("\0", found)
