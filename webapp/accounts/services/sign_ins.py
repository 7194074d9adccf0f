"""Sign-in sessions of users: recording, listing and ending them."""

from __future__ import annotations

import logging

from django.contrib.auth import SESSION_KEY
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.db import DatabaseError, transaction
from django.utils import timezone

from webapp.accounts.models import SignIn
from webapp.core.services import audit

log = logging.getLogger(__name__)


def note(*, session_key: str, user_id: int, address: str | None, agent: str) -> None:
    """Record that a session is in use; after a failure the next request tries again."""
    fields = {"user_id": user_id, "seen_at": timezone.now(), "address": address, "agent": agent[:300]}
    try:
        with transaction.atomic():
            SignIn.objects.update_or_create(session_id=session_key, defaults=fields)
    except DatabaseError as error:  # the session ended meanwhile, or the database is down
        log.info("the use of a session was not noted: %s", error)


@transaction.atomic
def end(*, sign_in: SignIn, actor: User | None = None) -> None:
    """End one session; its pages and live updates stop within seconds."""
    Session.objects.filter(pk=sign_in.session_id).delete()
    audit.record(actor=actor, action="account.sign_out", target=f"user {sign_in.user.get_username()}")


def record(*, user: User, address: str | None) -> None:
    """Record in the audit trail that a user signed in."""
    changes = {"address": address} if address else {}
    audit.record(actor=user, action="account.sign_in", target=f"user {user.get_username()}", changes=changes)


@transaction.atomic
def end_all(*, user: User, actor: User | None = None, keep: str = "") -> int:
    """End every session of a user except ``keep`` and return their number. API tokens stay valid."""
    _, deleted = Session.objects.filter(pk__in=_sessions_of(user)).exclude(pk=keep).delete()
    audit.record(actor=actor, action="account.sign_out_everywhere", target=f"user {user.get_username()}")
    return deleted.get(Session._meta.label, 0)


def _sessions_of(user: User) -> list[str]:
    """Return the keys of a user's sessions, including sessions not used yet."""
    # A session's user is only in its encoded data, so every live session is decoded.
    live = Session.objects.filter(expire_date__gt=timezone.now()).iterator()
    return [session.pk for session in live if session.get_decoded().get(SESSION_KEY) == str(user.pk)]
