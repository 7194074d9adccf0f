"""Reads of API tokens."""

from __future__ import annotations

from django.contrib.auth.models import User

from webapp.accounts.models import ApiToken


def tokens_of(user: User) -> list[ApiToken]:
    """Return a person's API tokens, newest first, expired ones too."""
    return list(ApiToken.objects.filter(user=user))


def get_token(user: User, token_id: int) -> ApiToken | None:
    """Return one of a person's own API tokens."""
    return ApiToken.objects.filter(user=user, pk=token_id).first()
