"""Transcript: the part of a trajectory that a judge reads."""

from __future__ import annotations

from dataclasses import dataclass

from engine.tools.rendering import render_call, render_native
from engine.types import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn of the agent."""

    thought: str
    """Text before the tool call, thinking included."""
    action: str
    """The tool call as text; empty if the response has none."""
    observation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """A finished trajectory as a judge reads it; it contains nothing of the answer key."""

    problem: str
    """Problem statement of the task."""
    turns: tuple[Turn, ...]
    patch: str
    """The submission; empty if nothing was changed."""
    system: str = ""
    """The agent's system prompt; empty leaves it out."""
    omitted_turns: int = 0
    """Number of turns that were removed before the first of ``turns``."""


def turn_of(step: Step) -> Turn:
    """Return a stored step as a turn; calls of every tool format are rendered in R2E-Gym's."""
    if step.call is None:
        return Turn(thought=step.response, action="", observation=step.observation or step.error)
    try:
        action = render_call(step.call, "xml")
    except ValueError:  # a name or a value that XML without escapes cannot express
        action = render_native(step.call.name, step.call.arguments)
    return Turn(thought=step.thought, action=action, observation=step.observation)
