"""``manage.py up``: start the services and keep them running until Ctrl-C."""

from __future__ import annotations

import time
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from engine.errors import TrainyardError
from webapp.supervisor import interrupts
from webapp.supervisor.yard import Yard, running_yard


class YardCommand(BaseCommand):
    """A command that starts the yard and tells what happens, line by line, at once."""

    def say(self, line: str) -> None:
        """Print a line unless it is empty."""
        if line:
            self.stdout.write(line)
            self.stdout.flush()

    def tell(self, yard: Yard) -> None:
        """Keep the services running; print what happened to them, with the time."""
        for note in yard.check():
            self.say(f"{time.strftime('%H:%M:%S')}  {note}")


class Command(YardCommand):
    """Serve until interrupted."""

    help = "Start PostgreSQL, Redis, the web server, a worker and the scheduler; Ctrl-C stops them all."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        """One option."""
        parser.add_argument("--port", type=int, default=None, help="port of the web server (default 8000)")

    def handle(self, **options: Any) -> None:
        """Run the yard in the foreground."""
        interrupts.raise_on_signals()
        try:
            with running_yard(settings.TRAINYARD_HOME, web_port=options["port"], say=self.say) as yard:
                serve(yard, self)
        except KeyboardInterrupt:
            self.stdout.write("Stopped.")
        except TrainyardError as error:
            raise CommandError(str(error)) from None


def serve(yard: Yard, command: YardCommand) -> None:
    """Keep the services running until interrupted."""
    while True:
        command.tell(yard)
        time.sleep(0.5)
