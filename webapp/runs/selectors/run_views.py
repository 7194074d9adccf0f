"""Reads of saved views of the runs table."""

from __future__ import annotations

from webapp.runs.models.run_views import RunView


def views_of(user_id: int) -> list[RunView]:
    """Return a person's views, by name."""
    return list(RunView.objects.filter(user=user_id).order_by("name"))


def default_view(user_id: int) -> RunView | None:
    """Return the view with which a person's table opens; None without one."""
    return RunView.objects.filter(user=user_id, is_default=True).first()
