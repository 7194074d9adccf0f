"""What a training run knows about itself: saved in every checkpoint, told in the final summary."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass, field
from typing import Any

from engine.evaluation.metrics import EvaluationSummary
from engine.orchestrator.setup import peak_memory_mb

HELDOUT, TRAIN = "heldout", "train"


@dataclass(slots=True, kw_only=True)
class TrainProgress:
    """Counters of a training run over all its attempts."""

    iteration: int = 0
    """Completed iterations."""
    policy_version: int = 0
    """Weight updates made."""
    trajectories: int = 0
    """Finished training trajectories."""
    seconds: float = 0.0
    """Wall time of attempts before this one, up to the checkpoint it goes on from."""
    solve_rates: list[float] = field(default_factory=list)
    """Of every iteration's training trajectories."""
    evaluations: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    """Name → first and last evaluation: solve_rate, interval_low, interval_high."""
    _started: float = field(default_factory=time.monotonic)

    def state_dict(self) -> dict[str, Any]:
        """Everything as JSON."""
        state = dataclasses.asdict(self) | {"seconds": self._elapsed()}
        del state["_started"]
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        for name, value in state.items():
            setattr(self, name, value)

    def add_evaluation(self, name: str, summary: EvaluationSummary) -> None:
        """Remember an evaluation, if it is the first or so far the last."""
        found = {
            "solve_rate": summary.solve_rate,
            "low": summary.interval_low,
            "high": summary.interval_high,
        }
        self.evaluations[name] = [*self.evaluations.get(name, [])[:1], found]

    def summary(self) -> dict[str, float | int | str | None]:
        """The numbers people look for first."""
        train = [entry["solve_rate"] for entry in self.evaluations.get(TRAIN, [])] or self.solve_rates
        found: dict[str, float | int | str | None] = {
            "iterations": self.iteration,
            "trajectories": self.trajectories,
            "solve_rate_first": train[0] if train else None,
            "solve_rate_last": train[-1] if train else None,
            "seconds": round(self._elapsed(), 1),
            "peak_memory_mb": round(peak_memory_mb(), 1),
        }
        heldout = self.evaluations.get(HELDOUT, [])
        for label, entry in zip(("first", "last"), (heldout[:1] + heldout[-1:]), strict=False):
            found[f"heldout_{label}"] = entry["solve_rate"]
            found[f"heldout_{label}_low"] = entry["low"]
            found[f"heldout_{label}_high"] = entry["high"]
        return found

    def _elapsed(self) -> float:
        return self.seconds + time.monotonic() - self._started
