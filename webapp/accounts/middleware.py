"""Middleware that records time, address and browser of each session's last use."""

from __future__ import annotations

import time
from collections.abc import Callable

from django.contrib.auth import SESSION_KEY, update_session_auth_hash
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse

from webapp.accounts.services import accounts, sign_ins

EVERY_S = 60
SEEN = "seen"
"""Session key of the time at which the session's use was last recorded."""


def note_sign_ins(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """Return middleware that records the use of a session at most once a minute."""

    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        session = request.session
        if response.status_code >= 500 or not session.accessed:
            return response
        now = int(time.time())
        if session.session_key and SESSION_KEY in session and now - session.get(SEEN, 0) >= EVERY_S:
            sign_ins.note(
                session_key=session.session_key,
                user_id=int(session[SESSION_KEY]),
                address=request.META.get("REMOTE_ADDR") or None,
                agent=request.headers.get("User-Agent", ""),
            )
            session[SEEN] = now
        return response

    return middleware


def change_password(request: HttpRequest, *, user: User, password: str) -> None:
    """Change a user's password; users who change their own stay signed in."""
    accounts.set_password(
        user=user,
        password=password,
        actor=request.user if isinstance(request.user, User) else None,
        keep_session=request.session.session_key or "",
    )
    if user == request.user:
        update_session_auth_hash(request, user)
        request.session.pop(SEEN, None)  # the session has a new key: record its use under that one
