"""Admin pages of notifications and their messages."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.http import HttpRequest

from webapp.core.admin_site import RecordAdmin, RoleAdmin, site
from webapp.notifications.models import Delivery, Notification
from webapp.notifications.services import notifications


@admin.register(Notification, site=site)
class NotificationAdmin(RecordAdmin[Notification]):
    """Admin page of notifications, which administrators may remove."""

    list_display = ("id", "owner", "kind", "address", "experiment", "states", "alerts", "created_at")
    list_filter = ("kind", "owner")
    search_fields = ("address",)
    list_select_related = ("owner", "experiment")
    exclude = ("sealed",)

    has_delete_permission = RoleAdmin.has_delete_permission

    def delete_model(self, request: HttpRequest, obj: Notification) -> None:
        """Remove one, with an entry in the audit trail."""
        actor = request.user
        notifications.remove(notification=obj, actor=actor if isinstance(actor, User) else None)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Notification]) -> None:
        """Remove the selected ones, with an entry in the audit trail for each."""
        for notification in queryset.select_related("owner"):
            self.delete_model(request, notification)


@admin.register(Delivery, site=site)
class DeliveryAdmin(RecordAdmin[Delivery]):
    """Admin page of messages, read-only."""

    list_display = ("created_at", "notification", "run", "state", "attempts", "status", "detail")
    list_filter = ("state",)
    list_select_related = ("notification", "run")
    show_full_result_count = False

    # Removed with their notification, which asks for this permission.
    has_delete_permission = RoleAdmin.has_delete_permission
