"""Commands that read stored trajectories: ``trajectories export|count|compare|tokens``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from engine.config.base import parse_settings
from engine.events.stored_trajectories import write_trajectories
from engine.terminal import visible_line
from webapp.core.cli import (
    AsJson,
    CommandError,
    Number,
    OnlyJson,
    Settings,
    command_group,
    print_json,
    print_result,
)
from webapp.core.contexts.numbers import MOST_ID
from webapp.rollouts.api.tokens import TokenTraceOut, trace_window
from webapp.rollouts.api.trajectories import AlignmentOut
from webapp.rollouts.contexts.advantage import algorithm_of
from webapp.rollouts.contexts.pair import align
from webapp.rollouts.contexts.steps import outline_title
from webapp.rollouts.contexts.token_trace import missing_trace
from webapp.rollouts.models.trajectories import Trajectory
from webapp.rollouts.selectors import learning as learning_reads
from webapp.rollouts.selectors.steps import OutlineRow
from webapp.rollouts.selectors.trajectories import get_by_id
from webapp.runs.services import learning

app = command_group("Import, count and export stored trajectories.")
Recipe = Annotated[str, typer.Option(help="Recipe of a fine-tuning run.")]


@app.command()
def export(
    output: Annotated[Path, typer.Option(help="Path of the file to write.")],
    recipe: Recipe = "fine-tune",
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Write the trajectories that a fine-tuning run would train on, one a line.

    'python -m engine.trainer conversations' converts them for other trainers.
    """
    query, seed = learning.query_of_recipe(recipe, parse_settings(settings or ()))
    chosen = learning_reads.choose(query, seed=seed)
    try:
        count = write_trajectories(output, learning_reads.stored(chosen.ids))
    except OSError as error:
        raise CommandError(f"cannot write {output}: {error.strerror}") from None
    line = f"wrote {count} trajectories to {output}"
    print_result(line, {"trajectories": count, "file": str(output)}, as_json=as_json)


@app.command()
def count(
    recipe: Recipe = "fine-tune",
    settings: Settings = None,
    ids: Annotated[bool, typer.Option("--ids", help="Print the numbers of the trajectories, too.")] = False,
    as_json: OnlyJson = True,
) -> None:
    """Print the counts of the trajectories that a fine-tuning run would train on, as one line of JSON."""
    query, seed = learning.query_of_recipe(recipe, parse_settings(settings or ()))
    chosen = asdict(learning_reads.choose(query, seed=seed))
    numbers = chosen.pop("ids")
    counts = {"trajectories": len(numbers), **chosen, "runs": dict(chosen["runs"])}
    print_json(counts | ({"ids": numbers} if ids else {}))


@app.command("tokens")
def token_trace(
    trajectory: Annotated[int, typer.Argument(help="Number of the trajectory.")],
    start: Annotated[int, typer.Option(min=0, help="Index of the first sampled token.")] = 0,
    number: Number = 20,
    as_json: AsJson = False,
) -> None:
    """Print the sampled tokens of a trained trajectory with the factors of their losses and gradients."""
    row = Trajectory.objects.select_related("run").filter(pk=trajectory).first()
    if row is None:
        raise CommandError(f"there is no trajectory {trajectory}")
    window = trace_window(row, start=start, size=number)
    if window is None:
        raise CommandError(missing_trace(row, algorithm_of(row.run)))
    if as_json:
        print_json(TokenTraceOut.model_validate(window).model_dump())
        return
    scale = window["weight"] / len(window["losses"])
    print(f"{'log μ':>10} {'log π':>10} {'ratio':>8} {'clip':>5} {'loss':>12} {'push':>12}  token")
    columns = ("sampler_logprobs", "logprobs", "ratios", "clips", "token_losses", "slopes", "texts")
    for sampler, trainer, ratio, clip, loss, slope, text in zip(
        *(window[name] for name in columns), strict=True
    ):
        logprobs = f"{sampler:10.5f} {trainer:10.5f} {ratio:8.4f} {clip:>5}"
        print(f"{logprobs} {loss * scale:12.4e} {-slope * scale:12.4e}  {visible_line(repr(text))}")


@app.command()
def compare(
    left: Annotated[int, typer.Argument(min=1, max=MOST_ID, help="Id of a trajectory.")],
    right: Annotated[int, typer.Argument(min=1, max=MOST_ID, help="Id of another trajectory.")],
    as_json: AsJson = False,
) -> None:
    """Align the steps of two trajectories by their actions and print the rows."""
    for number in (left, right):
        if get_by_id(number) is None:
            raise CommandError(f"there is no trajectory {number}")
    alignment = align(left, right)
    if as_json:
        print_json(AlignmentOut.model_validate(alignment, from_attributes=True).model_dump())
        return
    for row in alignment.rows:
        left_text, right_text = (_described(step) for step in (row.left, row.right))
        print(visible_line(f"{'=' if row.is_equal else '≠'} {left_text:<42} {right_text}"))
    print(f"{alignment.num_equal} of {len(alignment.rows)} actions equal")


def _described(step: OutlineRow | None) -> str:
    if step is None:
        return "–"
    failed = " ✕" if step.error or step.exit_code else ""
    return f"{step.index} {step.action} {outline_title(step)[:30]}{failed}"
