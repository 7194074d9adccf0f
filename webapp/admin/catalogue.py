# ruff: noqa: ARG002  (Django's hooks are handed arguments that not every answer needs)
"""Experiments, datasets and tasks."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import Count, QuerySet
from django.http import HttpRequest

from webapp.admin.site import RecordAdmin, RoleAdmin, site
from webapp.models import Dataset, Experiment, Task


@admin.register(Experiment, site=site)
class ExperimentAdmin(RoleAdmin[Experiment]):
    """Experiments are made and named here."""

    list_display = ("name", "num_runs", "created_by", "created_at")
    search_fields = ("name", "description")
    list_filter = ("created_at",)
    readonly_fields = ("created_by", "created_at")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Experiment]:
        """With the number of runs."""
        return super().get_queryset(request).select_related("created_by").annotate(run_count=Count("runs"))

    @admin.display(description="runs", ordering="run_count")
    def num_runs(self, experiment: Experiment) -> int:
        """How many runs it has."""
        return int(getattr(experiment, "run_count", 0))

    def save_model(self, request: HttpRequest, obj: Experiment, form: object, change: bool) -> None:
        """Remember who made it."""
        if not change and request.user.is_authenticated:
            obj.created_by = request.user
        obj.save()


@admin.register(Dataset, site=site)
class DatasetAdmin(RecordAdmin[Dataset]):
    """Datasets mirror folders; what is wrong there is mended in the folder and synchronised."""

    list_display = ("name", "num_tasks", "made_by", "created_at", "synced_at")
    search_fields = ("name",)
    list_filter = ("synced_at",)
    list_select_related = ("run",)

    def has_delete_permission(self, request: HttpRequest, obj: Dataset | None = None) -> bool:
        """A dataset may be forgotten; its runs and trajectories stay."""
        return self.has_view_permission(request, obj)

    @admin.display(description="made by run", ordering="run_id")
    def made_by(self, dataset: Dataset) -> str:
        """The curation run."""
        return str(dataset.run) if dataset.run else "–"


@admin.register(Task, site=site)
class TaskAdmin(RecordAdmin[Task]):
    """Tasks, to look up."""

    list_display = ("instance_id", "dataset", "split", "repo", "active")
    list_filter = ("dataset", "split", "active")
    search_fields = ("instance_id", "key", "repo")
    list_select_related = ("dataset",)
