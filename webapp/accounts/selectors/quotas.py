"""Reads of users' quotas."""

from __future__ import annotations

from webapp.accounts.models import RunQuota


def run_quotas() -> dict[int | None, int]:
    """Return the number of runs at once of the users who have a limit of their own."""
    return dict(RunQuota.objects.values_list("user_id", "runs_at_once"))
