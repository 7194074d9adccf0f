"""Buttons that change all runs of an experiment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from django.urls import reverse

from webapp.core.permissions import Role, change_refusal
from webapp.experiments import selectors as reads
from webapp.experiments.contexts.arms import ArmRow
from webapp.experiments.models import Experiment
from webapp.runs.models.runs import Run
from webapp.runs.services.states import IN_PROGRESS, S


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A button."""

    action: str
    label: str
    confirm: str
    """Question before the change."""
    url: str
    css: str = ""
    refusal: str
    """Reason why the person may not use it; empty if the use is allowed."""


def build_controls(
    experiment: Experiment, arms: Iterable[ArmRow], *, role: Role, user_id: int | None
) -> tuple[Control, ...]:
    """Return the buttons: stop, or archive where no run is queued or live, and continue."""

    def refusal(runs: Iterable[Run]) -> str:
        return next(filter(None, (change_refusal(run, role, user_id) for run in runs)), "")

    controls = []
    runs = reads.changeable_runs(experiment)
    in_progress = [run for run in runs if run.state in IN_PROGRESS]
    if in_progress:
        question = f"Stop {_runs(len(in_progress))} of this experiment? Drafts stay."
        controls.append(
            Control(
                action="stop",
                label="Stop all",
                confirm=question,
                url=reverse("experiment-stop", args=[experiment.pk]),
                css="danger",
                refusal=refusal(in_progress),
            )
        )
    elif runs:
        question = f"Archive {_runs(len(runs))} of this experiment? Its results will no longer count them."
        controls.append(
            Control(
                action="archive",
                label="Archive all",
                confirm=question,
                url=reverse("experiment-archive", args=[experiment.pk]),
                refusal=refusal(runs),
            )
        )
    missing = [cell for row in arms for cell in row.cells if cell.is_missing]
    if missing:
        known = [cell.run for cell in missing if cell.run is not None]
        drafts = sum(run.state == S.DRAFT for run in known)
        counts = (
            (len(missing) - len(known), "created"),
            (drafts, "started from drafts"),
            (len(known) - drafts, "continued that failed or were stopped"),
        )
        parts = ", ".join(f"{number} {what}" for number, what in counts if number)
        controls.append(
            Control(
                action="continue",
                label=f"Queue {_runs(len(missing))}",
                confirm=f"Queue {_runs(len(missing))}: {parts}?",
                url=reverse("experiment-launch", args=[experiment.pk]),
                refusal=refusal(known),
            )
        )
    return tuple(controls)


def _runs(number: int) -> str:
    return f"{number} run{'s' * (number != 1)}"
