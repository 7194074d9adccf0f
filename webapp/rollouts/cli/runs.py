"""Commands about the rollouts of a run: ``run export|what-if|steps|task``."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from engine.config.base import parse_settings
from webapp.core.cli import (
    CommandError,
    OnlyJson,
    Settings,
    command_group,
    print_json,
    write_text,
)
from webapp.rollouts.api.what_if import what_if_document
from webapp.rollouts.cli.points import Iteration, Phase, find_point, point_record
from webapp.rollouts.contexts.run_what_if import updates_what_if
from webapp.rollouts.contexts.what_if import counterfactual
from webapp.rollouts.selectors import attempts
from webapp.runs.api.steps import steps_record, task_records
from webapp.runs.cli.describe import RunId, find_run

app = command_group()


@app.command()
def export(
    run_id: RunId,
    output: Annotated[Path, typer.Option(help="Path of the JSONL file to write.")],
    phase: Phase = "",
    iteration: Iteration = None,
    verifier: Annotated[
        int | None, typer.Option(help="Verifier's run whose scores are written as p_yes.")
    ] = None,
    tests: Annotated[
        int | None, typer.Option(help="Verifier's run whose passes of tests are written.")
    ] = None,
    as_json: OnlyJson = True,
) -> None:
    """Write the graded rollouts of an evaluation or iteration as JSONL, and print counts as JSON.

    'python -m engine.verifiers.selection' and 'python -m engine.verifiers.execution_based' read the file.
    """
    point = find_point(run_id, phase=phase, iteration=iteration)
    rows = attempts.rollout_rows(point, verifier=verifier, tests=tests)
    write_text(output, "".join(f"{json.dumps(row)}\n" for row in rows))
    print_json({**point_record(point), "rollouts": len(rows)})


@app.command("what-if")
def what_if(
    run_id: RunId,
    iteration: Annotated[int | None, typer.Argument(help="Only the update of this iteration.")] = None,
    task: Annotated[str, typer.Argument(help="Only the group of the task with this id.")] = "",
    settings: Settings = None,
    as_json: OnlyJson = True,
) -> None:
    """Print what a run's updates, or one, would have trained on under other settings, as JSON.

    Of a single group, print the advantages and masks.
    """
    if iteration is None or not task:
        run = find_run(run_id)
        result = updates_what_if(run, parse_settings(settings or ()), iteration=iteration)
        if iteration is not None and not result.updates:
            raise CommandError(f"run {run_id} has no finished group of an update in iteration {iteration}")
        print_json(what_if_document(result))
        return
    outcome = counterfactual(
        find_run(run_id),
        phase="train",
        iteration=iteration,
        task_key=task,
        settings=parse_settings(settings or ()),
    )
    if outcome is None:
        raise CommandError(f"there is no group of task {task} in iteration {iteration} of run {run_id}")
    members = [dataclasses.asdict(member) for member in outcome.members]
    algorithm = outcome.config.model_dump(mode="json")
    print_json({"algorithm": algorithm, "members": members, "notes": outcome.notes})


@app.command()
def steps(run_id: RunId, as_json: OnlyJson = True) -> None:
    """Print number, length and thinking tokens of a run's steps by iteration, index and purpose, as JSON."""
    print_json(steps_record(find_run(run_id)))


@app.command()
def task(
    run_id: RunId,
    task_key: Annotated[str, typer.Argument(metavar="TASK", help="Id of a task.")],
    as_json: OnlyJson = True,
) -> None:
    """Print solve rate, steps and thinking of one task over iterations and evaluations, as JSON."""
    records = task_records(find_run(run_id), task_key)
    if not records:
        raise CommandError(f"run {run_id} has no group of task {task_key}")
    print_json(records)
