"""``manage.py create_token USER NAME --scope operator``: create a personal API token and print it once."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import CommandError, CommandParser

from webapp.accounts.services import accounts
from webapp.core.permissions import Role
from webapp.management.commands._terminal import TerminalCommand


class Command(TerminalCommand):
    """Create an API token."""

    help = "Create a personal API token for a user."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments for the owner and the name of the token."""
        parser.add_argument("username")
        parser.add_argument("name", help="name of the token, e.g. its purpose")
        parser.add_argument(
            "--scope",
            choices=[role.value for role in Role],
            default=Role.VIEWER.value,
            help="highest role that the token grants (default: viewer)",
        )
        parser.add_argument("--days", type=int, default=accounts.TOKEN_DAYS, help="lifetime (default: 90)")

    def handle(self, **options: Any) -> None:
        """Create and print the token; only its hash is stored."""
        user = User.objects.filter(username=options["username"], is_active=True).first()
        if user is None:
            raise CommandError(f"there is no active user '{options['username']}'")
        try:
            token = accounts.create_token(
                user=user, name=options["name"], scope=Role(options["scope"]), days=options["days"]
            )
        except accounts.AccountError as error:
            raise CommandError(str(error)) from None
        self.stdout.write(token)
