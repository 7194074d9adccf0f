"""``manage.py ensure_admin``: create the first administrator and print the random password once."""

from __future__ import annotations

from typing import Any

from webapp.accounts.services import accounts
from webapp.management.commands._terminal import TerminalCommand


class Command(TerminalCommand):
    """Create the first administrator."""

    help = "Create the first administrator, unless one exists."

    def handle(self, **_options: Any) -> None:
        """Create the administrator and print the password; no output if one exists."""
        password = accounts.ensure_admin()
        if password is not None:
            self.stdout.write(f"Sign in as admin with password {password} (shown only now)")
