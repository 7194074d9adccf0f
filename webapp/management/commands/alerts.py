"""``manage.py alerts [--run RUN] [--acknowledge ALERT]``: list open alerts, acknowledge some."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from engine.terminal import visible_line
from webapp.management.commands._terminal import TerminalCommand
from webapp.rollouts.services import annotations as annotation_writes
from webapp.runs.selectors import alerts as reads


class Command(TerminalCommand):
    """List and acknowledge alerts."""

    help = "List alerts that nobody has acknowledged, newest first, or acknowledge some."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options for run, number and acknowledgement."""
        parser.add_argument("--run", type=int, help="only alerts of this run")
        parser.add_argument("-n", type=int, default=20, help="number of alerts to list")
        parser.add_argument(
            "--acknowledge", type=int, action="append", default=[], metavar="ALERT", help="may be repeated"
        )

    def handle(self, **options: Any) -> None:
        """Acknowledge the named alerts, then print the open ones and their number."""
        for number in options["acknowledge"]:
            alert = reads.get_alert(number)
            if alert is None:
                raise CommandError(f"there is no alert {number}")
            annotation_writes.acknowledge(alert=alert)
        found, total = reads.open_alerts(run_id=options["run"], limit=max(1, options["n"]))
        for alert in found:
            alike = f" ×{alert.num_alike}" if alert.num_alike > 1 else ""
            parts = (
                f"alert {alert.pk}",
                f"run {alert.run_id}",
                alert.severity,
                f"{alert.code}{alike}",
                alert.message,
            )
            self.stdout.write(visible_line(" · ".join(parts)))
        self.stdout.write(f"{len(found)} of {total} kinds of open alerts")
