"""``manage.py reset_password NAME``: give a user a random password and print it once."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from webapp.accounts.services import accounts
from webapp.management.commands._people import find_user
from webapp.management.commands._terminal import TerminalCommand


class Command(TerminalCommand):
    """Reset a password."""

    help = "Give a user a random password; the user's API tokens and sessions end."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the argument for the user's name."""
        parser.add_argument("username")

    def handle(self, **options: Any) -> None:
        """Change the password and print it; it is not stored."""
        user, password = find_user(options["username"]), accounts.random_password()
        accounts.set_password(user=user, password=password)
        self.stdout.write(f"{user.get_username()} may sign in with password {password}")
