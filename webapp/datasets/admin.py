"""Admin pages of datasets and tasks."""

from __future__ import annotations

from django.contrib import admin
from django.http import HttpRequest

from webapp.core.admin_site import RecordAdmin, site
from webapp.datasets.models.datasets import Dataset, Task


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
