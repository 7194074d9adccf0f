"""Outcomes in published rows: whether the task was solved, the patch, the end, the cost.

Every format has its own words, which are listed here. Any other value is unknown, which is None and never a
guess: a ``resolved`` of -1 is no success, a patch under another key is no empty patch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from engine.types import TerminationReason, Verdict

_RESOLVED = ("report.resolved", "test_result.report.resolved", "resolved", "target", "reward")
_PATCHES = ("model_patch", "generated_patch", "git_patch", "test_result.git_patch", "patch")
"""Fields of nebius's two sets, of OpenHands and of SWE-smith."""
_COSTS = ("final_metrics.total_cost_usd", "metrics.accumulated_cost", "cost")
_TRUTHS = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}
_ENDS: Mapping[str, TerminationReason] = {
    "submit": TerminationReason.SUBMITTED,
    "submitted": TerminationReason.SUBMITTED,
    "exit_cost": TerminationReason.MAX_STEPS,
    "submitted (exit_cost)": TerminationReason.MAX_STEPS,
    "limitsexceeded": TerminationReason.MAX_STEPS,
    "exit_context": TerminationReason.MAX_CONTEXT,
    "submitted (exit_context)": TerminationReason.MAX_CONTEXT,
    "timeexceeded": TerminationReason.ROLLOUT_TIMEOUT,
}
_STEP_LIMIT = "maximum iteration"
"""Part of the error with which OpenHands ends at its limit of steps."""


def truth(value: Any) -> bool | None:
    """Return a published outcome: 1 and 0 as booleans, numbers or texts; None for any other value."""
    if isinstance(value, str):
        return _TRUTHS.get(value.strip().lower())
    if isinstance(value, bool | int | float) and value in (0, 1):
        return bool(value)
    return None


def verdict_of(resolved: bool | None) -> Verdict | None:
    """Return the verdict of a published outcome; None where it is unknown."""
    return None if resolved is None else Verdict.PASSED if resolved else Verdict.FAILED


def resolved_of(row: Mapping[str, Any]) -> bool | None:
    """Return whether a row says that its task was solved; None where it does not, or contradicts itself."""
    said = {found for name in _RESOLVED if (found := truth(_at(row, name))) is not None}
    return said.pop() if len(said) == 1 else None


def patch_of(row: Mapping[str, Any]) -> str | None:
    """Return the patch of a row; None where it is unknown."""
    found = (_at(row, name) for name in _PATCHES)
    return next((patch for patch in found if isinstance(patch, str)), None)


def cost_of(row: Mapping[str, Any]) -> float | None:
    """Return the cost of a row, US dollars; None where it is unknown."""
    for name in _COSTS:
        value = _at(row, name)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
            return float(value)
    return None


def error_of(row: Mapping[str, Any]) -> str:
    """Return the error with which a row's rollout ended; empty without one."""
    error = row.get("error")
    return error if isinstance(error, str) else ""


def end_of(row: Mapping[str, Any]) -> TerminationReason | None:
    """Return why a row's rollout ended; None where it is unknown."""
    if _STEP_LIMIT in error_of(row):
        return TerminationReason.MAX_STEPS
    return _ENDS.get(str(row.get("exit_status")).lower())


def _at(row: Mapping[str, Any], path: str) -> Any:
    """Return the value of a field, or of a field of a field; None without one."""
    value: Any = row
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
