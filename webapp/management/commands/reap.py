"""``manage.py reap``: remove sandboxes whose run or deadline is over, now and without a worker."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError


class Command(BaseCommand):
    """Reap sandboxes."""

    help = "Remove sandboxes nobody owns."

    def handle(self, **_options: Any) -> None:
        """The engine does it, in its own process."""
        done = subprocess.run(
            [sys.executable, "-m", "engine.sandbox", "reap", "--home", str(settings.TRAINYARD_HOME)],
            cwd=settings.BASE_DIR,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise CommandError((done.stderr or done.stdout).strip() or "reaping failed")
        self.stdout.write(done.stdout.strip())
