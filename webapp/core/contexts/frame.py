"""Context common to all pages: the breadcrumb with stable ids and the start of the live stream."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from django.urls import reverse

from webapp.core.contexts.words import in_words
from webapp.runs.models.runs import Run


def choices_of(values: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return (value, label) of a filter's choices."""
    return tuple((str(value), in_words(str(value))) for value in values)


@dataclass(frozen=True, slots=True)
class Crumb:
    """One part of the breadcrumb; the last one has no address."""

    label: str
    url: str = ""


@dataclass(frozen=True, slots=True)
class LiveCursor:
    """Start of a page's live updates: the run as of event ``seq``."""

    run_id: int
    seq: int
    page: str
    """Kind of the page: ``run``, ``iteration``, ``group`` or ``trajectory``."""
    identity: str
    """Changes when the shown content is replaced, e.g. after a resume; updates then replace it as well."""
    target: tuple[str, ...] = ()
    """Key of the page within the run: phase, iteration, task key, index, as many as the page needs."""

    @property
    def target_json(self) -> str:
        """Return the target as JSON for the page's script."""
        return json.dumps(self.target)


def run_url(run: Run | int) -> str:
    """Return the URL of a run's page."""
    return reverse("run-detail", args=[run if isinstance(run, int) else run.pk])


def iteration_url(run_id: int, phase: str, iteration: int) -> str:
    """Return the URL of the page of an iteration or an evaluation."""
    return reverse("iteration-detail", args=[run_id, phase, iteration])


def group_url(run_id: int, phase: str, iteration: int, task_key: str) -> str:
    """Return the URL of a group's page."""
    return reverse("group-detail", args=[run_id, phase, iteration, task_key])


def trajectory_url(run_id: int, phase: str, iteration: int, task_key: str, index: int) -> str:
    """Return the URL of a trajectory's page."""
    return reverse("trajectory-detail", args=[run_id, phase, iteration, task_key, index])


def phase_label(phase: str, iteration: int) -> str:
    """Return ``iteration 40`` or ``heldout evaluation at 40``."""
    if phase == "train":
        return f"iteration {iteration}"
    return f"{phase.removeprefix('eval:')} evaluation at {iteration}"


def group_crumbs(
    run: Run, phase: str, iteration: int, task_key: str, title: str, *rest: Crumb
) -> tuple[Crumb, ...]:
    """Return the breadcrumb ``Runs / run 12 / iteration 40 / TITLE / …`` of a group's rollouts."""
    return run_crumbs(
        run,
        Crumb(phase_label(phase, iteration), iteration_url(run.pk, phase, iteration)),
        Crumb(title, group_url(run.pk, phase, iteration, task_key)),
        *rest,
    )


def run_crumbs(run: Run, *rest: Crumb) -> tuple[Crumb, ...]:
    """Return the breadcrumb ``Runs / run 12 / …``."""
    own = Crumb(f"run {run.pk}", run_url(run) if rest else "")
    return (Crumb("Runs", reverse("run-list")), own, *rest)
