"""Settings of self-improvement: rounds of sampling, selection and fine-tuning."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from engine.config.fine_tuning import SelectionRule
from engine.types import TerminationReason


class ImprovementConfig(SelectionRule):
    """Rounds of self-improvement, and the rollouts that are kept of those that passed."""

    rounds: int = Field(default=3, ge=1)
    """Number of rounds (sample → grade → keep → fine-tune)."""
    per_task: int | None = Field(default=2, ge=1)
    """Maximum number of kept rollouts per task; None keeps all."""
    prefer: Literal["random", "shortest"] = "shortest"
    """Rollouts preferred where not all are kept: drawn with the run's seed, or those with the fewest
    generated tokens."""
    terminations: tuple[TerminationReason, ...] = (TerminationReason.SUBMITTED,)
    """Reasons for which kept rollouts ended; empty keeps any."""
    learn_from: Literal["all", "last"] = "all"
    """Rounds whose rollouts are kept: all so far, or the last."""
    start_from: Literal["first", "previous"] = "first"
    """Policy that is fine-tuned: the run's first one every time, or that of the previous round."""
