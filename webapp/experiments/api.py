"""Experiments, and comparison of runs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Router, Schema
from ninja.errors import HttpError

from webapp.api.auth import admin, caller, viewer
from webapp.experiments import selectors as reads
from webapp.experiments import services as experiments
from webapp.experiments.contexts.run_comparison import build_series, summarise_comparison
from webapp.experiments.contexts.tasks_of_runs import tasks_document
from webapp.experiments.models import Experiment

router = Router(tags=["experiments"])


class ExperimentOut(Schema):
    """A named set of runs; ``/runs?experiment=ID`` lists them."""

    id: int
    name: str
    description: str
    created_at: datetime
    num_runs: int = 0
    num_active: int = 0
    last_run_at: datetime | None = None


class ExperimentIn(Schema):
    """A new experiment."""

    name: str
    description: str = ""


class DifferenceOut(Schema):
    """A setting that differs between runs; null where a run has no such setting."""

    key: str
    values: list[str | None]


class RunComparisonOut(Schema):
    """Runs side by side."""

    runs: list[int]
    differences: list[DifferenceOut]
    num_equal: int
    """Number of settings that are equal in all runs."""
    metrics: list[str]
    """Metrics available from ``/runs/series``."""


@router.get("/experiments", auth=viewer, response=list[ExperimentOut])
def list_experiments(request: HttpRequest) -> list[Experiment]:
    """List all experiments."""
    return reads.list_experiments()


@router.post("/experiments", auth=admin, response={201: ExperimentOut})
def create_experiment(request: HttpRequest, body: ExperimentIn) -> tuple[int, Experiment]:
    """Create an experiment."""
    return 201, experiments.create(name=body.name, description=body.description, actor=caller(request))


@router.get("/runs/compare", auth=viewer, response=RunComparisonOut)
def compare_runs(request: HttpRequest, runs: str) -> dict[str, Any]:
    """Compare up to ten runs, ``runs=1,2``: their settings and available metrics."""
    try:
        return summarise_comparison([runs])
    except ValueError as error:
        raise HttpError(422, str(error)) from None


class TaskOfRunsOut(Schema):
    """One task in several runs, in the order of ``runs``."""

    task: str
    solved: list[int | None]
    """Rollouts that passed; null without a graded one."""
    graded: list[int]


class TasksOfRunsOut(Schema):
    """Tasks by runs; those on which the runs differ most come first."""

    runs: list[int]
    tasks: list[TaskOfRunsOut]


@router.get("/runs/compare/tasks", auth=viewer, response=TasksOfRunsOut)
def compare_tasks(request: HttpRequest, runs: str, phase: str = "") -> dict[str, Any]:
    """Return how many rollouts of up to ten runs, ``runs=1,2``, solved each task, in one phase or in all."""
    try:
        return tasks_document([runs], phase)
    except ValueError as error:
        raise HttpError(422, str(error)) from None


@router.get("/runs/series", auth=viewer, response=dict[str, Any])
def get_series(
    request: HttpRequest, runs: str, metrics: str, x: str = "iteration", low: str = "", high: str = ""
) -> dict[str, object]:
    """Return metrics of up to ten runs in buckets, over ``iteration``, ``time`` (hours) or ``tokens``."""
    try:
        return build_series([runs], {"keys": metrics, "x": x, "from": low, "to": high})
    except ValueError as error:
        raise HttpError(422, str(error)) from None
