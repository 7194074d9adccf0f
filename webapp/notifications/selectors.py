"""Reads of notifications and their messages."""

from __future__ import annotations

from django.db.models import QuerySet

from webapp.core.permissions import Role
from webapp.notifications.models import Delivery, Notification


def visible(role: Role, user_id: int | None) -> QuerySet[Notification]:
    """Return the notifications that a user manages: own ones, administrators all."""
    rows = Notification.objects.select_related("owner", "experiment").defer("sealed")
    return rows if role is Role.ADMIN else rows.filter(owner_id=user_id)


def find(notification_id: int, role: Role, user_id: int | None) -> Notification | None:
    """Return a notification that the user manages; None if there is none."""
    return visible(role, user_id).filter(pk=notification_id).first()


def newest_deliveries(notifications: QuerySet[Notification], *, limit: int = 50) -> list[Delivery]:
    """Return the newest messages of notifications."""
    rows = Delivery.objects.filter(notification__in=notifications.order_by().values("pk"))
    return list(rows.select_related("notification__owner", "run")[:limit])
