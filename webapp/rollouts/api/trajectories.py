"""Trajectories, with their steps, tests and exports."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Field, Router, Schema
from ninja.errors import HttpError

from webapp.api.auth import answer_reader, caller, role_of_caller, viewer
from webapp.core.permissions import check_rollouts
from webapp.core.services import audit
from webapp.evaluations.selectors import predictions as prediction_reads
from webapp.rollouts.contexts.pair import Alignment, align
from webapp.rollouts.contexts.scanners import hits_in
from webapp.rollouts.models.annotations import Annotation
from webapp.rollouts.models.trajectories import Trajectory
from webapp.rollouts.selectors import annotations as annotation_reads
from webapp.rollouts.selectors import learning as learning_reads
from webapp.rollouts.selectors import regrades as regrade_reads
from webapp.rollouts.selectors import scores as score_reads
from webapp.rollouts.selectors import steps as step_reads
from webapp.rollouts.selectors import trajectories as reads
from webapp.runs.api.runs import ScoreOut
from webapp.runs.api.runs import find as find_run
from webapp.runs.models.runs import Run
from webapp.runs.services.learning import query_of_recipe

router = Router(tags=["trajectories"], auth=viewer)
MAX_SIZE = 500


class TrajectoryOut(Schema):
    """A trajectory without its texts."""

    id: int
    run_id: int
    iteration: int
    phase: str
    task_key: str
    index: int
    state: str
    termination: str
    verdict: str
    reward: float | None
    advantage: float | None
    baseline: float | None
    loss_mask: bool | None
    mask_reason: str
    trained: bool | None
    """Whether the trajectory contributed a gradient; false if it is masked or its advantage is zero."""
    num_steps: int
    num_tests: int
    num_tests_passed: int
    prompt_tokens: int
    generated_tokens: int
    thinking_tokens: int | None
    cached_tokens: int
    cost: float | None
    """US dollars; null where no price is known."""
    has_token_ids: bool
    """False where the policy answers in text, and before the rollout has ended."""
    policy_version_min: int
    policy_version_max: int
    trained_iteration: int | None
    """Iteration that trained on the trajectory; null before that, and with schedule ``sync``."""
    trained_version: int | None
    """Policy version before that update; staleness is this minus the rollout's versions."""
    started_at: datetime
    finished_at: datetime | None
    total_seconds: float


class QueryIn(Schema):
    """A recipe of a fine-tuning run, with overrides by dotted name."""

    recipe: str = "fine-tune"
    overrides: dict[str, Any] = Field(default_factory=dict)


class RunShareOut(Schema):
    """Number of chosen trajectories of one run."""

    run_id: int
    trajectories: int


class ChosenOut(Schema):
    """Stored trajectories that a fine-tuning run would train on."""

    ids: list[int]
    matching: int
    """Trajectories that pass every filter."""
    duplicates: int
    over_cap: int
    over_limit: int
    tasks: int
    generated_tokens: int
    with_token_ids: int
    runs: list[RunShareOut]


class StepOut(Schema):
    """One step of a trajectory."""

    index: int
    action: str
    tool: str
    arguments: dict[str, Any]
    thought: str
    response: str
    observation: str
    error: str
    exit_code: int | None
    done: bool
    prompt_tokens: int
    generated_tokens: int
    thinking_tokens: int | None
    cached_tokens: int
    cost: float | None
    provider_state: dict[str, Any] | None
    """Opaque provider state (signatures, encrypted reasoning), sent back with its message; null without."""
    truncated_chars: int
    model_seconds: float
    tool_seconds: float
    policy_version: int


class TestOut(Schema):
    """Result of one required test."""

    __test__ = False
    test_id: str
    kind: str
    outcome: str
    seconds: float


class FindingOut(Schema):
    """Sign of tampering; ``step`` is null if it was found in the patch or during grading."""

    kind: str
    detail: str
    step: int | None


class GivenScoreOut(ScoreOut):
    """Score by a verifier's run."""

    run_id: int
    """The verifier's run."""


class LaterVerdictOut(Schema):
    """Verdict by a regrading; ``obstacle`` is the reason where there is none."""

    run_id: int
    """The regrading."""
    old_verdict: str
    verdict: str
    reward: float | None
    obstacle: str
    flip: str
    detail: str
    failed_tests: list[str]
    num_failed_tests: int
    dataset: str
    row: str
    """Task of the row under which the patch was graded."""


class AnnotationOut(Schema):
    """A label or comment of a person."""

    id: int
    kind: str
    """``label`` or ``comment``."""
    text: str
    step_index: int | None
    """Index of the step; null for the whole trajectory."""
    author: str | None
    """Name of the author; null for a command, and after the author was removed."""

    @staticmethod
    def resolve_author(annotation: Annotation) -> str | None:
        """Return the author's name."""
        return annotation.author.get_username() if annotation.author is not None else None


class ScannerHitsOut(Schema):
    """Hits of one scanner; ``step`` is null for the whole trajectory."""

    name: str
    words: str
    version: int
    count: int
    first: list[tuple[int | None, str]]
    """Step and detail of the first hits."""


class TrajectoryDetail(TrajectoryOut):
    """A trajectory with its patch, tests, scores, later verdicts, annotations and steps."""

    patch: str
    test_log: str | None
    """Test log, shortened to head and tail (complete: ``/test-log``). Null without access to answers."""
    findings: list[FindingOut]
    """Details of the kind ``counterfactual`` are empty without access to answers: they show hidden tests."""
    counterfactual: str
    """Result of the audit with mutated tests; empty for trajectories without a reward."""
    extra_runs: int
    detail: str
    error: str
    failure: str
    prompt: str
    prompt_hash: str
    opening: list[dict[str, str]]
    """Messages before the first response: ``role`` and ``content``; empty where they were not recorded."""
    replay: dict[str, Any] | None
    """Replay of an earlier attempt in a fresh sandbox: numbers of ``recorded`` and ``replayed`` steps, and
    ``differences`` of the sandbox's output. Null without a replay."""
    imported_fields: dict[str, Any] | None
    """Fields of an imported trajectory's file; null for trajectories of runs."""
    queue_seconds: float
    sandbox_seconds: float
    pull_seconds: float
    start_seconds: float
    model_seconds: float
    tool_seconds: float
    grading_seconds: float
    extra_grading_seconds: float
    steps: list[StepOut]
    tests: list[TestOut]
    scores: list[GivenScoreOut]
    """Scores by verifiers' runs."""
    later_verdicts: list[LaterVerdictOut]
    """Verdicts by regradings."""
    annotations: list[AnnotationOut]
    """Labels and comments of people, oldest first."""
    hits: list[ScannerHitsOut] | None
    """Hits of scanners; null if the trajectory has not been scanned."""


class TrajectoryPage(Schema):
    """One page of ``total`` trajectories; ``next_before`` is the cursor of the next page."""

    total: int
    items: list[TrajectoryOut]
    next_before: int | None


class AlignedStepOut(Schema):
    """A step of an alignment."""

    index: int
    action: str
    tool: str
    exit_code: int | None
    error: str
    """Beginning of the error message."""


class AlignedStepsOut(Schema):
    """Steps of two trajectories in one row; null where one of them has no counterpart."""

    left: AlignedStepOut | None
    right: AlignedStepOut | None
    is_equal: bool


class AlignmentOut(Schema):
    """Aligned steps of two trajectories."""

    num_equal: int
    first_difference: int | None
    """First row whose actions differ; null if all are equal."""
    rows: list[AlignedStepsOut]


@router.get("/runs/{int:run_id}/trajectories", response=TrajectoryPage)
def list_trajectories(
    request: HttpRequest,
    run_id: int,
    phase: str = "",
    iteration: int | None = None,
    verdict: str = "",
    before: int | None = None,
    size: int = 100,
) -> dict[str, Any]:
    """List a run's trajectories, newest first; pass ``next_before`` as ``before`` for the next page."""
    rows = Trajectory.objects.filter(run=find_run(run_id))
    if phase:
        rows = rows.filter(phase=phase)
    if iteration is not None:
        rows = rows.filter(iteration=iteration)
    if verdict:
        rows = rows.filter(verdict=verdict)
    size = max(1, min(size, MAX_SIZE))
    page = rows.filter(pk__lt=before) if before is not None else rows
    items = list(
        reads.with_token_flag(page).defer("patch", "test_log", "detail", "error").order_by("-pk")[: size + 1]
    )
    more = len(items) > size
    items = items[:size]
    return {"total": rows.count(), "items": items, "next_before": items[-1].pk if more else None}


@router.get("/trajectories/compare", response=AlignmentOut)
def compare_trajectories(request: HttpRequest, left: int, right: int) -> Alignment:
    """Align the steps of two trajectories by their actions (tool and arguments)."""
    return align(*(readable(request, trajectory_id).pk for trajectory_id in (left, right)))


@router.post("/trajectories/choose", response=ChosenOut)
def choose_trajectories(request: HttpRequest, body: QueryIn) -> dict[str, Any]:
    """Return the stored trajectories that a fine-tuning run would train on; nothing is started."""
    query, seed = query_of_recipe(body.recipe, body.overrides)
    selection = dataclasses.asdict(learning_reads.choose(query, seed=seed))
    runs = [{"run_id": run, "trajectories": count} for run, count in selection["runs"]]
    return selection | {"runs": runs}


@router.get("/trajectories/{int:trajectory_id}", response=TrajectoryDetail)
def get_trajectory(request: HttpRequest, trajectory_id: int) -> dict[str, Any]:
    """Return a trajectory with all steps, tests and scores."""
    trajectory = readable(request, trajectory_id)
    fields: dict[str, Any] = {
        field.attname: getattr(trajectory, field.attname) for field in Trajectory._meta.concrete_fields
    }
    fields["trained"] = trajectory.trained
    fields["has_token_ids"] = reads.num_samples(trajectory.pk) > 0
    sees_answers = role_of_caller(request).sees_answers
    if not sees_answers:
        fields["test_log"] = None
    fields["findings"] = reads.findings(trajectory, with_answers=sees_answers)
    return fields | {
        "opening": reads.opening(trajectory.pk),
        "imported_fields": reads.imported_fields(trajectory.pk, with_answers=sees_answers),
        "steps": step_reads.whole_steps(trajectory.pk),
        "tests": reads.tests(trajectory.pk),
        "scores": score_reads.given_to([trajectory]),
        "later_verdicts": list(regrade_reads.later_verdicts(trajectory)),
        "hits": hits_in(trajectory),
        "annotations": annotation_reads.annotations_of(trajectory.pk),
    }


@router.get("/trajectories/{int:trajectory_id}/test-log", auth=answer_reader)
def get_test_log(request: HttpRequest, trajectory_id: int) -> HttpResponse:
    """Return the complete test log as plain text; it may contain hidden tests."""
    return HttpResponse(reads.test_log(_find(trajectory_id).pk), content_type="text/plain; charset=utf-8")


@router.get("/runs/{int:run_id}/predictions")
def get_predictions(
    request: HttpRequest, run_id: int, phase: str = "", iteration: int | None = None, index: int = 0
) -> HttpResponse:
    """Return ``predictions.jsonl``: one rollout per task, by default of the newest evaluation."""
    run, choice = _chosen(run_id, phase, iteration, index)
    check_rollouts(run, role_of_caller(request))
    lines = "".join(prediction.line() for prediction in prediction_reads.predictions(run, choice))
    if run.plays_answers:
        audit.record(actor=caller(request), action="answers.export", run_id=run_id, target="predictions")
    return HttpResponse(lines, content_type="application/x-ndjson; charset=utf-8")


@router.get("/runs/{int:run_id}/harness-report", response=dict[str, Any])
def get_harness_report(
    request: HttpRequest, run_id: int, phase: str = "", iteration: int | None = None, index: int = 0
) -> dict[str, Any]:
    """Return the run report of the same rollouts in the official harness's schema."""
    return prediction_reads.report(*_chosen(run_id, phase, iteration, index))


def _chosen(
    run_id: int, phase: str, iteration: int | None, index: int
) -> tuple[Run, prediction_reads.Choice]:
    run = find_run(run_id)
    choice = prediction_reads.choose(run, phase=phase, iteration=iteration, index=index)
    if choice is None:
        raise HttpError(404, f"run {run_id} has no such finished rollouts")
    return run, choice


def _find(trajectory_id: int) -> Trajectory:
    trajectory = Trajectory.objects.filter(pk=trajectory_id).first()
    if trajectory is None:
        raise HttpError(404, f"there is no trajectory {trajectory_id}")
    return trajectory


def readable(request: HttpRequest, trajectory_id: int) -> Trajectory:
    """Return the trajectory. Raises PermissionDenied if the caller may not read it."""
    trajectory = _find(trajectory_id)
    check_rollouts(trajectory.run, role_of_caller(request))
    return trajectory
