"""Settings of self-improvement: rounds of sampling, selection and fine-tuning."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from engine.config.base import Section
from engine.config.learning.fine_tuning import SelectionRule
from engine.types import TerminationReason


class RoundsConfig(Section):
    """Rounds of self-improvement, their first policy and their training data."""

    rounds: int = Field(default=3, ge=1)
    """Number of rounds (sample → grade → keep → fine-tune)."""
    start_from: Literal["first", "previous"] = "first"
    """Policy that is fine-tuned: the run's first one every time, or that of the previous round."""
    learn_from: Literal["all", "last"] = "all"
    """Rounds whose rollouts are kept: all so far, or the last."""
    terminations: tuple[TerminationReason, ...] = (TerminationReason.SUBMITTED,)
    """Termination reasons of kept rollouts; empty keeps any."""


class ImprovementConfig(SelectionRule, RoundsConfig):
    """Rounds of self-improvement, and the selection of kept rollouts among those that passed."""

    per_task: int | None = Field(default=2, ge=1)
    """Maximum number of kept rollouts per task; None keeps all."""
    prefer: Literal["random", "shortest"] = "shortest"
    """Rollouts preferred where not all are kept: drawn with the run's seed, or those with the fewest
    generated tokens."""
