"""Reads of the inference engines of a run."""

from __future__ import annotations

from webapp.runs.models.engines import EngineReport, EngineSample

MAX_POINTS = 240


def newest_report(run_id: int) -> EngineReport | None:
    """Return the newest report of a run's engines; None before the first."""
    return EngineReport.objects.filter(run_id=run_id).first()


def history(run_id: int) -> list[EngineSample]:
    """Return at most ``MAX_POINTS`` evenly spaced reports, oldest first."""
    rows = EngineSample.objects.filter(run_id=run_id).order_by("interval")
    intervals = list(rows.values_list("interval", flat=True))
    stride = -(-len(intervals) // MAX_POINTS) or 1
    # Counted from the newest one, which is always shown.
    return list(rows.filter(interval__in=intervals[::-1][::stride]))
