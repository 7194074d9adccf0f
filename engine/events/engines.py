"""Inference engines in a run's events."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from engine.events.record import Int, Record, RunEvent

MAX_DETAIL = 500
"""Maximum length of ``EngineRecord.detail``, characters."""


class EngineRecord(Record):
    """State and load of one inference engine."""

    name: str = Field(min_length=1, max_length=64)
    state: Literal["starting", "ready", "publishing", "restarting", "left_out"]
    version: Int | None = None
    """Policy version that it was verified to serve."""
    running: Int = 0
    """Requests that are being sampled."""
    waiting: Int = 0
    """Requests that wait inside the engine."""
    kv_use: float = 0.0
    """Used share of its KV cache."""
    prefix_hit_rate: float = 0.0
    """Share of the latest prompts' tokens that were in its prefix cache."""
    tokens_per_s: float = 0.0
    """Tokens generated per second between the last two measurements."""
    restarts: Int = 0
    """Restarts in this attempt."""
    detail: str = Field(default="", max_length=MAX_DETAIL)
    """Reason of a state other than ``ready``."""


class EnginesReported(RunEvent):
    """Snapshot of an attempt's inference engines: at every change of state, and every few seconds of load."""

    type: Literal["engines_reported"] = "engines_reported"
    iteration: Int | None = None
    """Iteration of the latest request."""
    replicas: list[EngineRecord]
    queued: Int = 0
    """New trajectories that wait for room in a KV cache."""
