"""A person's own page: where they are signed in."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from django.contrib.auth.models import User

from webapp.contexts.frame import Crumb
from webapp.selectors.access.sign_ins import sign_ins_of

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
    """One session."""

    id: int
    device: str
    agent: str
    address: str
    created_at: datetime
    seen_at: datetime
    current: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountContext:
    """The page."""

    section: str
    crumbs: tuple[Crumb, ...]
    sessions: tuple[SessionRow, ...]


def build_account(user: User, session_key: str | None) -> AccountContext:
    """The page of ``user``, who looks at it with the session ``session_key``."""
    rows = tuple(
        SessionRow(
            one.pk, device_of(one.agent), one.agent, one.address or "–", one.created_at, one.seen_at,
            one.session_id == session_key,
        )
        for one in sign_ins_of(user)
    )  # fmt: skip
    return AccountContext(section="", crumbs=(Crumb("Account"),), sessions=rows)


def device_of(agent: str) -> str:
    """Return browser and system as a ``User-Agent`` header names them, e.g. ``Firefox on Linux``."""
    browser = next((name for mark, name in _BROWSERS if mark in agent), "")
    system = next((name for mark, name in _SYSTEMS if mark in agent), "")
    words = " on ".join(filter(None, (browser, system)))
    return words or re.split(r"[\s/]", agent, maxsplit=1)[0][:40] or "unknown"
