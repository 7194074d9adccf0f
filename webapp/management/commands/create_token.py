"""``manage.py create_token USER NAME``: a personal API token, printed once."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError, CommandParser

from webapp.services import accounts


class Command(BaseCommand):
    """Create an API token."""

    help = "Create a personal API token for a person."

    def add_arguments(self, parser: CommandParser) -> None:
        """Whose, and what it is for."""
        parser.add_argument("username")
        parser.add_argument("name", help="what it is for")

    def handle(self, **options: Any) -> None:
        """Print the token: only its hash is kept."""
        user = User.objects.filter(username=options["username"], is_active=True).first()
        if user is None:
            raise CommandError(f"there is no active user '{options['username']}'")
        self.stdout.write(accounts.create_token(user=user, name=options["name"]))
