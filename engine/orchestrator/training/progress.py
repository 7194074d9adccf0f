"""Progress of a training run, saved in every checkpoint and reported in the final summary."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.evaluation.metrics import EvaluationSummary
from engine.orchestrator.setup import peak_memory_mb

HELDOUT, TRAIN = "heldout", "train"


class Saved(Protocol):
    """Component whose state is stored in checkpoints, as JSON."""

    def state_dict(self) -> dict[str, Any]:
        """Return the current state."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""


@dataclass(slots=True, kw_only=True)
class TrainProgress:
    """Counters of a training run over all its attempts."""

    iteration: int = 0
    """Completed iterations."""
    policy_version: int = 0
    """Number of weight updates made."""
    trajectories: int = 0
    """Finished training trajectories."""
    seconds: float = 0.0
    """Wall time of earlier attempts, up to the checkpoint from which this one resumes, seconds."""
    solve_rates: list[float] = field(default_factory=list)
    """Solve rates of the training trajectories, per iteration."""
    evaluations: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    """Name → first and last evaluation: solve_rate, interval_low, interval_high."""
    heldout_rates: list[tuple[int, float]] = field(default_factory=list)
    """Completed iterations and solve rate of every evaluation of held-out tasks."""
    _started: float = field(default_factory=time.monotonic)

    @property
    def scores(self) -> dict[int, float]:
        """Return the held-out solve rate by completed iterations, used to select checkpoints to keep."""
        return dict(self.heldout_rates)

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state as JSON."""
        state = dataclasses.asdict(self) | {"seconds": self._elapsed()}
        del state["_started"]
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        for name, value in state.items():
            setattr(self, name, value)

    def add_evaluation(self, name: str, summary: EvaluationSummary) -> None:
        """Store an evaluation as the first, or else as the latest."""
        if name == HELDOUT:
            self.heldout_rates.append((self.iteration, summary.solve_rate))
        entry = {
            "solve_rate": summary.solve_rate,
            "low": summary.interval_low,
            "high": summary.interval_high,
        }
        self.evaluations[name] = [*self.evaluations.get(name, [])[:1], entry]

    def summary(self) -> dict[str, float | int | str | None]:
        """Return the headline numbers of the run."""
        train = [entry["solve_rate"] for entry in self.evaluations.get(TRAIN, [])] or self.solve_rates
        numbers: dict[str, float | int | str | None] = {
            "iterations": self.iteration,
            "trajectories": self.trajectories,
            "solve_rate_first": train[0] if train else None,
            "solve_rate_last": train[-1] if train else None,
            "seconds": round(self._elapsed(), 1),
            "peak_memory_mb": round(peak_memory_mb(), 1),
        }
        heldout = self.evaluations.get(HELDOUT, [])
        for label, entry in zip(("first", "last"), (heldout[:1] + heldout[-1:]), strict=False):
            numbers[f"heldout_{label}"] = entry["solve_rate"]
            numbers[f"heldout_{label}_low"] = entry["low"]
            numbers[f"heldout_{label}_high"] = entry["high"]
        return numbers

    def _elapsed(self) -> float:
        return self.seconds + time.monotonic() - self._started
