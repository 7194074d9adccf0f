"""``manage.py reap``: remove sandboxes whose run or deadline is over, without a worker."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import CommandError

from engine.terminal import visible_line
from webapp.management.commands._terminal import TerminalCommand
from webapp.sandboxes import selectors as reads
from webapp.sandboxes import services as sandboxes
from webapp.supervisor.reaping import ReapingFailedError, run_reaper


class Command(TerminalCommand):
    """Remove orphaned sandboxes."""

    help = "Remove orphaned sandboxes."

    def handle(self, **_options: Any) -> None:
        """Run the engine's reaper in a separate process, store and print its results."""
        try:
            found = run_reaper(
                home=settings.TRAINYARD_HOME,
                project=settings.BASE_DIR,
                settings=sandboxes.backend_settings(reads.configs_in_use()),
            )
        except ReapingFailedError as error:
            raise CommandError(f"reaping failed: {error}") from None
        reaped = sandboxes.merged(sandboxes.Reaped(**one) for one in found)
        sandboxes.record_reaping(found=reaped)
        for one in reaped:
            trouble = f" ({one.error})" if one.error else ""
            self.stdout.write(visible_line(f"{one.backend}: {one.removed} removed{trouble}"))
