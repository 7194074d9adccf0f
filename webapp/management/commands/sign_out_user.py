"""``manage.py sign_out_user NAME``: end all sessions of a person."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError, CommandParser

from webapp.services import sign_ins


class Command(BaseCommand):
    """End all sessions."""

    help = "End all sessions of a person; API tokens stay."

    def add_arguments(self, parser: CommandParser) -> None:
        """The person."""
        parser.add_argument("username")

    def handle(self, **options: Any) -> None:
        """Say what was done."""
        user = User.objects.filter(username=options["username"]).first()
        if user is None:
            raise CommandError(f"there is no user '{options['username']}'")
        ended = sign_ins.end_all(user=user)
        self.stdout.write(f"{ended} sessions of {user.get_username()} were ended")
