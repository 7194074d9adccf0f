"""Commands about scanners: ``scanner list|add|remove|scan|judge|…`` and ``run behaviours``."""

from __future__ import annotations

from typing import Annotated, Any

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
from webapp.rollouts.api.scanners import behaviour_records, judgement_record, scanner_records
from webapp.rollouts.models.scans import EnteredScanner
from webapp.rollouts.selectors import scans as reads
from webapp.rollouts.services import judgements, passages, scans
from webapp.rollouts.services import scanners as writes
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
        rule = f"/{record['pattern']}/ in {record['place']}" if record["pattern"] else record["rubric"]
        parts = (f"{record['name']} {record['version']}", found, record["words"], rule, record["problem"])
        print(visible_line(" · ".join(filter(None, parts))))


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="Name: lower-case letters, digits and underscores.")],
    pattern: Annotated[str, typer.Argument(help="Regular expression; case is ignored.")] = "",
    place: Annotated[
        str, typer.Option(callback=one_of(PLACES), metavar="|".join(PLACES), help="Texts to search.")
    ] = PLACES[0],
    rubric: Annotated[
        str, typer.Option(help="Question to a model about a rollout, instead of an expression.")
    ] = "",
    endpoint: Annotated[str, typer.Option(help="Endpoint of the model that a rubric asks.")] = "",
    model: Annotated[str, typer.Option(help="Model, as the endpoint names it.")] = "",
    words: Annotated[str, typer.Option(help="What it finds.")] = "",
    as_json: AsJson = False,
) -> None:
    """Enter a scanner or change one; workers then scan stored trajectories with an expression."""
    scanner = writes.save(
        name=name, pattern=pattern, place=place, rubric=rubric, endpoint=endpoint, model=model, words=words
    )
    print_result(str(scanner), {"name": name, "version": scanner.version}, as_json=as_json)


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="Name of an entered scanner.")], as_json: AsJson = False
) -> None:
    """Remove an entered scanner."""
    scanner = _find(name)
    writes.remove(scanner=scanner)
    print_result(f"{scanner} was removed", {"name": name, "removed": True}, as_json=as_json)


def _find(name: str) -> EnteredScanner:
    scanner = reads.entered_scanner(name)
    if scanner is None:
        raise CommandError(f"there is no entered scanner '{name}'")
    return scanner


@app.command()
def judge(
    name: Annotated[str, typer.Argument(help="Name of a scanner with a rubric.")],
    run: RunId,
    most: Annotated[int, typer.Option(help="Maximum number of rollouts, the newest first.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Let workers ask a rubric's model about the newest rollouts of a run that it has not judged."""
    judgement = judgements.start(scanner=_find(name), run=find_run(run), most=most)
    print_result(str(judgement), judgement_record(judgement), as_json=as_json)


@app.command("judgements")
def list_judgements(as_json: AsJson = False) -> None:
    """List the newest scans with rubrics: rollouts, answers, tokens."""
    records = [judgement_record(judgement) for judgement in reads.judgements()]
    if as_json:
        print_json(records)
        return
    for record in records:
        print(visible_line(_line(record)))


@app.command("stop-judgement")
def stop_judgement(
    judgement_id: Annotated[int, typer.Argument(metavar="SCAN", help="Number of the scan.")],
    as_json: AsJson = False,
) -> None:
    """Stop a scan with a rubric after the questions in flight."""
    judgement = reads.get_judgement(judgement_id)
    if judgement is None:
        raise CommandError(f"there is no scan {judgement_id}; `trainyard scanner judgements` lists them")
    judgements.stop(judgement=judgement)
    judgement.refresh_from_db()
    record = judgement_record(judgement)
    print_result(_line(record), record, as_json=as_json)


def _line(record: dict[str, Any]) -> str:
    parts = (
        f"{record['id']} {record['scanner']} {record['version']}, run {record['run']}",
        "ended" if record["finished"] else "waiting",
        f"{record['asked']} of at most {record['most']} rollouts asked",
        f"{record['found']} found, {record['unanswered']} without an answer",
        f"{record['prompt_tokens']} + {record['generated_tokens']} tokens",
        record["problem"],
    )
    return " · ".join(filter(None, parts))


@app.command()
def scan(as_json: AsJson = False) -> None:
    """Scan and index stored trajectories in this process; it may be stopped and repeated."""
    count = reads.pending().count()
    warn(f"{count} trajectories to scan, {reads.unindexed().count()} to index for search")
    while scans.scan_pending():
        warn(f"{reads.pending().count()} left to scan")
    while passages.index_pending():
        warn(f"{reads.unindexed().count()} left to index")
    left = reads.pending().count()
    line = f"scanned {count - left} trajectories" + (
        f"; another process scans the other {left}" if left else ""
    )
    print_result(line, {"scanned": count - left, "left": left}, as_json=as_json)


@run_app.command()
def behaviours(run_id: RunId, as_json: OnlyJson = True) -> None:
    """Print how many rollouts of each iteration have hits of each scanner, as JSON."""
    print_json(behaviour_records(find_run(run_id)))
