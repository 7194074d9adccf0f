"""Commands about sandboxes: ``pool show|reap``."""

from __future__ import annotations

from typing import Annotated

import typer
from django.conf import settings

from engine.terminal import visible_line
from webapp.core.cli import AsJson, CommandError, command_group, print_json
from webapp.runs.cli.describe import find_run
from webapp.sandboxes import selectors as reads
from webapp.sandboxes import services as sandboxes
from webapp.sandboxes.api import ViewOut
from webapp.sandboxes.contexts import PoolView, pool_view
from webapp.supervisor.engine_process import EngineFailedError
from webapp.supervisor.reaping import run_reaper

app = command_group("Show the sandbox pools; remove orphaned sandboxes.")


@app.command()
def show(
    run: Annotated[int | None, typer.Option(help="Show only the pool of this run, in any state.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the sandbox pools of live runs, or of one run, like the page."""
    view = pool_view(find_run(run).pk if run is not None else None)
    if as_json:
        print(ViewOut.from_orm(view).model_dump_json())
        return
    for line in pool_lines(view):
        print(visible_line(line))


def pool_lines(view: PoolView) -> list[str]:
    """Return the view as lines of text, one fact per line."""
    if not view.pools:
        return ["no pool has reported"]
    t = view.totals
    lines = [
        f"{t.wanted} wanted: {t.live} live of {t.max_live}, {t.starting} starting, {t.waiting} waiting; "
        f"{t.idle} idle; {t.opened} leases, {t.failed} failures, {view.orphans} orphans reaped"
    ]
    lines += [f"run {pool.run_id} starts no sandboxes: {pool.paused_reason}" for pool in view.paused]
    lines += [f"{count} cannot start yet: {reason}" for reason, count in view.blocked]
    lines += [
        f"image {row.image} {'is refused' if row.refused else 'is tried again'}"
        f" after {row.failures} failures: {row.reason}"
        for row in view.images
    ]
    lines += [f"{row.count} × {row.name}: {row.remedy}" for row in view.failures]
    lines += [f"node {node}: {count}" for node, count in view.nodes]
    lines += [
        f"{clock.name}: half within {clock.median:.3g} s, 99 % within {clock.p99:.3g} s,"
        f" {clock.count} counted"
        for clock in view.clocks
        if clock.median is not None and clock.p99 is not None
    ]
    lines += [
        f"{row.sandbox.state} {row.sandbox.sandbox_id or row.sandbox.lease} of run {row.sandbox.run_id} "
        f"on {row.sandbox.node or '–'}: {row.sandbox.name}"
        for row in view.sandboxes
    ]
    return lines


@app.command()
def reap(as_json: AsJson = False) -> None:
    """Remove sandboxes whose run or deadline is over, without a worker."""
    try:
        results = run_reaper(
            home=settings.TRAINYARD_HOME,
            project=settings.BASE_DIR,
            settings=sandboxes.backend_settings(reads.configs_in_use()),
        )
    except EngineFailedError as error:
        raise CommandError(f"reaping failed: {error}") from None
    reaped = sandboxes.merged(sandboxes.Reaped(**result) for result in results)
    sandboxes.record_reaping(found=reaped)
    if as_json:
        names = ("backend", "removed", "error")
        print_json([{name: getattr(row, name) for name in names} for row in reaped])
        return
    for row in reaped:
        trouble = f" ({row.error})" if row.error else ""
        print(visible_line(f"{row.backend}: {row.removed} removed{trouble}"))
