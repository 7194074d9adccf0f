"""Outcomes in published rows: whether the task was solved, patch, end reason, cost.

Every format has its own vocabulary, listed here. Any other value counts as unknown (None) and is never
guessed: a ``resolved`` of -1 is not a success, a patch under another key is not an empty patch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from engine.types import TerminationReason, Verdict

_RESOLVED = ("report.resolved", "test_result.report.resolved", "resolved", "target", "reward")
_PATCHES = ("model_patch", "generated_patch", "git_patch", "test_result.git_patch", "patch")
"""Fields of nebius's two datasets, of OpenHands and of SWE-smith."""
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
"""Part of OpenHands' error message at its step limit."""


def truth(value: Any) -> bool | None:
    """Convert a published outcome: 1 and 0 as booleans, numbers or strings; None for any other value."""
    if isinstance(value, str):
        return _TRUTHS.get(value.strip().lower())
    if isinstance(value, bool | int | float) and value in (0, 1):
        return bool(value)
    return None


def verdict_of(resolved: bool | None) -> Verdict | None:
    """Return the verdict of a published outcome; None if it is unknown."""
    return None if resolved is None else Verdict.PASSED if resolved else Verdict.FAILED


def resolved_of(row: Mapping[str, Any]) -> bool | None:
    """Return whether a row reports its task as solved; None if it is silent or contradicts itself."""
    reported = {value for name in _RESOLVED if (value := truth(_at(row, name))) is not None}
    return reported.pop() if len(reported) == 1 else None


def patch_of(row: Mapping[str, Any]) -> str | None:
    """Return the patch of a row; None if unknown."""
    values = (_at(row, name) for name in _PATCHES)
    return next((patch for patch in values if isinstance(patch, str)), None)


def cost_of(row: Mapping[str, Any]) -> float | None:
    """Return the cost of a row, US dollars; None if unknown."""
    for name in _COSTS:
        value = _at(row, name)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
            return float(value)
    return None


def error_of(row: Mapping[str, Any]) -> str:
    """Return the error that ended a row's rollout; empty without one."""
    error = row.get("error")
    return error if isinstance(error, str) else ""


def end_of(row: Mapping[str, Any]) -> TerminationReason | None:
    """Return the termination reason of a row's rollout; None if unknown."""
    if _STEP_LIMIT in error_of(row):
        return TerminationReason.MAX_STEPS
    return _ENDS.get(str(row.get("exit_status")).lower())


def _at(row: Mapping[str, Any], path: str) -> Any:
    """Return the value at a dotted path of fields; None if missing."""
    value: Any = row
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
