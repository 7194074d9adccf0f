# ruff: noqa: ARG002  (Django's hooks receive arguments that not every override needs)
"""Admin page of experiments."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import Count, QuerySet
from django.http import HttpRequest

from webapp.core.admin_site import RoleAdmin, site
from webapp.experiments.models import Experiment


@admin.register(Experiment, site=site)
class ExperimentAdmin(RoleAdmin[Experiment]):
    """Admin page of experiments."""

    list_display = ("name", "num_runs", "created_by", "created_at")
    search_fields = ("name", "goal", "hypothesis", "conclusion")
    list_filter = ("created_at",)
    readonly_fields = ("created_by", "created_at")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Experiment]:
        """Return the experiments with their number of runs."""
        return super().get_queryset(request).select_related("created_by").annotate(run_count=Count("runs"))

    @admin.display(description="runs", ordering="run_count")
    def num_runs(self, experiment: Experiment) -> int:
        """Return the number of runs."""
        return int(getattr(experiment, "run_count", 0))

    def save_model(self, request: HttpRequest, obj: Experiment, form: object, change: bool) -> None:
        """Save the experiment with its creator."""
        if not change and request.user.is_authenticated:
            obj.created_by = request.user
        obj.save()
