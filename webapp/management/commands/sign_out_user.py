"""``manage.py sign_out_user NAME``: end all sessions of a user."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from webapp.accounts.services import sign_ins
from webapp.management.commands._people import find_user
from webapp.management.commands._terminal import TerminalCommand


class Command(TerminalCommand):
    """End all sessions of a user."""

    help = "End all sessions of a user; API tokens stay valid."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the argument for the user's name."""
        parser.add_argument("username")

    def handle(self, **options: Any) -> None:
        """Perform the action and print its result."""
        user = find_user(options["username"])
        ended = sign_ins.end_all(user=user)
        self.stdout.write(f"{ended} sessions of {user.get_username()} were ended")
