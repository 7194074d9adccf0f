"""Trajectories, with their steps, tests, tokens and exports."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import Annotated, Any

from django.http import HttpRequest, HttpResponse
from ninja import Field, Query, Router, Schema
from ninja.errors import HttpError

from engine.tokens import TOKEN_COLUMNS
from webapp.api.auth import answer_reader, caller, role_of_caller, viewer
from webapp.core.permissions import check_rollouts
from webapp.core.services import audit
from webapp.evaluations.selectors import predictions as prediction_reads
from webapp.rollouts.contexts.advantage import algorithm_of
from webapp.rollouts.contexts.pair import Alignment, align
from webapp.rollouts.contexts.run_what_if import Totals, UpdatesWhatIf, updates_what_if
from webapp.rollouts.contexts.snippets import snippet, words_pattern
from webapp.rollouts.contexts.token_trace import missing_trace
from webapp.rollouts.contexts.tokens import tokenless_reason
from webapp.rollouts.contexts.what_if import counterfactual
from webapp.rollouts.models.trajectories import TokenBlob, Trajectory
from webapp.rollouts.selectors import learning as learning_reads
from webapp.rollouts.selectors import regrades as regrade_reads
from webapp.rollouts.selectors import scores as score_reads
from webapp.rollouts.selectors import steps as step_reads
from webapp.rollouts.selectors import trajectories as reads
from webapp.rollouts.selectors.search import MOST_CHARS, PLACES, SearchResult, TrajectoryFilters, search
from webapp.rollouts.selectors.traces import traced_tokens
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


class TrajectoryDetail(TrajectoryOut):
    """A trajectory with its patch, tests, scores, later verdicts and steps."""

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


class TrajectoryPage(Schema):
    """One page of ``total`` trajectories; ``next_before`` is the cursor of the next page."""

    total: int
    items: list[TrajectoryOut]
    next_before: int | None


_NO_NUL = r"^[^\x00]*$"
Text = Annotated[str, Field(pattern=_NO_NUL)]
"""Text of a filter; PostgreSQL stores no NUL."""


class SearchQuery(Schema):
    """Filters of a search; empty means everything."""

    q: str = Field("", max_length=MOST_CHARS, pattern=_NO_NUL)
    """Words: ``"a phrase"``, ``or``, ``-without``."""
    place: str = ""
    """Texts to search: ``steps``, ``observations`` (of a run or a task), ``patches`` or ``statements``;
    empty for all."""
    run: int | None = None
    task: Text = ""
    """A task's key, or a part of its readable name."""
    verdict: Text = ""
    termination: Text = ""
    phase: Text = ""
    finding: Text = ""
    """A kind of sign of tampering, or ``any``."""
    flip: Text = ""
    """A kind of flip by any regrading, such as ``passed_failed``, or ``any``."""
    reward_min: float | None = None
    reward_max: float | None = None
    steps_min: int | None = None


class MatchOut(Schema):
    """A matching text."""

    part: str
    """``step`` (thought and action), ``observation``, ``patch`` or ``statement``."""
    index: int | None
    """Index of the step; null for other parts."""
    action: str
    text: str
    """Excerpt around the first match."""


class FoundOut(TrajectoryOut):
    """A trajectory, with its first matching texts."""

    matches: list[MatchOut]


class SearchPage(Schema):
    """One page of found trajectories; ``next_before`` is the cursor of the next page."""

    total: int
    capped: bool
    """Whether more texts match than were considered."""
    items: list[FoundOut]
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


class TokensOut(Schema):
    """Tokens from index ``start`` of ``length`` tokens, as columns of equal length."""

    length: int
    samples: list[int]
    """Start indices of training samples: 0, and one for each time the conversation was rendered anew."""
    start: int
    ids: list[int]
    mask: list[int]
    logprobs: list[float]
    versions: list[int]
    steps: list[int]


class TokenTraceOut(Schema):
    """Sampled tokens from index ``start`` of ``length`` sampled tokens, as columns of equal length."""

    length: int
    start: int
    iteration: int
    """Iteration of the update."""
    step: int
    """Index of the optimizer step, counted among those with a gradient."""
    losses: list[float]
    """Loss of every such step; ``loss/value`` is their mean."""
    advantage: float
    weight: float
    positions: list[int]
    """Indices in the columns of ``tokens``."""
    texts: list[str]
    sampler_logprobs: list[float]
    old_logprobs: list[float]
    logprobs: list[float]
    reference_logprobs: list[float] | None
    entropies: list[float]
    ratios: list[float]
    clips: list[str]
    """Bound of the clip that took effect: ``high``, ``low``, ``dual`` or empty."""
    surrogates: list[float]
    corrections: list[float]
    kl: list[float]
    entropy_terms: list[float]
    token_losses: list[float]
    """Correction × surrogate + kl + entropy term. Times ``weight``, divided by the number of ``losses``: the
    token's part of ``loss/value``."""
    slopes: list[float]
    """Derivative of the loss with respect to log π, before the weight."""


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


@router.get("/trajectories", response=SearchPage)
def search_trajectories(
    request: HttpRequest, filters: Query[SearchQuery], before: int | None = None, size: int = 50
) -> dict[str, Any]:
    """Search by words and numbers, newest first; pass ``next_before`` as ``before`` for the next page."""
    if filters.place not in ("", *PLACES):
        raise HttpError(422, f"place: expected one of {', '.join(PLACES)}, not {filters.place[:80]!r}")
    sees_answers = role_of_caller(request).sees_answers
    result = search(
        TrajectoryFilters(**filters.model_dump()),
        before=before,
        size=max(1, min(size, MAX_SIZE)),
        with_answers=sees_answers,
    )
    return search_page(result, filters.q)


def search_page(result: SearchResult, q: str) -> dict[str, Any]:
    """Return the trajectories of a search with the pieces of text that match ``q``, as a ``SearchPage``."""
    pattern = words_pattern(q)
    for row in result.rows:
        row.matches = [  # type: ignore[attr-defined]
            {
                "part": match.part,
                "index": match.index,
                "action": match.action,
                "text": snippet(match, pattern).text,
            }
            for match in result.matches.get(row.pk, ())
        ]
    return {
        "total": result.total,
        "capped": result.capped,
        "items": list(result.rows),
        "next_before": result.next_before,
    }


@router.get("/trajectories/compare", response=AlignmentOut)
def compare_trajectories(request: HttpRequest, left: int, right: int) -> Alignment:
    """Align the steps of two trajectories by their actions (tool and arguments)."""
    return align(*(_readable(request, trajectory_id).pk for trajectory_id in (left, right)))


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
    trajectory = _readable(request, trajectory_id)
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


@router.get("/trajectories/{int:trajectory_id}/tokens", response=TokensOut)
def get_tokens(request: HttpRequest, trajectory_id: int, start: int = 0, size: int = 4096) -> dict[str, Any]:
    """Return a window of the tokens that the policy read and sampled."""
    trajectory = _readable(request, trajectory_id)
    blob = TokenBlob.objects.filter(trajectory=trajectory).first()
    if blob is None:
        reason = tokenless_reason(trajectory.run, trajectory)
        raise HttpError(404, reason or "The token ids are stored when the rollout ends.")
    record, start = blob.record, max(0, start)
    window = slice(start, start + max(1, min(size, 65_536)))
    columns = {name: getattr(record, name)[window].tolist() for name in TOKEN_COLUMNS}
    return {"length": len(record), "samples": record.starts.tolist(), "start": start} | columns


@router.get("/trajectories/{int:trajectory_id}/token-trace", response=TokenTraceOut)
def get_token_trace(
    request: HttpRequest, trajectory_id: int, start: int = 0, size: int = 4096
) -> dict[str, Any]:
    """Return a window of the sampled tokens with the factors of their losses and gradients."""
    trajectory = _readable(request, trajectory_id)
    window = trace_window(trajectory, start=max(0, start), size=max(1, min(size, 65_536)))
    if window is None:
        raise HttpError(404, missing_trace(trajectory, algorithm_of(trajectory.run)))
    return window


def trace_window(trajectory: Trajectory, *, start: int, size: int) -> dict[str, Any] | None:
    """Return the fields of ``TokenTraceOut``; None where the trainer did not record the tokens."""
    traced = traced_tokens(trajectory, algorithm_of(trajectory.run))
    if traced is None:
        return None
    tokens = range(start, min(start + size, len(traced)))
    window, sampled, reference = slice(start, start + size), traced.sampled, traced.sampled.reference_logprobs
    terms = traced.terms[window]
    return {
        "length": len(traced),
        "start": start,
        "iteration": traced.trace.iteration,
        "step": traced.trace.step,
        "losses": traced.trace.losses,
        "advantage": traced.advantage,
        "weight": traced.trace.weight,
        "positions": list(traced.positions[window]),
        "texts": [traced.text(token) for token in tokens],
        "sampler_logprobs": sampled.sampler_logprobs[window],
        "old_logprobs": sampled.old_logprobs[window],
        "logprobs": sampled.logprobs[window],
        "reference_logprobs": None if reference is None else reference[window],
        "entropies": traced.entropies[window],
        "ratios": [each.ratio for each in terms],
        "clips": [each.clip for each in terms],
        "surrogates": [each.surrogate for each in terms],
        "corrections": [each.correction for each in terms],
        "kl": [each.kl for each in terms],
        "entropy_terms": [each.entropy for each in terms],
        "token_losses": [each.loss for each in terms],
        "slopes": [each.slope for each in terms],
    }


def _find(trajectory_id: int) -> Trajectory:
    trajectory = Trajectory.objects.filter(pk=trajectory_id).first()
    if trajectory is None:
        raise HttpError(404, f"there is no trajectory {trajectory_id}")
    return trajectory


def _readable(request: HttpRequest, trajectory_id: int) -> Trajectory:
    """Return the trajectory. Raises PermissionDenied if the caller may not read it."""
    trajectory = _find(trajectory_id)
    check_rollouts(trajectory.run, role_of_caller(request))
    return trajectory


class WhatIfIn(Schema):
    """Overrides of the run's ``algorithm`` settings, by name."""

    settings: dict[str, Any]


class MemberOut(Schema):
    """Advantage and mask of one trajectory of a group."""

    index: int
    advantage: float | None
    baseline: float | None
    loss_mask: bool
    mask_reason: str


class WhatIfOut(Schema):
    """Advantages and masks of a group under other settings."""

    algorithm: dict[str, Any]
    members: list[MemberOut]
    notes: list[str]


class SignalOut(Schema):
    """What updates trained on under one objective."""

    groups: int
    uniform: int
    """Groups without signal."""
    trajectories: int
    tokens: int
    tasks: dict[str, float]
    """Task → share of the gradient where no ratio is clipped, the updates counting equally."""


class RunWhatIfOut(Schema):
    """A run's updates under its own objective and another one."""

    updates: int
    algorithm: dict[str, Any]
    own: SignalOut
    other: SignalOut


@router.post("/runs/{int:run_id}/what-if", response=RunWhatIfOut)
def run_what_if(
    request: HttpRequest, run_id: int, body: WhatIfIn, iteration: int | None = None
) -> dict[str, Any]:
    """Return what a run's updates, or that of one iteration, would have trained on under other settings."""
    return what_if_document(updates_what_if(find_run(run_id), body.settings, iteration=iteration))


def what_if_document(result: UpdatesWhatIf) -> dict[str, Any]:
    """Return the fields of ``RunWhatIfOut``."""

    def signal(totals: Totals) -> dict[str, Any]:
        names = ("groups", "uniform", "trajectories", "tokens")
        return {name: getattr(totals, name) for name in names} | {"tasks": totals.shares()}

    return {
        "updates": result.updates,
        "algorithm": result.algorithm.model_dump(mode="json"),
        "own": signal(result.own),
        "other": signal(result.other),
    }


@router.post("/runs/{int:run_id}/groups/{phase}/{int:iteration}/{task_key}/what-if", response=WhatIfOut)
def group_what_if(
    request: HttpRequest, run_id: int, phase: str, iteration: int, task_key: str, body: WhatIfIn
) -> WhatIfOut:
    """Return the advantages and masks that a stored group would have under other settings."""
    result = counterfactual(
        find_run(run_id), phase=phase, iteration=iteration, task_key=task_key, settings=body.settings
    )
    if result is None:
        raise HttpError(404, f"run {run_id} has no group of task {task_key} in {phase} {iteration}")
    members = [MemberOut(**dataclasses.asdict(member)) for member in result.members]
    return WhatIfOut(
        algorithm=result.config.model_dump(mode="json"), members=members, notes=list(result.notes)
    )
