"""Flips: verdicts that changed when a patch was graded again."""

from __future__ import annotations

from engine.types import Verdict

FLIPS = (
    "passed_failed",
    "failed_passed",
    "passed_tampered",
    "tampered_passed",
    "failed_tampered",
    "tampered_failed",
)
"""Kinds of flips, as outcome before and after."""


def outcome_of(verdict: Verdict) -> str:
    """Return ``passed``, ``tampered`` or ``failed``, which includes timeouts and patches that do not apply.

    Raises:
        ValueError: infrastructure lost the grading, which is no outcome.
    """
    if verdict is Verdict.INFRA_ERROR:
        raise ValueError("a grading lost to infrastructure has no outcome")
    return verdict.value if verdict in (Verdict.PASSED, Verdict.TAMPERED) else Verdict.FAILED.value


def flip_of(old: Verdict, new: Verdict | None) -> str:
    """Return the kind of the flip; empty for equal outcomes, and where one of them is unknown."""
    if new is None or Verdict.INFRA_ERROR in (old, new):
        return ""
    before, after = outcome_of(old), outcome_of(new)
    return f"{before}_{after}" if before != after else ""
