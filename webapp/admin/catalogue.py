# ruff: noqa: ARG002  (Django's hooks receive arguments that not every override needs)
"""Admin pages of experiments, datasets and tasks."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import Count, QuerySet
from django.http import HttpRequest

from webapp.admin.site import RecordAdmin, RoleAdmin, site
from webapp.models import Dataset, Experiment, Task


@admin.register(Experiment, site=site)
class ExperimentAdmin(RoleAdmin[Experiment]):
    """Admin page of experiments."""

    list_display = ("name", "num_runs", "created_by", "created_at")
    search_fields = ("name", "description")
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


@admin.register(Dataset, site=site)
class DatasetAdmin(RecordAdmin[Dataset]):
    """Admin page of datasets, read-only mirrors of folders."""

    list_display = ("name", "num_tasks", "made_by", "created_at", "synced_at")
    search_fields = ("name",)
    list_filter = ("synced_at",)
    list_select_related = ("run",)

    def has_delete_permission(self, request: HttpRequest, obj: Dataset | None = None) -> bool:
        """Allow deletion of a dataset; its runs and trajectories are kept."""
        return self.has_view_permission(request, obj)

    @admin.display(description="made by run", ordering="run_id")
    def made_by(self, dataset: Dataset) -> str:
        """Return the run that created the dataset."""
        return str(dataset.run) if dataset.run else "–"


@admin.register(Task, site=site)
class TaskAdmin(RecordAdmin[Task]):
    """Admin page of tasks, read-only."""

    list_display = ("instance_id", "dataset", "split", "repo", "active")
    list_filter = ("dataset", "split", "active")
    search_fields = ("instance_id", "key", "repo")
    list_select_related = ("dataset",)
