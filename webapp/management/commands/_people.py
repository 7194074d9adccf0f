"""Arguments of commands that act on a user."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.core.management.base import CommandError


def find_user(username: str) -> User:
    """Return a user by name. Raises CommandError when there is none."""
    user = User.objects.filter(username=username).first()
    if user is None:
        raise CommandError(f"there is no user '{username}'")
    return user
