"""``manage.py ensure_admin``: make the first admin, printing the random password once."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from webapp.services import accounts


class Command(BaseCommand):
    """Make sure that somebody can sign in."""

    help = "Create the first admin; does nothing when there is one."

    def handle(self, **_options: Any) -> None:
        """Silent when an admin exists."""
        password = accounts.ensure_admin()
        if password is not None:
            self.stdout.write(f"Sign in as admin with password {password} (shown only now)")
