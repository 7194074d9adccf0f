"""Runs: list, read, create, control, and their metrics."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Field, Query, Router, Schema
from ninja.errors import HttpError

from webapp.api.auth import caller, operator, role_of_caller, viewer
from webapp.core.permissions import check_change
from webapp.experiments.models import Experiment
from webapp.experiments.selectors import experiment_named
from webapp.rollouts.selectors import scores as score_reads
from webapp.runs.contexts.run_table import RunTable, plain_values, read_table
from webapp.runs.models.runs import Run
from webapp.runs.selectors import engines as engine_reads
from webapp.runs.selectors import iterations as iteration_reads
from webapp.runs.selectors import runs as run_reads
from webapp.runs.selectors.run_table import RunFilters, RunGroup
from webapp.runs.services import attempts, deletion
from webapp.runs.services import runs as run_writes
from webapp.runs.services.edits import version_of

router = Router(tags=["runs"])


class RunOut(Schema):
    """A run without its configuration."""

    id: int
    kind: str
    name: str
    recipe: str
    state: str
    desired: str
    reason: str
    reason_detail: str
    epoch: int
    last_seq: int
    experiment_id: int | None
    arm: str
    """Arm of the experiment; empty for runs that no arm started."""
    baseline_of: str
    """``experiment`` or ``all`` for a pinned baseline."""
    dataset_id: int | None
    parent_id: int | None
    total_iterations: int
    current_iteration: int | None
    policy_version: int | None
    progress_message: str
    progress_done: int
    progress_total: int
    progress_follows: str
    """Phases that follow the current one; empty for the last."""
    progress_seconds_left: float | None
    """Estimated time until the end, evaluations included; null while it is unknown."""
    collection: dict[str, Any]
    summary: dict[str, Any]
    created_at: datetime
    queued_at: datetime | None
    running_at: datetime | None
    finished_at: datetime | None
    heartbeat_at: datetime | None
    tags: list[str]
    notes: str
    archived_at: datetime | None
    acknowledged_at: datetime | None
    edit_version: str
    """Changes with name, tags, notes and experiment; an edit may send it to detect conflicts."""

    @staticmethod
    def resolve_edit_version(run: Run) -> str:
        """Return the version of the editable fields."""
        return version_of(run)


class RunDetail(RunOut):
    """A run with its resolved configuration."""

    config: dict[str, Any]
    funnel: dict[str, Any]
    """State of a curation: stages, lost items with examples, time and disk; else empty."""


class RunCosts(RunDetail):
    """A run with its configuration and its costs so far."""

    cost: float | None
    """US dollars; null where no price is known."""
    cached_tokens: int
    launcher: str
    condition: str
    """Reason for a queued run's wait, or the launcher's report about a live run; else empty."""


class RunListed(RunOut):
    """A run of the runs table."""

    values: dict[str, Any] = Field(default_factory=dict)
    """Values of the columns by key; empty without ``columns``."""


class RunGroupOut(Schema):
    """Runs with the same value of the column they are grouped by, over all pages."""

    value: Any = None
    num_runs: int
    num_rates: int
    """Runs with a held-out rate."""
    mean: float | None
    """Mean of their newest held-out rates; null without any."""
    lowest: float | None
    highest: float | None


class RunPage(Schema):
    """One page of runs, and their total number."""

    total: int
    items: list[RunListed]
    groups: list[RunGroupOut]
    """Groups with runs on the page, in its order; empty without ``group``."""


class RunQuery(Schema):
    """Filters of the list of runs; empty means everything but archived runs."""

    state: str = ""
    kind: str = ""
    q: str = ""
    tag: str = ""
    experiment: int | None = None
    dataset: str = ""
    archived: str = ""
    """``only`` selects archived runs, ``all`` includes them."""
    sort: str = "-id"
    """Key of a column, with a leading minus for descending."""
    group: str = ""
    """``experiment``, ``recipe``, ``dataset``, ``model``, ``state``, or ``set:`` and a setting."""


class RunIn(Schema):
    """A recipe, with overrides by dotted name."""

    recipe: str
    overrides: dict[str, Any] = Field(default_factory=dict)
    experiment: str | None = None
    start: bool = False


class CloneIn(Schema):
    """Overrides of the cloned run's settings, by dotted name."""

    overrides: dict[str, Any] = Field(default_factory=dict)


class PointOut(Schema):
    """Metrics of one finished iteration."""

    index: int
    metrics: dict[str, float]
    seconds: float | None


class PassAtKOut(Schema):
    """Unbiased estimate of pass@k, with its 95 % interval."""

    k: int
    rate: float
    interval_low: float
    interval_high: float


class EvaluationOut(Schema):
    """One evaluation, with the 95 % interval of its solve rate."""

    iteration: int
    name: str
    policy_version: int
    num_samples: int
    num_tasks: int
    num_solved: int
    solve_rate: float
    interval_low: float
    interval_high: float
    pass_at_k: list[PassAtKOut]
    metrics: dict[str, float]


def find(run_id: int) -> Run:
    """Return the run. Raises a 404 error if it does not exist."""
    run = run_reads.get_run(run_id)
    if run is None:
        raise HttpError(404, f"there is no run {run_id}")
    return run


def find_to_change(request: HttpRequest, run_id: int) -> Run:
    """Return the run. Raises a 404 error, or PermissionDenied if the caller may not change it."""
    run = find(run_id)
    check_change(run, role_of_caller(request), caller(request).pk)
    return run


@router.get("/runs", auth=viewer, response=RunPage)
def list_runs(
    request: HttpRequest, filters: Query[RunQuery], columns: str = "", page: int = 1, size: int = 50
) -> dict[str, Any]:
    """List runs, newest first; ``state=active`` selects queued and live runs.

    ``columns`` has keys separated by commas: those of the page of runs, ``set:SETTING`` and ``metric:NAME``.
    """
    table = read_table(
        RunFilters(**filters.model_dump()), columns=columns, number=page, size=max(1, min(size, 200))
    )
    return list_record(table, with_values=bool(columns))


def list_record(table: RunTable, *, with_values: bool) -> dict[str, Any]:
    """Return the content of ``RunPage``; ``with_values`` adds the values of the columns."""
    for row in table.rows:
        row.run.values = plain_values(row) if with_values else {}  # type: ignore[attr-defined]
    return {
        "total": table.page.total,
        "items": [row.run for row in table.rows],
        "groups": [_group(row.begins) for row in table.rows if row.begins is not None],
    }


def _group(group: RunGroup) -> dict[str, Any]:
    rates = group.rates
    return {
        "value": group.value, "num_runs": group.num_runs, "num_rates": len(rates), "mean": group.mean,
        "lowest": rates[0] if rates else None, "highest": rates[-1] if rates else None,
    }  # fmt: skip


@router.post("/runs", auth=operator, response={201: RunDetail})
def create_run(request: HttpRequest, body: RunIn) -> tuple[int, Run]:
    """Create a draft; with ``start`` queue it at once."""
    experiment = None
    if body.experiment is not None:
        try:
            experiment = experiment_named(body.experiment)
        except Experiment.DoesNotExist as error:
            raise HttpError(404, str(error)) from None
    user = caller(request)
    run = run_writes.create(recipe=body.recipe, overrides=body.overrides, experiment=experiment, actor=user)
    if body.start:
        run_writes.start(run=run, actor=user)
    return 201, run


@router.get("/runs/{int:run_id}", auth=viewer, response=RunCosts)
def get_run(request: HttpRequest, run_id: int) -> Run:
    """Return a run."""
    run = find(run_id)
    counts = iteration_reads.live_counts(run)
    run.cost, run.cached_tokens = counts.cost, counts.cached_tokens  # type: ignore[attr-defined]
    run.condition = run_reads.condition_of(run)  # type: ignore[attr-defined]
    run.launcher = run.launcher_backend  # type: ignore[attr-defined]
    return run


@router.delete("/runs/{int:run_id}", auth=operator, response={202: None})
def delete_run(request: HttpRequest, run_id: int) -> tuple[int, None]:
    """Begin to delete an archived run with its rollouts; its files remain."""
    deletion.request(run=find_to_change(request, run_id), actor=caller(request))
    return 202, None


class ReplicaOut(Schema):
    """State and load of one inference engine."""

    name: str
    state: str
    version: int | None
    running: int
    waiting: int
    kv_use: float
    prefix_hit_rate: float
    tokens_per_s: float
    restarts: int
    detail: str


class EngineSampleOut(Schema):
    """Report of a run's engines at one moment."""

    time: datetime
    replicas: list[ReplicaOut]


class EnginesOut(Schema):
    """The newest report of a run's engines, and their history at even intervals."""

    newest: EngineSampleOut | None
    queued: int
    """New trajectories that wait for room in a KV cache."""
    history: list[EngineSampleOut]


@router.get("/runs/{int:run_id}/engines", auth=viewer, response=EnginesOut)
def get_engines(request: HttpRequest, run_id: int) -> dict[str, Any]:
    """Return the inference engines of a run."""
    run = find(run_id)
    newest = engine_reads.newest_report(run.pk)
    history = engine_reads.history(run.pk)
    return {"newest": newest, "queued": newest.queued if newest else 0, "history": history}


class ScoreOut(Schema):
    """Score of one trajectory: ``p_yes`` of a judge, or passes of tests; null where there is none."""

    source: str
    """Run of the trajectory."""
    phase: str
    iteration: int
    task_key: str
    index: int
    p_yes: float | None
    yes_logprob: float | None
    no_logprob: float | None
    regression_passes: int | None
    regression_tests: int | None
    regression_status: str
    reproduction_passes: int | None
    reproduction_tests: int | None
    detail: str
    """Test runs that did not finish, with their reasons."""
    error: str
    """Reason for a missing score."""
    attempts: int
    prompt_tokens: int
    shortened: int
    cost: float | None
    resolved: bool | None
    """Whether grading passed the trajectory."""


class ScorePage(Schema):
    """One page of scores, highest first, and their total number."""

    total: int
    items: list[ScoreOut]


@router.get("/runs/{int:run_id}/scores", auth=viewer, response=ScorePage)
def get_scores(
    request: HttpRequest, run_id: int, missing: bool = False, page: int = 1, size: int = 50
) -> dict[str, Any]:
    """List the scores of a verifier's run; with ``missing`` only the trajectories that have none."""
    run = find(run_id)
    scores = score_reads.list_scores(run.pk, missing=missing, number=page, size=max(1, min(size, 1000)))
    return {"total": scores.total, "items": list(scores.rows)}


class ExaminedTestOut(Schema):
    """Test that a testing agent wrote, with its results on graded candidates."""

    source: str
    """Run of the testing agent."""
    phase: str
    iteration: int
    task_key: str
    index: int
    digest: str
    rejection: str
    """Reason why it is not kept; empty where it is."""
    detail: str
    tests: int
    good: int
    good_passed: int
    bad: int
    bad_passed: int
    is_toxic: bool
    is_misleading: bool


class ExaminedTestPage(Schema):
    """One page of examined tests, kept ones first, and their total number."""

    total: int
    items: list[ExaminedTestOut]


@router.get("/runs/{int:run_id}/examined-tests", auth=viewer, response=ExaminedTestPage)
def get_examined_tests(request: HttpRequest, run_id: int, page: int = 1, size: int = 50) -> dict[str, Any]:
    """List the tests that a run which verifies by tests has examined."""
    run = find(run_id)
    tests = score_reads.list_tests(run.pk, number=page, size=max(1, min(size, 1000)))
    return {"total": tests.total, "items": list(tests.rows)}


@router.post("/runs/{int:run_id}/start", auth=operator, response=RunOut)
def start_run(request: HttpRequest, run_id: int) -> Run:
    """Queue a draft."""
    run = find_to_change(request, run_id)
    run_writes.start(run=run, actor=caller(request))
    return run


@router.post("/runs/{int:run_id}/stop", auth=operator, response=RunOut)
def stop_run(request: HttpRequest, run_id: int) -> Run:
    """Ask a run to stop."""
    run = find_to_change(request, run_id)
    run_writes.stop(run=run, actor=caller(request))
    return run


class TokenOut(Schema):
    """Credentials with which another program posts the events of a run."""

    token: str
    epoch: int
    """Attempt number, part of every event and heartbeat."""
    acked_seq: int
    """Sequence number of the run's last stored event; the next one has the number after it."""
    url: str
    """Address of the run's routes ``events`` and ``heartbeat``."""


@router.post("/runs/{int:run_id}/token", auth=operator, response=TokenOut)
def issue_run_token(request: HttpRequest, run_id: int) -> attempts.IssuedToken:
    """Return a new ingest token of a run that another program executes; it replaces the last one."""
    return attempts.issue_token(run=find_to_change(request, run_id), actor=caller(request))


@router.post("/runs/{int:run_id}/pause", auth=operator, response=RunOut)
def pause_run(request: HttpRequest, run_id: int) -> Run:
    """Ask a run to pause."""
    run = find_to_change(request, run_id)
    run_writes.pause(run=run, actor=caller(request))
    return run


@router.post("/runs/{int:run_id}/resume", auth=operator, response=RunOut)
def resume_run(request: HttpRequest, run_id: int) -> Run:
    """Resume a paused run, or continue a failed or stopped one from its last checkpoint.

    A verifier's run or regrading that has succeeded with some results missing retries these.
    """
    run = find_to_change(request, run_id)
    run_writes.resume(run=run, actor=caller(request))
    return run


@router.post("/runs/{int:run_id}/clone", auth=operator, response={201: RunDetail})
def clone_run(request: HttpRequest, run_id: int, body: CloneIn) -> tuple[int, Run]:
    """Create a draft with the same configuration and some changes."""
    return 201, run_writes.clone(run=find(run_id), overrides=body.overrides, actor=caller(request))


@router.get("/runs/{int:run_id}/iterations", auth=viewer, response=list[PointOut])
def iterations(request: HttpRequest, run_id: int, after: int = -1) -> list[iteration_reads.Point]:
    """List the metrics of finished iterations with an index above ``after``, oldest first."""
    return iteration_reads.points_after(find(run_id).pk, after)


@router.get("/runs/{int:run_id}/evaluations", auth=viewer, response=list[EvaluationOut])
def evaluations(request: HttpRequest, run_id: int) -> list[Any]:
    """List all evaluations of the run."""
    return list(iteration_reads.evaluations(find(run_id).pk))
