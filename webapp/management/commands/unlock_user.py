"""``manage.py unlock_user NAME``: reset a user's failed sign-in attempts."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from webapp.accounts.services import accounts
from webapp.management.commands._people import find_user
from webapp.management.commands._terminal import TerminalCommand


class Command(TerminalCommand):
    """Reset failed sign-in attempts."""

    help = "Reset a user's failed sign-in attempts from every address."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the argument for the user's name."""
        parser.add_argument("username")

    def handle(self, **options: Any) -> None:
        """Perform the action and print its result."""
        user = find_user(options["username"])
        accounts.unlock(user=user)
        self.stdout.write(f"{user.get_username()} may try to sign in again")
