"""``manage.py pool``: show the sandbox pools like the page does."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from engine.terminal import visible_line
from webapp.management.commands._runs import find_run
from webapp.management.commands._terminal import TerminalCommand
from webapp.sandboxes.api import ViewOut
from webapp.sandboxes.contexts import PoolView, pool_view


class Command(TerminalCommand):
    """Show the sandbox pools."""

    help = "Show the sandbox pools of live runs, or of one run."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options for run and output format."""
        parser.add_argument("--run", type=int, help="show only the pool of this run, in any state")
        parser.add_argument("--json", action="store_true", help="print the JSON of the API")

    def handle(self, **options: Any) -> None:
        """Print the pools."""
        run = find_run(options["run"]) if options["run"] is not None else None
        view = pool_view(run.pk if run else None)
        if options["json"]:
            self.stdout.write(ViewOut.from_orm(view).model_dump_json())
            return
        for line in lines(view):
            self.stdout.write(visible_line(line))


def lines(view: PoolView) -> list[str]:
    """Return the view as lines of text, one fact per line."""
    if not view.pools:
        return ["no pool has reported"]
    t = view.totals
    found = [
        f"{t.wanted} wanted: {t.live} live of {t.max_live}, {t.starting} starting, {t.waiting} waiting; "
        f"{t.idle} idle; {t.opened} leases, {t.failed} failures, {view.orphans} orphans reaped"
    ]
    found += [f"run {pool.run_id} starts no sandboxes: {pool.paused_reason}" for pool in view.paused]
    found += [f"{count} cannot start yet: {reason}" for reason, count in view.blocked]
    found += [
        f"image {row.image} {'is refused' if row.refused else 'is tried again'}"
        f" after {row.failures} failures: {row.reason}"
        for row in view.images
    ]
    found += [f"{row.count} × {row.name}: {row.remedy}" for row in view.failures]
    found += [f"node {node}: {count}" for node, count in view.nodes]
    found += [
        f"{clock.name}: half within {clock.median:.3g} s, 99 % within {clock.p99:.3g} s,"
        f" {clock.count} counted"
        for clock in view.clocks
        if clock.median is not None and clock.p99 is not None
    ]
    found += [
        f"{row.sandbox.state} {row.sandbox.sandbox_id or row.sandbox.lease} of run {row.sandbox.run_id} "
        f"on {row.sandbox.node or '–'}: {row.sandbox.name}"
        for row in view.sandboxes
    ]
    return found
