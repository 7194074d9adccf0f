"""``manage.py timeline RUN``: print the time strips of a run's newest iterations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core.management.base import CommandParser

from webapp.management.commands._runs import find_run
from webapp.management.commands._terminal import TerminalCommand
from webapp.runs.api.timelines import TimelinePage
from webapp.runs.contexts.timeline import Strip, build_timeline
from webapp.runs.selectors.timelines import list_timelines


class Command(TerminalCommand):
    """Print the time strips of a run's newest iterations."""

    help = "Print when engines and trainer were busy in the newest iterations, and what rollouts waited for."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the run's number, the page and the output format."""
        parser.add_argument("run_id", type=int)
        parser.add_argument("--page", type=int, default=1, help="page of ten iterations, newest first")
        parser.add_argument("--json", action="store_true", help="print the JSON of the API")

    def handle(self, **options: Any) -> None:
        """Print the strips."""
        run, page = find_run(options["run_id"]), max(1, options["page"])
        if options["json"]:
            found = list_timelines(run.pk, number=page)
            answer = TimelinePage.model_validate({"total": found.total, "items": list(found.rows)})
            self.stdout.write(answer.model_dump_json())
            return
        shown = build_timeline(run.pk, {"page": str(page)}).page
        for strip in shown.rows:
            for line in lines(strip):
                self.stdout.write(line)
        self.stdout.write(f"showing {shown.first}–{shown.last} of {shown.total} iterations")


def lines(strip: Strip) -> Iterator[str]:
    """Yield a strip as lines of text, one per lane."""
    yield f"iteration {strip.index}: {strip.seconds:.2f} s"
    for lane in strip.lanes:
        cause = lane.cause
        why = f"  {cause.name} {cause.relation}, {cause.seconds:.2f} s" if cause is not None else ""
        yield f"  {lane.label:<13} {lane.text} {lane.seconds:8.2f} s {lane.share:4.0%}{why}"
