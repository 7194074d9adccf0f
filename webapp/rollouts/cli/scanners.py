"""Commands about scanners: ``scanner list|add|remove|scan`` and ``run behaviours``."""

from __future__ import annotations

from typing import Annotated

import typer

from engine.scanners.patterns import PLACES
from engine.terminal import visible_line
from webapp.core.cli import (
    AsJson,
    CommandError,
    OnlyJson,
    command_group,
    one_of,
    print_json,
    print_result,
    warn,
)
from webapp.rollouts.api.scanners import behaviour_records, scanner_records
from webapp.rollouts.selectors import scans as reads
from webapp.rollouts.services import scanners as writes
from webapp.rollouts.services import scans
from webapp.runs.cli.describe import RunId, find_run

app = command_group("List scanners, enter regular expressions, and scan stored trajectories.")
run_app = command_group()


@app.command("list")
def list_(
    run: Annotated[int | None, typer.Option(help="Print the shares of this run's newest rollouts.")] = None,
    as_json: AsJson = False,
) -> None:
    """List all scanners; `trainyard search --scanner NAME` lists trajectories with hits."""
    records = scanner_records(None if run is None else find_run(run))
    if as_json:
        print_json(records)
        return
    for record in records:
        found = "" if run is None else "not applicable"
        if record["scanned"] is not None:
            found = f"{record['found']} of {record['scanned']} rollouts"
        rule = f"/{record['pattern']}/ in {record['place']}" if record["pattern"] else ""
        parts = (f"{record['name']} {record['version']}", found, record["words"], rule, record["problem"])
        print(visible_line(" · ".join(filter(None, parts))))


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="Name: lower-case letters, digits and underscores.")],
    pattern: Annotated[str, typer.Argument(help="Regular expression; case is ignored.")],
    place: Annotated[
        str, typer.Option(callback=one_of(PLACES), metavar="|".join(PLACES), help="Texts to search.")
    ] = PLACES[0],
    words: Annotated[str, typer.Option(help="What it finds.")] = "",
    as_json: AsJson = False,
) -> None:
    """Enter a scanner or change one; workers then scan the stored trajectories."""
    scanner = writes.save(name=name, pattern=pattern, place=place, words=words)
    print_result(str(scanner), {"name": name, "version": scanner.version}, as_json=as_json)


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="Name of an entered scanner.")], as_json: AsJson = False
) -> None:
    """Remove an entered scanner."""
    scanner = reads.pattern_scanner(name)
    if scanner is None:
        raise CommandError(f"there is no entered scanner '{name}'")
    writes.remove(scanner=scanner)
    print_result(f"{scanner} was removed", {"name": name, "removed": True}, as_json=as_json)


@app.command()
def scan(as_json: AsJson = False) -> None:
    """Scan stored trajectories in this process; it may be stopped and repeated."""
    count = reads.pending().count()
    warn(f"{count} trajectories to scan")
    while scans.scan_pending():
        warn(f"{reads.pending().count()} left")
    left = reads.pending().count()
    line = f"scanned {count - left} trajectories" + (
        f"; another process scans the other {left}" if left else ""
    )
    print_result(line, {"scanned": count - left, "left": left}, as_json=as_json)


@run_app.command()
def behaviours(run_id: RunId, as_json: OnlyJson = True) -> None:
    """Print how many rollouts of each iteration have hits of each scanner, as JSON."""
    print_json(behaviour_records(find_run(run_id)))
