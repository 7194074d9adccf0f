"""The form for a run's name, tags, notes and experiment, and the page of a refused edit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from webapp.core.contexts.frame import Crumb, run_crumbs
from webapp.runs.models.runs import Run
from webapp.runs.selectors import runs as run_reads
from webapp.runs.services.edits import EditConflictError, version_of


@dataclass(frozen=True, slots=True, kw_only=True)
class EditForm:
    """Values of the form."""

    name: str
    tags: str
    notes: str
    experiment: str
    new_experiment: str = ""
    baseline: str
    version: str
    """Version of the run that these values replace."""
    scopes: tuple[tuple[str, str], ...] = tuple(Run.Baseline.choices)
    """Choices of what the run is the baseline of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EditConflictContext:
    """The page of a refused edit: the other edit's values, and the form as it was sent."""

    section: str
    crumbs: tuple[Crumb, ...]
    run: Run
    form: EditForm
    theirs: tuple[tuple[str, str], ...]
    """Field and current value, where it differs from the sent one."""
    by: str
    at: datetime | None
    experiments: tuple[tuple[int, str], ...]


def edit_form(run: Run) -> EditForm:
    """Return the form with a run's values."""
    return EditForm(
        name=run.name,
        tags=", ".join(run.tags),
        notes=run.notes,
        experiment=run.experiment.name if run.experiment is not None else "",
        baseline=run.baseline_of,
        version=version_of(run),
    )


def build_edit_conflict(conflict: EditConflictError, sent: Mapping[str, str]) -> EditConflictContext:
    """Return the page of a refused edit; saving its form again replaces the current values."""
    now = edit_form(conflict.run)
    form = EditForm(
        name=sent.get("name", now.name),
        tags=sent.get("tags", now.tags),
        notes=sent.get("notes", now.notes),
        experiment=sent.get("experiment", now.experiment),
        new_experiment=sent.get("new_experiment", ""),
        baseline=sent.get("baseline", now.baseline),
        version=now.version,
    )
    pairs = (
        ("Name", now.name, form.name),
        ("Tags", now.tags, form.tags),
        ("Notes", now.notes, form.notes.replace("\r\n", "\n")),
        ("Experiment", now.experiment, form.new_experiment or form.experiment),
        ("Baseline of", now.baseline, form.baseline),
    )
    return EditConflictContext(
        section="runs",
        crumbs=run_crumbs(conflict.run, Crumb("edit")),
        run=conflict.run,
        form=form,
        theirs=tuple((label, theirs) for label, theirs, mine in pairs if theirs != mine),
        by=conflict.by,
        at=conflict.at,
        experiments=tuple(run_reads.experiment_choices()),
    )
