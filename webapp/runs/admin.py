"""Read-only admin pages of runs and alerts."""

from __future__ import annotations

from django.contrib import admin

from webapp.core.admin_site import RecordAdmin, site
from webapp.runs.models.alerts import Alert
from webapp.runs.models.runs import Run


@admin.register(Run, site=site)
class RunAdmin(RecordAdmin[Run]):
    """Admin page of runs, read-only."""

    list_display = (
        "id",
        "name",
        "kind",
        "state",
        "recipe",
        "dataset",
        "experiment",
        "created_by",
        "created_at",
    )
    list_filter = ("state", "kind", "recipe", "experiment", "dataset")
    search_fields = ("name", "recipe")
    list_select_related = ("dataset", "experiment", "created_by")


@admin.register(Alert, site=site)
class AlertAdmin(RecordAdmin[Alert]):
    """Admin page of alerts, read-only."""

    list_display = ("time", "severity", "code", "run", "message", "acknowledged_by")
    list_filter = ("severity", "code")
    search_fields = ("message", "code")
    list_select_related = ("run", "acknowledged_by")
