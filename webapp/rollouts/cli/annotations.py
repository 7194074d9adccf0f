"""Commands about labels and comments: ``trajectories label|comment|annotations|remove-annotation``."""

from __future__ import annotations

from typing import Annotated

import typer

from engine.terminal import visible_line
from webapp.core.cli import AsJson, CommandError, command_group, print_json
from webapp.rollouts.api.annotations import AddedOut
from webapp.rollouts.models.annotations import Annotation
from webapp.rollouts.models.trajectories import Trajectory
from webapp.rollouts.selectors import annotations as reads
from webapp.rollouts.selectors import trajectories as trajectory_reads
from webapp.rollouts.services import annotations as writes

app = command_group()
TrajectoryId = Annotated[int, typer.Argument(metavar="TRAJECTORY", help="Number of the trajectory.")]
Text = Annotated[str, typer.Argument(help="The text.")]
StepIndex = Annotated[int | None, typer.Option("--step", help="Step that it is about.")]


@app.command()
def label(trajectory: TrajectoryId, text: Text, step: StepIndex = None, as_json: AsJson = False) -> None:
    """Label a trajectory or one of its steps, then list its labels and comments."""
    _add(trajectory, Annotation.Kind.LABEL, text, step, as_json=as_json)


@app.command()
def comment(trajectory: TrajectoryId, text: Text, step: StepIndex = None, as_json: AsJson = False) -> None:
    """Comment on a trajectory or one of its steps, then list its labels and comments."""
    _add(trajectory, Annotation.Kind.COMMENT, text, step, as_json=as_json)


@app.command("annotations")
def list_(trajectory: TrajectoryId, as_json: AsJson = False) -> None:
    """List the labels and comments of a trajectory."""
    rows = reads.annotations_of(_find(trajectory).pk)
    if as_json:
        print_json([AddedOut.from_orm(row).model_dump() for row in rows])
        return
    for row in rows:
        place = "trajectory" if row.step_index is None else f"step {row.step_index}"
        author = row.author.get_username() if row.author else "a command"
        print(visible_line(f"{row.pk} · {row.kind} · {place} · {author} · {row.text}"))


@app.command("remove-annotation")
def remove(
    trajectory: TrajectoryId,
    annotation: Annotated[int, typer.Argument(metavar="ANNOTATION", help="Number of the label or comment.")],
    as_json: AsJson = False,
) -> None:
    """Remove a label or comment, then list the others."""
    found = reads.get_annotation(trajectory, annotation)
    if found is None:
        raise CommandError(f"trajectory {trajectory} has no label or comment {annotation}")
    writes.remove(annotation=found)
    list_(trajectory, as_json=as_json)


def _add(trajectory_id: int, kind: str, text: str, step: int | None, *, as_json: bool) -> None:
    writes.add(trajectory=_find(trajectory_id), kind=kind, text=text, step_index=step)
    list_(trajectory_id, as_json=as_json)


def _find(trajectory_id: int) -> Trajectory:
    trajectory = trajectory_reads.get_by_id(trajectory_id)
    if trajectory is None:
        raise CommandError(f"there is no trajectory {trajectory_id}")
    return trajectory
