"""``manage.py unlock_user NAME``: reset a user's failed sign-in attempts."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError, CommandParser

from webapp.services import accounts


class Command(BaseCommand):
    """Reset failed sign-in attempts."""

    help = "Reset a user's failed sign-in attempts from every address."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the argument for the user's name."""
        parser.add_argument("username")

    def handle(self, **options: Any) -> None:
        """Perform the action and print its result."""
        user = User.objects.filter(username=options["username"]).first()
        if user is None:
            raise CommandError(f"there is no user '{options['username']}'")
        accounts.unlock(user=user)
        self.stdout.write(f"{user.get_username()} may try to sign in again")
