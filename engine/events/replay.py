"""Records of rollouts that an attempt replays from an earlier one, step by step."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from engine.events.record import Int, Record


class SampledResponse(Record):
    """Response of a step as sampled from the policy; a later attempt needs it to continue from the step."""

    tokens: str = ""
    """Sampled tokens with their log-probabilities and versions, as a token block in base64; empty for a
    message. It is decoded only by an attempt that repeats the step."""
    message: dict[str, Any] | None = None
    """Message of a chat policy: ``content``, ``thinking``, and ``calls`` with ``name``, ``arguments``,
    ``error`` each."""
    stopped: bool = True
    """False when the response was cut off at a limit of its length."""
    waited_seconds: float = 0.0
    """Part of the step's ``model_seconds`` that does not count towards the rollout's time limit."""


class ReplayDifferenceRecord(Record):
    """Field of a recorded step that differs in a fresh sandbox; texts are excerpts."""

    step: Int
    field: str = Field(max_length=32)
    recorded: str
    found: str
    is_minor: bool = False
    """True where only times or memory addresses differ: the recorded text is kept."""


class ReplayRecord(Record):
    """Replay of the steps that an earlier attempt recorded."""

    recorded: Int
    """Number of recorded steps."""
    replayed: Int
    """Number of steps whose responses were taken from the record, the first that differed included."""
    differences: list[ReplayDifferenceRecord] = Field(default_factory=list)
