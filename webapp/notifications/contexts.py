"""Notifications page: what a person is told about, the newest messages, and the form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from django.conf import settings

from engine.errors import Problem
from webapp.core.contexts.frame import Crumb
from webapp.core.contexts.words import in_words
from webapp.core.permissions import Person
from webapp.experiments.models import Experiment
from webapp.notifications import selectors as reads
from webapp.notifications.models import ALL_ALERTS, Delivery, Notification
from webapp.notifications.services.notifications import STATES

_MOST_EXPERIMENTS = 200
_MARKS = {
    Delivery.State.PENDING.value: "queued",
    Delivery.State.DELIVERED.value: "passed",
    Delivery.State.FAILED.value: "failed",
}


@dataclass(frozen=True, slots=True)
class NotificationRow:
    """A notification in words."""

    notification: Notification
    events: str


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    """A message in words."""

    delivery: Delivery
    event: str
    chip: str
    """Class of the state's chip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationsContext:
    """Notifications page."""

    section: str
    crumbs: tuple[Crumb, ...]
    rows: tuple[NotificationRow, ...]
    deliveries: tuple[DeliveryRow, ...]
    values: Mapping[str, str]
    """The form's content."""
    kinds: tuple[tuple[str, str], ...]
    states: tuple[tuple[str, str, bool], ...]
    """Value and label of each final state, and whether it is checked."""
    experiments: tuple[tuple[str, str], ...]
    mails: bool
    """Whether a mail server is configured."""
    refused: tuple[Problem, ...]
    secret: str
    """Signing secret of the webhook that was just created."""
    tested: DeliveryRow | None


def build_notifications(
    person: Person,
    *,
    posted: Mapping[str, str] | None = None,
    checked: tuple[str, ...] = ("failed",),
    refused: tuple[Problem, ...] = (),
    secret: str = "",
    tested: Delivery | None = None,
) -> NotificationsContext:
    """Return the page of a person; administrators see everybody's notifications."""
    notifications = reads.visible(person.role, person.user.pk)
    names = Experiment.objects.order_by("-id").values_list("pk", "name")[:_MOST_EXPERIMENTS]
    return NotificationsContext(
        section="notifications",
        crumbs=(Crumb("Notifications"),),
        rows=tuple(NotificationRow(row, _events(row)) for row in notifications),
        deliveries=tuple(map(_delivery, reads.newest_deliveries(notifications))),
        values=posted or {"kind": Notification.Kind.WEBHOOK.value},
        kinds=((Notification.Kind.WEBHOOK.value, "webhook"), (Notification.Kind.EMAIL.value, "e-mail")),
        states=tuple((state.value, in_words(state), state.value in checked) for state in STATES),
        experiments=tuple((str(pk), name) for pk, name in names),
        mails=bool(settings.EMAIL_URL),
        refused=refused,
        secret=secret,
        tested=_delivery(tested) if tested is not None else None,
    )


def _events(notification: Notification) -> str:
    states = [f"run {in_words(state)}" for state in notification.states]
    codes = notification.alerts
    alerts = ["all warnings and errors"] if ALL_ALERTS in codes else [in_words(code) for code in codes]
    return ", ".join((*states, *alerts))


def _delivery(delivery: Delivery) -> DeliveryRow:
    alert = delivery.payload["data"].get("alert")
    kind = str(delivery.payload["type"])
    event = in_words(alert["code"]) if alert else in_words(kind.removeprefix("run."))
    return DeliveryRow(delivery, event, _MARKS[delivery.state])
