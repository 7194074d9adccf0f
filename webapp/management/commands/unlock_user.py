"""``manage.py unlock_user NAME``: forget failed attempts of a person."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError, CommandParser

from webapp.services import accounts


class Command(BaseCommand):
    """Forget failed attempts."""

    help = "Forget a person's failed attempts to sign in, from every address."

    def add_arguments(self, parser: CommandParser) -> None:
        """The person."""
        parser.add_argument("username")

    def handle(self, **options: Any) -> None:
        """Say what was done."""
        user = User.objects.filter(username=options["username"]).first()
        if user is None:
            raise CommandError(f"there is no user '{options['username']}'")
        accounts.unlock(user=user)
        self.stdout.write(f"{user.get_username()} may try to sign in again")
