"""Experiments, and comparison of runs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Router, Schema
from ninja.errors import HttpError

from webapp.api.auth import caller, operator, role_of_caller, viewer
from webapp.core.permissions import check_change
from webapp.experiments import selectors as reads
from webapp.experiments import services as experiments
from webapp.experiments.contexts.arms import build_cells
from webapp.experiments.contexts.power import Power, compute_power
from webapp.experiments.contexts.results import ArmResult, Results, build_results
from webapp.experiments.contexts.run_comparison import build_series, summarise_comparison
from webapp.experiments.contexts.tasks_of_runs import tasks_document
from webapp.experiments.designs import Design
from webapp.experiments.models import Experiment
from webapp.runs.api.runs import RunOut
from webapp.runs.models.runs import Run
from webapp.runs.selectors.budgets import count_rollouts
from webapp.runs.services import batches, experiment_runs, states

router = Router(tags=["experiments"])


class ExperimentOut(Schema):
    """A named set of runs; ``/runs?experiment=ID`` lists them."""

    id: int
    name: str
    goal: str
    hypothesis: str
    conclusion: str
    max_rollouts: int | None
    """Budget of its runs in rollouts; null without one."""
    created_at: datetime
    edit_version: str
    """Digest of texts and budget, for the ``version`` of an edit."""
    num_runs: int
    num_active: int
    last_run_at: datetime | None

    @staticmethod
    def resolve_edit_version(experiment: Experiment) -> str:
        """Return the digest."""
        return experiments.version_of(experiment)


class ExperimentIn(Schema):
    """A new experiment."""

    name: str
    goal: str = ""
    hypothesis: str = ""
    max_rollouts: int | None = None
    """Budget of its runs in rollouts."""


class ExperimentTexts(Schema):
    """Texts and budget to change; null leaves one as it is."""

    goal: str | None = None
    hypothesis: str | None = None
    conclusion: str | None = None
    max_rollouts: int | None = None
    """0 removes the budget."""
    version: str | None = None
    """``edit_version`` of the experiment as it was read: 409 if it was edited since; null overwrites."""


class CellOut(Schema):
    """Run of an arm and a seed; null where none was started."""

    arm: str
    seed: int
    run: int | None
    state: str | None


class ExperimentDetail(ExperimentOut):
    """An experiment with its arms and seeds."""

    design: dict[str, Any]
    """Recipe or base run, arms and seeds of the last launch; empty without arms."""
    cells: list[CellOut]
    rollouts: int
    """Rollouts of its runs so far."""

    @staticmethod
    def resolve_rollouts(experiment: Experiment) -> int:
        """Return the number of rollouts."""
        return count_rollouts(experiment.pk)

    @staticmethod
    def resolve_cells(experiment: Experiment) -> list[dict[str, Any]]:
        """Return the cells, arm by arm."""
        return [
            {
                "arm": row.arm.name,
                "seed": cell.seed,
                "run": cell.run.pk if cell.run else None,
                "state": cell.run.state if cell.run else None,
            }
            for row in build_cells(experiment)
            for cell in row.cells
        ]


class ArmResultOut(Schema):
    """An arm over its finished seeds; numbers that are not known are null."""

    arm: str
    values: dict[int, float]
    """Result by seed."""
    mean: float | None
    difference: float | None
    """Mean change against the baseline over the seeds of both."""
    interval_low: float | None
    interval_high: float | None
    """95 % interval of ``difference`` over seeds; null for one seed."""
    task_low: float | None
    task_high: float | None
    """95 % interval of ``difference`` over tasks that all compared evaluations graded."""
    num_tasks: int
    verdict: str

    @staticmethod
    def resolve_arm(result: ArmResult) -> str:
        """Return the name of the arm."""
        return result.row.arm.name


class ResultsOut(Schema):
    """Results of an experiment; the first arm is the baseline."""

    metric: str
    arms: list[ArmResultOut]
    deviation: float | None
    """Standard deviation over seeds within arms."""
    gain: float | None
    """Smallest gain that a comparison over the seeds of the design shows."""


class PowerOut(Schema):
    """Seeds that a gain needs, and gain that a number of seeds shows: paired, two-sided, 5 %, power 80 %."""

    deviation: float
    source: str
    gain: float | None
    seeds_needed: int | None
    seeds: int | None
    smallest_gain: float | None


class LaunchIn(Schema):
    """Arms and seeds to add; null queues what is missing of those of the last launch."""

    design: Design | None = None


class LaunchedOut(Schema):
    """Runs that a launch queued."""

    created: list[RunOut]
    continued: list[RunOut]
    """Runs that existed as drafts, or had failed or been stopped."""


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


@router.post("/experiments", auth=operator, response={201: ExperimentOut})
def create_experiment(request: HttpRequest, body: ExperimentIn) -> tuple[int, Experiment]:
    """Create an experiment."""
    user = caller(request)
    made = experiments.create(**body.model_dump(), actor=user)
    return 201, _find(made.pk)


@router.get("/experiments/{int:experiment_id}", auth=viewer, response=ExperimentDetail)
def get_experiment(request: HttpRequest, experiment_id: int) -> Experiment:
    """Return an experiment with the run of each arm and seed."""
    return _find(experiment_id)


@router.get("/experiments/{int:experiment_id}/results", auth=viewer, response=ResultsOut | None)
def get_results(request: HttpRequest, experiment_id: int) -> Results | None:
    """Return the results of the arms; null before a run with a result has succeeded."""
    return build_results(build_cells(_find(experiment_id)))


@router.get("/experiments/power", auth=viewer, response=PowerOut)
def get_power(
    request: HttpRequest,
    gain: float | None = None,
    deviation: float | None = None,
    seeds: int | None = None,
    experiment: int | None = None,
) -> Power:
    """Compute the number of seeds that a gain needs, and the gain that a number of seeds shows.

    The standard deviation over seeds is given, or that of the finished runs of an experiment.
    """
    known = _find(experiment) if experiment is not None else None
    return compute_power(deviation=deviation, experiment=known, gain=gain, seeds=seeds)


@router.post("/experiments/{int:experiment_id}/edit", auth=operator, response=ExperimentOut)
def edit_experiment(request: HttpRequest, experiment_id: int, body: ExperimentTexts) -> Experiment:
    """Change goal, hypothesis or conclusion."""
    experiment = _find(experiment_id)
    texts = body.model_dump(include=set(experiments.TEXTS))
    experiments.edit(
        experiment=experiment,
        texts=texts,
        max_rollouts=body.max_rollouts,
        version=body.version,
        actor=caller(request),
    )
    return _find(experiment_id)


@router.post("/experiments/{int:experiment_id}/launch", auth=operator, response=LaunchedOut)
def launch_experiment(request: HttpRequest, experiment_id: int, body: LaunchIn) -> experiment_runs.Launched:
    """Queue what is missing of the arms × seeds: all runs, or none where a setting is invalid."""
    experiment = _find(experiment_id)
    _changeable(request, experiment_runs.continuable(experiment, body.design))
    return experiment_runs.launch(experiment=experiment, design=body.design, actor=caller(request))


@router.post("/experiments/{int:experiment_id}/stop", auth=operator, response=list[RunOut])
def stop_experiment(request: HttpRequest, experiment_id: int) -> list[Run]:
    """Stop all queued and live runs of an experiment."""
    runs = _changeable(request, reads.runs_in_states(_find(experiment_id), states.IN_PROGRESS))
    batches.change_all(batch=runs, action="stop", actor=caller(request))
    return runs


@router.post("/experiments/{int:experiment_id}/archive", auth=operator, response=list[RunOut])
def archive_experiment(request: HttpRequest, experiment_id: int) -> list[Run]:
    """Archive all runs of an experiment; 409 while one is queued or live."""
    runs = _changeable(request, reads.runs_in_states(_find(experiment_id), list(states.TRANSITIONS)))
    batches.change_all(batch=runs, action="archive", actor=caller(request))
    return runs


def _find(experiment_id: int) -> Experiment:
    experiment = reads.get_experiment(experiment_id)
    if experiment is None:
        raise HttpError(404, f"there is no experiment {experiment_id}")
    return experiment


def _changeable(request: HttpRequest, runs: list[Run]) -> list[Run]:
    """Return the runs. Raises PermissionDenied if the caller may not change one of them."""
    for run in runs:
        check_change(run, role_of_caller(request), caller(request).pk)
    return runs


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
