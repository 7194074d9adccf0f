"""Commands about evaluations: ``evaluation report|compare|models|predictions|submission``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from engine.terminal import visible_line
from engine.verifiers.selection.curves import Short
from webapp.core.cli import AsJson, CommandError, OnlyJson, command_group, print_json, warn, write_text
from webapp.core.services import audit
from webapp.evaluations.contexts.comparison import compare_evaluations
from webapp.evaluations.contexts.model_sizes import model_scores
from webapp.evaluations.contexts.report import Question, evaluation_report
from webapp.evaluations.contexts.submission import Submission, submission_of
from webapp.evaluations.selectors import predictions as prediction_reads
from webapp.rollouts.cli.points import Iteration, Phase, find_point, point_record
from webapp.runs.cli.describe import RunId, find_run

app = command_group("Report, compare and export evaluations.")
Verifier = Annotated[
    int | None, typer.Option(help="Verifier's run whose P(YES) counts (default: that with the most scores).")
]
Tests = Annotated[
    int | None, typer.Option(help="Verifier's run whose passes of tests count (default: as above).")
]
Side = Annotated[
    str, typer.Argument(metavar="RUN:PHASE:ITERATION", help="An evaluation, such as 12:eval:heldout:40.")
]


@app.command()
def report(
    run_id: RunId,
    phase: Phase = "",
    iteration: Iteration = None,
    rule: Annotated[str, typer.Option(help="Selection rule (default: all with scores).")] = "",
    k: Annotated[
        int | None, typer.Option(help="Largest K (default: the fewest rollouts of any task).")
    ] = None,
    keep: Annotated[int | None, typer.Option(help="Rollouts that hybrid keeps (default: half).")] = None,
    short: Annotated[
        Short,
        typer.Option(
            help="Tasks with fewer than K graded rollouts: none may be (refuse), counted with all they have, "
            "or left out."
        ),
    ] = Short.REFUSE,
    leave_out_unscored: Annotated[
        bool,
        typer.Option(
            "--leave-out-unscored",
            help="Leave out tasks of which a rollout lacks a score of any of the rules.",
        ),
    ] = False,
    verifier: Verifier = None,
    tests: Tests = None,
    repo: Annotated[str, typer.Option(help="Only tasks of this repository.")] = "",
    as_json: OnlyJson = True,
) -> None:
    """Print pass@1 with its errors, Best@K of rules, budgets, repositories and spending, as JSON."""
    point = find_point(run_id, phase=phase, iteration=iteration)
    question = Question(
        rule=rule, k=k, keep=keep, short=short, leave_out_unscored=leave_out_unscored,
        verifier=verifier, tests=tests, repo=repo,
    )  # fmt: skip
    numbers = evaluation_report(point, question)
    if not numbers.ended:
        warn(f"the evaluation has not ended; tasks left out: {numbers.num_open_tasks}")
    if numbers.curves_error:
        warn(f"curves: {numbers.curves_error}")
    print_json({**point_record(point), **asdict(numbers)}, indent=2)


@app.command()
def compare(first: Side, second: Side, as_json: OnlyJson = True) -> None:
    """Print difference, interval, McNemar's p, gained and lost tasks of two evaluations, as JSON."""
    comparison = compare_evaluations(first, second)
    for side in comparison.open_sides:
        warn(f"{side.point.key} has not ended; tasks left out: {side.stored.num_open_tasks}")
    print_json(comparison.as_dict(), indent=2)


@app.command()
def models(as_json: OnlyJson = True) -> None:
    """Print models with their sizes and scores, from the 200 newest evaluations, as JSON."""
    print_json([asdict(score) for score in model_scores()])


@app.command()
def predictions(
    run_id: RunId,
    output: Annotated[Path, typer.Option(help="Path of the predictions.jsonl to write.")],
    report: Annotated[Path | None, typer.Option(help="Path of a run report (JSON) to write, too.")] = None,
    phase: Phase = "",
    iteration: Iteration = None,
    index: Annotated[int, typer.Option(help="Index of the rollout within its group.")] = 0,
    as_json: OnlyJson = True,
) -> None:
    """Write predictions.jsonl (and a run report) of a run's rollouts, one for each task.

    Counts are printed as JSON.
    """
    run = find_run(run_id)
    choice = prediction_reads.choose(run, phase=phase, iteration=iteration, index=index)
    if choice is None:
        raise CommandError(f"run {run.pk} has no such finished rollouts")
    rows = prediction_reads.predictions(run, choice)
    harness_report = prediction_reads.report(run, choice) if report else None
    counts: dict[str, Any] = {
        "run": run.pk,
        "phase": choice.phase,
        "iteration": choice.iteration,
        "predictions": len(rows),
    }
    write_text(output, "".join(row.line() for row in rows))
    if run.plays_answers:
        audit.record(actor=None, action="answers.export", run_id=run.pk, target="predictions")
    if report is not None and harness_report is not None:
        write_text(report, json.dumps(harness_report, indent=4))
        counts["resolved"] = harness_report["resolved_instances"]
    print_json(counts)


@app.command()
def submission(
    run_id: RunId,
    output: Annotated[Path, typer.Option(help="Existing folder to write it into.")],
    phase: Phase = "",
    iteration: Iteration = None,
    name: Annotated[str, typer.Option(help="Name on the leaderboard (default: trainyard-run-N).")] = "",
    authors: Annotated[str, typer.Option(help="Names, separated by commas.")] = "",
    organizations: Annotated[str, typer.Option(help="Names, separated by commas.")] = "",
    models: Annotated[str, typer.Option(help="Names, separated by commas (default: the run's).")] = "",
    site: Annotated[str, typer.Option(help="Address of the system.")] = "",
    report: Annotated[str, typer.Option(help="Address of the technical report.")] = "",
    rule: Annotated[
        str, typer.Option(help="Rule that selects one attempt of each task (default: attempt --index).")
    ] = "",
    index: Annotated[int | None, typer.Option(help="Number of the submitted attempt (default: 0).")] = None,
    verifier: Verifier = None,
    tests: Tests = None,
    open_model: Annotated[bool, typer.Option("--open-model", help="The model's weights are public.")] = False,
    open_system: Annotated[bool, typer.Option("--open-system", help="The system's code is public.")] = False,
    confirmed: Annotated[
        bool, typer.Option("--confirmed", help="The statements of the checklist are true.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write predictions, metadata, README, results, logs and traces, and print what they lack."""
    given: dict[str, str | int | None] = {
        "name": name, "authors": authors, "organizations": organizations, "models": models, "site": site,
        "report": report, "rule": rule, "index": index, "verifier": verifier, "tests": tests,
    }  # fmt: skip
    flags = {"open_model": open_model, "open_system": open_system, "confirmed": confirmed}
    params = {key: str(value) for key, value in given.items() if value not in ("", None)}
    params |= {key: "on" for key, on in flags.items() if on}
    point = find_point(run_id, phase=phase, iteration=iteration)
    exported = submission_of(point, params)
    folder = output / exported.folder
    findings = _export(exported, folder)
    target = f"{point.phase} {point.iteration}"
    audit.record(actor=None, action="submission.export", run_id=point.run.pk, target=target)
    if as_json:
        print_json({"folder": str(folder), "findings": findings})
        return
    for finding in findings:
        warn(visible_line(finding))
    print(f"wrote {folder}, {len(findings)} findings")


def _export(submission: Submission, folder: Path) -> list[str]:
    """Write the folder whole or not at all; return what it lacks."""
    files = submission.files()
    if folder.exists():
        raise CommandError(f"cannot write {folder}: it exists; remove it or choose another --name")
    try:
        with TemporaryDirectory(dir=folder.parent, prefix=".submission-") as temporary:
            partial = Path(temporary) / folder.name
            findings = submission.check(_written(partial, files))
            partial.rename(folder)
    except OSError as error:
        raise CommandError(f"cannot write {folder}: {error.strerror}") from None
    return findings


def _written(folder: Path, files: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
    """Write files as they are read, and yield them."""
    for path, content in files:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
        yield path, content
