"""A person's own pages: sessions, API tokens, password."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from django.contrib.auth.forms import PasswordChangeForm
from django.contrib.auth.models import User
from django.urls import reverse
from django.utils import timezone

from webapp.accounts.models import ApiToken
from webapp.accounts.selectors.sign_ins import sign_ins_of
from webapp.accounts.selectors.tokens import tokens_of
from webapp.accounts.services.accounts import MOST_TOKEN_DAYS, TOKEN_DAYS
from webapp.core.contexts.frame import Crumb
from webapp.core.permissions import Role

_BROWSERS = (
    ("Edg/", "Edge"),
    ("OPR/", "Opera"),
    ("Firefox/", "Firefox"),
    ("Chrome/", "Chrome"),
    ("Safari/", "Safari"),
)
_SYSTEMS = (
    ("Android", "Android"), ("iPhone", "iPhone"), ("iPad", "iPad"), ("Windows", "Windows"),
    ("Mac OS", "macOS"), ("Linux", "Linux"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SessionRow:
    """Row of one session."""

    id: int
    device: str
    agent: str
    address: str
    created_at: datetime
    seen_at: datetime
    current: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountContext:
    """Account page: the person's sessions."""

    section: str
    crumbs: tuple[Crumb, ...]
    sessions: tuple[SessionRow, ...]


SCOPES = {
    Role.VIEWER: "Read",
    Role.OPERATOR: "Read and control runs",
    Role.ADMIN: "Everything",
}
"""Display texts of token scopes."""
LIFETIMES = ("7", "30", str(TOKEN_DAYS), str(MOST_TOKEN_DAYS))
"""Offered lifetimes of tokens, days."""


@dataclass(frozen=True, slots=True)
class TokenRow:
    """Row of one API token."""

    token: ApiToken
    scope: str
    expired: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensContext:
    """Page of API tokens."""

    section: str
    crumbs: tuple[Crumb, ...]
    tokens: tuple[TokenRow, ...]
    scopes: tuple[tuple[str, str], ...]
    """Scopes that the person may choose, with their display texts."""
    lifetimes: tuple[tuple[str, str], ...]
    """Lifetimes in days, with their display texts."""
    values: Mapping[str, str]
    """Content of the form."""
    error: str
    """Reason why the posted form created no token."""
    created: str
    """Text of the token that was just created; shown once."""


def build_tokens(
    user: User, role: Role, *, posted: Mapping[str, str] | None = None, error: str = "", created: str = ""
) -> TokensContext:
    """Return the page of a user's API tokens, with the form filled as posted."""
    now = timezone.now()
    rows = (TokenRow(token, SCOPES[Role(token.scope)], token.expires_at <= now) for token in tokens_of(user))
    return TokensContext(
        section="",
        crumbs=(Crumb("Account", reverse("account")), Crumb("API tokens")),
        tokens=tuple(rows),
        scopes=tuple((scope.value, words) for scope, words in SCOPES.items() if role.includes(scope)),
        lifetimes=tuple((days, f"{days} days") for days in LIFETIMES),
        values=posted or {"name": "", "scope": Role.VIEWER.value, "days": str(TOKEN_DAYS)},
        error=error,
        created=created,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PasswordContext:
    """Page that changes a person's password."""

    section: str
    crumbs: tuple[Crumb, ...]
    form: PasswordChangeForm
    refused: tuple[str, ...]
    """Reasons why the posted form changed nothing."""


def build_password(form: PasswordChangeForm) -> PasswordContext:
    """Return the page with a form that may have errors."""
    return PasswordContext(
        section="",
        crumbs=(Crumb("Account", reverse("account")), Crumb("Password")),
        form=form,
        refused=tuple(f"{field.label}: {error}" for field in form for error in field.errors),
    )


def build_account(user: User, session_key: str | None) -> AccountContext:
    """Return the account page of ``user``; ``session_key`` is the session of the request."""
    rows = tuple(
        SessionRow(
            id=sign_in.pk,
            device=device_of(sign_in.agent),
            agent=sign_in.agent,
            address=sign_in.address or "–",
            created_at=sign_in.created_at,
            seen_at=sign_in.seen_at,
            current=sign_in.session_id == session_key,
        )
        for sign_in in sign_ins_of(user)
    )
    return AccountContext(section="", crumbs=(Crumb("Account"),), sessions=rows)


def device_of(agent: str) -> str:
    """Return browser and system from a ``User-Agent`` header, e.g. ``Firefox on Linux``."""
    browser = next((name for mark, name in _BROWSERS if mark in agent), "")
    system = next((name for mark, name in _SYSTEMS if mark in agent), "")
    words = " on ".join(filter(None, (browser, system)))
    return words or re.split(r"[\s/]", agent, maxsplit=1)[0][:40] or "unknown"
