"""Reads of sessions."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.utils import timezone

from webapp.accounts.models import SignIn


def sign_ins_of(user: User) -> list[SignIn]:
    """Return a person's sessions that have not expired, the last used first."""
    return list(SignIn.objects.filter(user=user, session__expire_date__gt=timezone.now()))


def get_sign_in(user: User, sign_in_id: int) -> SignIn | None:
    """Return one of a person's own sessions."""
    return SignIn.objects.select_related("user").filter(user=user, pk=sign_in_id).first()
