"""``manage.py create_user NAME --role operator``: create a user and print the random password once."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import CommandError, CommandParser

from engine.errors import TrainyardError
from webapp.accounts.services import accounts
from webapp.core.permissions import Role
from webapp.management.commands._terminal import TerminalCommand


class Command(TerminalCommand):
    """Create a user."""

    help = "Create a user with a role and print a random password."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments for name and role; a password argument would stay in the shell's history."""
        parser.add_argument("username")
        parser.add_argument("--role", choices=[role.value for role in Role], default=Role.VIEWER.value)

    def handle(self, **options: Any) -> None:
        """Create the user and print the password, which is not stored."""
        password = accounts.random_password()
        try:
            accounts.create_user(username=options["username"], password=password, role=Role(options["role"]))
        except (TrainyardError, ValidationError) as error:
            raise CommandError(str(error)) from None
        self.stdout.write(f"{options['username']} ({options['role']}) may sign in with password {password}")
