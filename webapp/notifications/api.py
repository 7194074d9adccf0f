"""Notifications about runs: list, creation, test, removal, messages."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from django.http import HttpRequest
from ninja import Router, Schema
from ninja.errors import HttpError

from engine.errors import ConfigError, Problem
from webapp.api.auth import caller, operator, role_of_caller
from webapp.experiments.models import Experiment
from webapp.notifications import selectors as reads
from webapp.notifications.models import Delivery, Notification
from webapp.notifications.services import delivery, notifications

router = Router(tags=["notifications"])


class NotificationOut(Schema):
    """A notification; the URL of a webhook is shortened to its host."""

    id: int
    owner: str
    kind: str
    address: str
    experiment: str | None
    states: list[str]
    alerts: list[str]
    created_at: datetime


class NotificationCreated(NotificationOut):
    """A new notification, with the signing secret of a webhook, which is not shown again."""

    secret: str


class NotificationIn(Schema):
    """Values of a notification."""

    kind: str
    """``webhook`` or ``email``."""
    address: str
    """URL or e-mail address."""
    experiment: str | None = None
    """Name of an experiment; null: all runs."""
    states: list[str] = []
    """Final states of runs: ``succeeded``, ``failed``, ``stopped``."""
    alerts: list[str] = []
    """Codes of alerts; ``*``: all warnings and errors."""


class DeliveryOut(Schema):
    """A message and its last attempt."""

    id: UUID
    type: str
    run_id: int | None
    state: str
    attempts: int
    status: int | None
    """HTTP status of the last response."""
    detail: str
    created_at: datetime
    next_at: datetime | None
    ended_at: datetime | None


@router.get("/notifications", auth=operator, response=list[NotificationOut])
def list_notifications(request: HttpRequest) -> list[dict[str, Any]]:
    """List the caller's notifications; administrators get all."""
    return list(map(notification_record, reads.visible(role_of_caller(request), caller(request).pk)))


@router.post("/notifications", auth=operator, response={201: NotificationCreated})
def add_notification(request: HttpRequest, body: NotificationIn) -> tuple[int, dict[str, Any]]:
    """Create a notification of the caller."""
    notification, secret = notifications.add(
        owner=caller(request),
        kind=body.kind,
        address=body.address,
        experiment=experiment_named(body.experiment),
        states=body.states,
        alerts=body.alerts,
        actor=caller(request),
    )
    return 201, notification_record(notification) | {"secret": secret}


@router.delete("/notifications/{int:notification_id}", auth=operator, response={204: None})
def remove_notification(request: HttpRequest, notification_id: int) -> tuple[int, None]:
    """Remove a notification with its messages."""
    notifications.remove(notification=_find(request, notification_id), actor=caller(request))
    return 204, None


@router.post("/notifications/{int:notification_id}/test", auth=operator, response=DeliveryOut)
def test_notification(request: HttpRequest, notification_id: int) -> dict[str, Any]:
    """Send a test message now."""
    sent = delivery.send_test(notification=_find(request, notification_id), actor=caller(request))
    return delivery_record(sent)


@router.get("/notifications/{int:notification_id}/deliveries", auth=operator, response=list[DeliveryOut])
def list_deliveries(request: HttpRequest, notification_id: int, size: int = 50) -> list[dict[str, Any]]:
    """List the newest messages of a notification, at most 200."""
    found = _find(request, notification_id)
    rows = reads.visible(role_of_caller(request), caller(request).pk).filter(pk=found.pk)
    return list(map(delivery_record, reads.newest_deliveries(rows, limit=max(1, min(size, 200)))))


def experiment_named(name: str | None) -> Experiment | None:
    """Return the experiment of this name; None without a name. Raises ConfigError."""
    if name is None:
        return None
    experiment = Experiment.objects.filter(name=name).first()
    if experiment is None:
        raise ConfigError(Problem(f"there is no experiment '{name[:80]}'", "experiment"))
    return experiment


def notification_record(notification: Notification) -> dict[str, Any]:
    """Return a notification as the API shows it."""
    experiment = notification.experiment
    names = ("kind", "address", "states", "alerts", "created_at")
    return {
        "id": notification.pk,
        "owner": notification.owner.get_username(),
        "experiment": experiment.name if experiment is not None else None,
        **{name: getattr(notification, name) for name in names},
    }


def delivery_record(sent: Delivery) -> dict[str, Any]:
    """Return a message as the API shows it."""
    names = ("run_id", "state", "attempts", "status", "detail", "created_at", "next_at", "ended_at")
    record = {"id": sent.pk, "type": sent.payload["type"], **{name: getattr(sent, name) for name in names}}
    return DeliveryOut.model_validate(record).model_dump()


def _find(request: HttpRequest, notification_id: int) -> Notification:
    notification = reads.find(notification_id, role_of_caller(request), caller(request).pk)
    if notification is None:
        raise HttpError(404, f"there is no notification {notification_id}")
    return notification
