"""Admin page of labels and comments."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.http import HttpRequest

from webapp.core.admin_site import RecordAdmin, RoleAdmin, site
from webapp.rollouts.models.annotations import Annotation
from webapp.rollouts.services import annotations as annotation_writes


@admin.register(Annotation, site=site)
class AnnotationAdmin(RecordAdmin[Annotation]):
    """Admin page of labels and comments, which administrators may remove."""

    list_display = ("created_at", "kind", "text", "trajectory", "step_index", "author")
    list_filter = ("kind", "author")
    search_fields = ("text",)
    list_select_related = ("trajectory", "author")

    has_delete_permission = RoleAdmin.has_delete_permission

    def delete_model(self, request: HttpRequest, obj: Annotation) -> None:
        """Remove one, with an entry in the audit trail."""
        actor = request.user
        annotation_writes.remove(annotation=obj, actor=actor if isinstance(actor, User) else None)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Annotation]) -> None:
        """Remove the selected ones, with an entry in the audit trail for each."""
        for annotation in queryset.select_related("trajectory__run"):
            self.delete_model(request, annotation)
