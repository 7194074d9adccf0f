"""Sending of stored messages: at most one process sends, in rounds of one message per notification.

A failed attempt is repeated after growing pauses; PostgreSQL has the times, and a task that runs every
30 seconds sends what is due. The receiver gets a message at least once, always with the same id.
"""

from __future__ import annotations

import asyncio
import json
import logging
import smtplib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import uuid4

from django.conf import settings
from django.contrib.auth.models import User
from django.core.mail import EmailMessage, get_connection
from django.utils import timezone

from engine.errors import ConfigError
from engine.redaction import redact
from engine.terminal import visible_line
from webapp.core.dispatch import TaskName, send
from webapp.core.permissions import Role, has_role
from webapp.core.services import audit
from webapp.core.services.locks import alone
from webapp.notifications.models import Delivery, Notification
from webapp.notifications.services import webhooks
from webapp.notifications.services.notifications import webhook_of
from webapp.notifications.services.webhooks import MOST_DETAIL, Answer

PAUSES = tuple(timedelta(seconds=s) for s in (10, 60, 300, 1_800, 7_200, 21_600))
"""Time after each failed attempt; the seventh is the last one, about 8.5 hours after the first."""
BATCH = 20
"""Largest number of messages sent at once."""
TASK_S = 5.0
"""Time after which a task begins no further round, seconds."""
KEPT = timedelta(days=30)
"""Time after which messages are deleted."""
_LOCK = 0x5E4D
"""Key of the advisory lock of the process that sends."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Webhook:
    url: str
    secret: str


def sweep() -> None:
    """Send what is due for a few seconds, and send the task that continues; delete old messages."""
    Delivery.objects.filter(created_at__lt=timezone.now() - KEPT).delete()
    if send_due():
        send(TaskName.NOTIFY)


def send_due() -> bool:
    """Send due messages; return whether there may be more (False also if another process is sending)."""
    until = time.monotonic() + TASK_S
    with alone(_LOCK) as is_alone:
        while is_alone and (due := _claimed()):
            _send(due)
            if time.monotonic() > until:
                return True
    return False


def send_test(*, notification: Notification, actor: User | None = None) -> Delivery:
    """Send a test message now, once; return it with the result."""
    payload = {
        "type": "test",
        "timestamp": timezone.now().isoformat(),
        "data": {"message": "Trainyard can reach this address."},
    }
    delivery = Delivery.objects.create(
        notification=notification, key=f"test {uuid4().hex}", payload=payload, attempts=len(PAUSES) + 1
    )
    _send([delivery])
    audit.record(
        actor=actor, action="notification.test", target=f"notification {notification.pk}",
        changes={"state": delivery.state},
    )  # fmt: skip
    return delivery


def _claimed() -> list[Delivery]:
    """Return the longest due message of each notification, with this attempt counted.

    The next attempt is scheduled first: a process that dies while it sends repeats the message.
    """
    due = Delivery.objects.filter(state=Delivery.State.PENDING, next_at__lte=timezone.now())
    oldest = due.order_by("notification_id", "next_at").distinct("notification_id").values("pk")
    rows = Delivery.objects.filter(pk__in=oldest).select_related("notification__owner").order_by("next_at")
    claimed = list(rows.prefetch_related("notification__owner__groups")[:BATCH])
    for delivery in claimed:
        delivery.attempts += 1
        delivery.next_at = timezone.now() + PAUSES[min(delivery.attempts, len(PAUSES)) - 1]
    Delivery.objects.bulk_update(claimed, ["attempts", "next_at"])
    return claimed


def _send(deliveries: Sequence[Delivery]) -> None:
    targets = [_target(delivery.notification) for delivery in deliveries]
    answers = asyncio.run(_send_all(deliveries, targets))
    for delivery, answer in zip(deliveries, answers, strict=True):
        _record(delivery, answer)
    fields = ["state", "next_at", "status", "detail", "ended_at"]
    Delivery.objects.bulk_update(deliveries, fields)


def _target(notification: Notification) -> _Webhook | str | Answer:
    """Return a webhook, an e-mail address, or the reason why nothing can be sent."""
    if not has_role(notification.owner, Role.OPERATOR):
        reason = f"{notification.owner.get_username()} is no active operator any more"
        return Answer(False, None, reason[:MOST_DETAIL], final=True)
    if notification.kind == Notification.Kind.EMAIL:
        return notification.address
    try:
        return _Webhook(*webhook_of(notification))
    except ConfigError as error:
        return Answer(False, None, str(error)[:MOST_DETAIL])


async def _send_all(
    deliveries: Sequence[Delivery], targets: Sequence[_Webhook | str | Answer]
) -> list[Answer]:
    async def attempt(delivery: Delivery, target: _Webhook | str | Answer) -> Answer:
        match target:
            case _Webhook(url, secret):
                body = json.dumps(delivery.payload, sort_keys=True, separators=(",", ":")).encode()
                return await webhooks.post(url, secret=secret, message_id=f"msg_{delivery.pk.hex}", body=body)
            case str(address):
                return await asyncio.to_thread(_mail, address, delivery)
            case answer:
                return answer

    return await asyncio.gather(*map(attempt, deliveries, targets))


def _mail(address: str, delivery: Delivery) -> Answer:
    if not settings.EMAIL_URL:
        return Answer(False, None, "no mail server is configured: EMAIL_URL is not set")
    subject, body = mail_text(delivery)
    message = EmailMessage(
        subject,
        body,
        settings.DEFAULT_FROM_EMAIL,
        [address],
        connection=get_connection(timeout=webhooks.TIMEOUT_S),
        headers={"Message-ID": f"<{delivery.pk.hex}@trainyard>"},
    )
    try:
        message.send()
    except (OSError, smtplib.SMTPException, ValueError) as error:
        return Answer(False, None, (str(error) or type(error).__name__)[:MOST_DETAIL])
    return Answer(True, None, "accepted by the mail server")


def mail_text(delivery: Delivery) -> tuple[str, str]:
    """Return subject and body of a message; names and reasons cannot add headers or lines."""
    data = delivery.payload["data"]
    run = data.get("run")
    if run is None:
        return "Trainyard: test", f"{data['message']}\n"
    alert = data.get("alert")
    event = f"{alert['severity']} {alert['code']}" if alert else run["state"]
    subject = visible_line(f"Trainyard: run {run['id']} {event}: {run['name']}")[:200]
    facts = [f"Run {run['id']}: {run['name']}", f"State: {run['state']}"]
    facts += [f"Reason: {run['reason']}"] if run["reason"] else []
    facts += [f"Experiment: {run['experiment']}"] if run["experiment"] else []
    facts += [f"Alert: {alert['code']} ({alert['severity']}): {alert['message']}"] if alert else []
    facts += [f"{name}: {value}" for name, value in run["summary"].items()]
    return subject, "\n".join(map(visible_line, [*facts, run["url"]])) + "\n"


def _record(delivery: Delivery, answer: Answer) -> None:
    delivery.status = answer.status
    delivery.detail = redact(answer.detail.replace("\0", "\ufffd"))[:MOST_DETAIL]
    if answer.delivered:
        delivery.state = Delivery.State.DELIVERED
    elif answer.final or delivery.attempts > len(PAUSES):
        delivery.state = Delivery.State.FAILED
        log.warning("message %s was not delivered: %s", delivery.pk, delivery.detail)
    else:
        delivery.next_at = timezone.now() + PAUSES[delivery.attempts - 1]
        return
    delivery.next_at, delivery.ended_at = None, timezone.now()
