"""Alerts about what a curve shows too late. To add one: a check called by ``after_iteration``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine.orchestrator.context import RunContext
from engine.orchestrator.metrics import is_uniform
from engine.types import Group

INFRA_RATE_MAX = 0.02
UNIFORM_ITERATIONS = 3


class Alarms:
    """Watches iterations; its state fits in a checkpoint."""

    def __init__(self, run: RunContext) -> None:
        self._run = run
        self._uniform_in_a_row = 0

    def after_iteration(self, iteration: int, groups: Sequence[Group], metrics: Mapping[str, float]) -> None:
        """Look at a finished iteration and its metrics, the trainer's included."""
        self._infrastructure(iteration, metrics["infra/rate"])
        self._collapse(iteration, groups)
        if metrics["update/nonfinite"] > 0:
            self._run.alert(
                "error",
                "gradient_not_finite",
                f"{metrics['update/nonfinite']:.0f} step(s) were skipped: the gradient was not finite",
                iteration,
            )

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart, as JSON."""
        return {"uniform_in_a_row": self._uniform_in_a_row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._uniform_in_a_row = int(state["uniform_in_a_row"])

    def _infrastructure(self, iteration: int, rate: float) -> None:
        if rate > INFRA_RATE_MAX:
            self._run.alert(
                "warning",
                "infrastructure_rate",
                f"infrastructure lost {rate:.1%} of the rollouts of iteration {iteration}",
                iteration,
            )

    def _collapse(self, iteration: int, groups: Sequence[Group]) -> None:
        self._uniform_in_a_row = self._uniform_in_a_row + 1 if all(map(is_uniform, groups)) else 0
        if self._uniform_in_a_row == UNIFORM_ITERATIONS:
            self._run.alert(
                "warning",
                "uniform_groups",
                f"in {UNIFORM_ITERATIONS} iterations in a row every group's rewards were all equal: "
                "nothing is being learned",
                iteration,
            )
