"""``manage.py up``: start the services and keep them running until Ctrl-C."""

from __future__ import annotations

import time
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from engine.errors import TrainyardError
from webapp.management.commands._terminal import TerminalCommand
from webapp.supervisor import interrupts
from webapp.supervisor.stack import Stack, running_stack


class StackCommand(TerminalCommand):
    """Base command that starts the services and prints their state changes unbuffered."""

    def say(self, line: str) -> None:
        """Print a line unless it is empty."""
        if line:
            self.stdout.write(line)
            self.stdout.flush()

    def tell(self, stack: Stack) -> None:
        """Restart services that died; print state changes with the time."""
        for note in stack.check():
            self.say(f"{time.strftime('%H:%M:%S')}  {note}")


class Command(StackCommand):
    """Run the services until interrupted."""

    help = "Start PostgreSQL, Redis, the web server, a worker and the scheduler; Ctrl-C stops them all."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the option for the port."""
        parser.add_argument("--port", type=int, default=None, help="port of the web server (default 8000)")

    def handle(self, **options: Any) -> None:
        """Run the services in the foreground."""
        interrupts.raise_on_signals()
        try:
            with running_stack(settings.TRAINYARD_HOME, web_port=options["port"], say=self.say) as stack:
                serve(stack, self)
        except KeyboardInterrupt:
            self.stdout.write("Stopped.")
        except TrainyardError as error:
            raise CommandError(str(error)) from None


def serve(stack: Stack, command: StackCommand) -> None:
    """Keep the services running until interrupted."""
    while True:
        command.tell(stack)
        time.sleep(0.5)
