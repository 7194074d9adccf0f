"""The form that renames, tags, annotates and files a run, and the page of an edit that was refused."""

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
    version: str
    """The version of the run that they replace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EditConflictContext:
    """The page of a refused edit: what somebody else wrote meanwhile, and the form as it was sent."""

    section: str
    crumbs: tuple[Crumb, ...]
    run: Run
    form: EditForm
    theirs: tuple[tuple[str, str], ...]
    """Field and current value, where it is not the one that was sent."""
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
        version=version_of(run),
    )


def build_edit_conflict(conflict: EditConflictError, sent: Mapping[str, str]) -> EditConflictContext:
    """Return the page; saving its form again replaces what is there now."""
    now = edit_form(conflict.run)
    form = EditForm(
        name=sent.get("name", now.name),
        tags=sent.get("tags", now.tags),
        notes=sent.get("notes", now.notes),
        experiment=sent.get("experiment", now.experiment),
        new_experiment=sent.get("new_experiment", ""),
        version=now.version,
    )
    pairs = (
        ("Name", now.name, form.name),
        ("Tags", now.tags, form.tags),
        ("Notes", now.notes, form.notes.replace("\r\n", "\n")),
        ("Experiment", now.experiment, form.new_experiment or form.experiment),
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
