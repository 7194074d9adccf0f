"""``manage.py demo``: start the services, train an agent and show its progress.

Starts the services like ``manage.py up`` and runs ``manage.py quickstart`` on them. With ``--headless`` it
ends with the run, and its last line is that command's line of JSON; else it serves until Ctrl-C.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from engine.errors import TrainyardError
from webapp.management.commands.up import StackCommand, serve
from webapp.supervisor import interrupts
from webapp.supervisor.embedded import stop_process
from webapp.supervisor.home import PROJECT
from webapp.supervisor.stack import Stack, running_stack


class Command(StackCommand):
    """Start the services and train the quickstart agent."""

    help = "Start the services, train the quickstart agent and show its progress."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options of the demo."""
        parser.add_argument("--port", type=int, default=None, help="port of the web server (default 8000)")
        parser.add_argument(
            "--headless", action="store_true", help="end when the run ends; print one line of JSON"
        )
        parser.add_argument(
            "--set", action="append", default=[], metavar="KEY=VALUE", help="override a setting of the run"
        )

    def handle(self, **options: Any) -> None:
        """Run the demo; the exit code is 0 only if the run succeeded."""
        interrupts.raise_on_signals()
        started = time.monotonic()
        summary = ""
        code = 0
        try:
            with running_stack(settings.TRAINYARD_HOME, web_port=options["port"], say=self.say) as stack:
                code, summary = self._quickstart(stack, options)
                if not options["headless"]:
                    self.say(f"Still serving at {stack.url} - Ctrl-C stops everything.")
                    serve(stack, self)
        except KeyboardInterrupt:
            self.say("Stopped.")
            raise SystemExit(130 if options["headless"] else 0) from None
        except TrainyardError as error:
            raise CommandError(str(error)) from None
        if summary:
            result = json.loads(summary) | {"seconds": round(time.monotonic() - started, 1)}
            self.say(json.dumps(result))
        raise SystemExit(code)

    def _quickstart(self, stack: Stack, options: dict[str, Any]) -> tuple[int, str]:
        """Run the quickstart command and forward its output; return its exit code and its line of JSON."""
        command = [sys.executable, str(PROJECT / "manage.py"), "quickstart", "--url", stack.url]
        command += ["--fresh"] if options["headless"] else []
        command += [part for setting in options["set"] for part in ("--set", setting)]
        with interrupts.starting_a_process():
            process = subprocess.Popen(
                command, env=stack.environment, stdout=subprocess.PIPE, cwd=PROJECT, start_new_session=True
            )
        lines: list[str] = []
        reader = threading.Thread(target=self._pass_on, args=(process, lines), daemon=True)
        reader.start()
        try:
            while process.poll() is None:
                self.tell(stack)
                time.sleep(0.3)
        finally:
            stop_process(process, first=signal.SIGTERM, seconds=3.0)
        reader.join(5)
        return process.returncode, lines[-1] if lines and lines[-1].startswith("{") else ""

    def _pass_on(self, process: subprocess.Popen[bytes], lines: list[str]) -> None:
        assert process.stdout is not None
        for raw in process.stdout:
            line = raw.decode(errors="replace").rstrip()
            lines.append(line)
            if not line.startswith("{"):
                self.say(line)
