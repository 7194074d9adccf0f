"""``manage.py up``: start the services and keep them running until Ctrl-C."""

from __future__ import annotations

import signal
import time
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from engine.errors import TrainyardError
from webapp.supervisor.processes import ChildFailedError
from webapp.supervisor.yard import Yard, running_yard


class YardCommand(BaseCommand):
    """A command that starts the yard and tells what happens, line by line, at once."""

    def say(self, line: str) -> None:
        """Print a line unless it is empty."""
        if line:
            self.stdout.write(line)
            self.stdout.flush()


class Command(YardCommand):
    """Serve until interrupted."""

    help = "Start PostgreSQL, Redis, the web server, a worker and the scheduler; Ctrl-C stops them all."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        """One option."""
        parser.add_argument("--port", type=int, default=None, help="port of the web server (default 8000)")

    def handle(self, **options: Any) -> None:
        """Run the yard in the foreground."""
        stop_on_termination()
        try:
            with running_yard(settings.TRAINYARD_HOME, web_port=options["port"], say=self.say) as yard:
                serve(yard, self.say)
        except KeyboardInterrupt:
            self.stdout.write("Stopped.")
        except (TrainyardError, ChildFailedError) as error:
            raise CommandError(str(error)) from None


def stop_on_termination() -> None:
    """Make SIGTERM end the command as Ctrl-C does; a shell may have handed Ctrl-C down as ignored."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def serve(yard: Yard, say: Any) -> None:
    """Keep the children running until interrupted. Raises ChildFailedError."""
    while True:
        for note in yard.processes.check():
            say(note)
        time.sleep(0.5)
