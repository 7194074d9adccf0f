"""Creation and removal of notifications; the URL of a webhook and its secret are stored encrypted."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import transaction

from engine.errors import ConfigError, Problem
from engine.types import RunState
from webapp.core.permissions import Role, has_role
from webapp.core.services import audit, sealing
from webapp.experiments.models import Experiment
from webapp.notifications.models import ALL_ALERTS, Notification
from webapp.notifications.services.webhooks import new_secret

STATES = (RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED)
MOST = 20
"""Largest number of notifications of one person."""
_MOST_CODES = 50
_CODE = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_PRINTABLE = re.compile(r"[!-~]{1,1000}")


@transaction.atomic
def add(
    *,
    owner: User,
    kind: str,
    address: str,
    experiment: Experiment | None = None,
    states: Collection[str] = (),
    alerts: Collection[str] = (),
    actor: User | None = None,
) -> tuple[Notification, str]:
    """Create a notification; return it with the signing secret of a webhook, which is shown only now.

    Args:
        owner: person whom it belongs to.
        kind: ``webhook`` or ``email``.
        address: URL or e-mail address.
        experiment: only runs of this experiment; None: all runs.
        states: final states of runs to report.
        alerts: codes of alerts to report; ``*`` for all warnings and errors.
        actor: user who creates it; None for a command.

    Raises:
        ConfigError: a value is not valid, or the person has too many.
    """
    address = address.strip()
    _check(owner, kind, address, states, alerts)
    secret, sealed, shown = "", "", address
    if kind == Notification.Kind.WEBHOOK:
        secret, shown = new_secret(), _shown(address)
        stored = json.dumps({"url": address, "secret": secret})
        with sealing.locked():
            sealed = sealing.seal(stored, purpose=_purpose(owner, shown))
    notification = Notification.objects.create(
        owner=owner,
        kind=kind,
        address=shown,
        sealed=sealed,
        experiment=experiment,
        states=[state.value for state in STATES if state in states],
        alerts=[ALL_ALERTS] if ALL_ALERTS in alerts else sorted(set(alerts)),
    )
    audit.record(
        actor=actor,
        action="notification.create",
        target=f"notification {notification.pk}",
        changes={"kind": kind, "address": shown, "owner": owner.get_username()},
    )
    return notification, secret


@transaction.atomic
def remove(*, notification: Notification, actor: User | None = None) -> None:
    """Delete a notification with its messages, sent or not."""
    audit.record(
        actor=actor, action="notification.remove", target=f"notification {notification.pk}",
        changes={"address": notification.address, "owner": notification.owner.get_username()},
    )  # fmt: skip
    # The lock waits for transactions that store messages, so that those are deleted, too.
    list(Notification.objects.select_for_update(of=("self",)).filter(pk=notification.pk))
    notification.delete()


def webhook_of(notification: Notification) -> tuple[str, str]:
    """Return URL and signing secret of a webhook. Raises ConfigError if they cannot be decrypted."""
    purpose = _purpose(notification.owner, notification.address)
    stored = json.loads(sealing.unseal(notification.sealed, purpose=purpose))
    return stored["url"], stored["secret"]


def _check(owner: User, kind: str, address: str, states: Collection[str], alerts: Collection[str]) -> None:
    problems = []
    if kind == Notification.Kind.WEBHOOK:
        problems += [Problem(reason, "address") for reason in filter(None, [_url_problem(address)])]
    elif kind != Notification.Kind.EMAIL:
        problems.append(Problem(f"'{kind[:40]}' is not one of webhook, email", "kind"))
    elif not settings.EMAIL_URL:
        problems.append(
            Problem("no mail server is configured: an administrator sets EMAIL_URL and EMAIL_FROM", "kind")
        )
    else:
        try:
            validate_email(address)
        except ValidationError:
            problems.append(Problem(f"'{address[:80]}' is no e-mail address", "address"))
    if unknown := sorted(set(states) - set(STATES)):
        problems.append(Problem(f"'{unknown[0][:40]}' is not one of {', '.join(STATES)}", "states"))
    wrong = [code for code in alerts if code != ALL_ALERTS and not _CODE.fullmatch(code)]
    if wrong or len(alerts) > _MOST_CODES:
        reason = f"'{wrong[0][:40]}' is no code of an alert" if wrong else f"at most {_MOST_CODES} codes"
        problems.append(Problem(reason, "alerts"))
    if not states and not alerts:
        problems.append(Problem("choose at least one state or alert", "states"))
    if Notification.objects.filter(owner=owner).count() >= MOST:
        problems.append(
            Problem(f"{owner.get_username()} has {MOST} notifications: remove one first", "owner")
        )
    if not has_role(owner, Role.OPERATOR):
        problems.append(Problem(f"{owner.get_username()} needs the role {Role.OPERATOR}", "owner"))
    if problems:
        raise ConfigError(*problems)


def _url_problem(url: str) -> str:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or not _PRINTABLE.fullmatch(url):
        return "this is no URL of a webhook: expected https://HOST/PATH"
    if "@" in parts.netloc or parts.fragment:
        return "a URL of a webhook has no user, password or '#'"
    return "" if len(parts.netloc) <= 255 else "the host is too long"


def _shown(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _purpose(owner: User, shown: str) -> str:
    return f"notification of {owner.pk} to {shown}"
