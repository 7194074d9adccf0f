"""``manage.py up``: start the services and keep them running until Ctrl-C."""

from __future__ import annotations

import signal
import time
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from engine.errors import TrainyardError
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
        stop_on_termination()
        try:
            with running_yard(settings.TRAINYARD_HOME, web_port=options["port"], say=self.say) as yard:
                serve(yard, self)
        except KeyboardInterrupt:
            self.stdout.write("Stopped.")
        except TrainyardError as error:
            raise CommandError(str(error)) from None


def stop_on_termination() -> None:
    """Make SIGTERM and a closed terminal end the command as Ctrl-C does.

    A shell may have handed Ctrl-C down as ignored; what ``nohup`` ignores stays ignored.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.default_int_handler)


def serve(yard: Yard, command: YardCommand) -> None:
    """Keep the services running until interrupted."""
    while True:
        command.tell(yard)
        time.sleep(0.5)
