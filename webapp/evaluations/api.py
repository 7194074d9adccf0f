"""Reports and submissions of evaluations, two evaluations compared, and regradings."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.http import HttpRequest, StreamingHttpResponse
from ninja import Query, Router, Schema
from ninja.errors import HttpError

from engine.evaluation.flips import FLIPS
from engine.verifiers.selection.curves import Short
from webapp.api.auth import answer_reader, caller, viewer
from webapp.core.services import audit
from webapp.evaluations.contexts.comparison import compare_evaluations
from webapp.evaluations.contexts.model_sizes import model_scores
from webapp.evaluations.contexts.regrading import regraded_parts
from webapp.evaluations.contexts.report import Question, evaluation_report
from webapp.evaluations.contexts.submission import Submission, submission_of
from webapp.rollouts.selectors import regrades as regrade_reads
from webapp.rollouts.selectors.attempts import Point, has_rollouts
from webapp.runs.api.runs import find as find_run

router = Router(tags=["evaluations"], auth=viewer)


class ReportOut(Schema):
    """Numbers of one evaluation, see ``webapp.evaluations.contexts.report.Report``."""

    ended: bool
    """Before the end, all numbers are of the tasks whose attempts have all ended."""
    num_open_tasks: int
    rate: dict[str, Any]
    endings: dict[str, Any]
    """Attempts by ending: submitted, ended by each limit, excluded."""
    curves: list[dict[str, Any]]
    curves_error: str
    """Reason why the curves of some or all rules are missing."""
    coverage: dict[str, Any]
    """Numbers of tasks that lack rollouts or scores."""
    verifier: int | None
    tests: int | None
    regression_only: bool
    """Whether ``eb`` and ``hybrid`` compare passes of regression tests alone: no written tests were run."""
    budgets: list[dict[str, Any]]
    """Approximate: computed from rollouts with a larger budget."""
    repositories: list[dict[str, Any]]
    difficulties: list[dict[str, Any]]
    submissions: dict[str, Any]
    spending: dict[str, Any]


class SideOut(Schema):
    """One of two compared evaluations."""

    ended: bool
    num_open_tasks: int
    """Tasks left out before its end because some of their attempts have not ended."""
    endings: dict[str, Any]
    """Attempts by ending: submitted, ended by each limit, excluded."""


class ComparisonOut(Schema):
    """Second evaluation against the first, see ``engine.evaluation.comparison.Comparison``."""

    first: SideOut
    second: SideOut
    num_shared: int
    only_first: list[str]
    only_second: list[str]
    rate_first: float
    rate_second: float
    difference: float
    interval_low: float | None
    interval_high: float | None
    gained: list[dict[str, Any]]
    lost: list[dict[str, Any]]
    test: str
    p_value: float


@router.get("/runs/{int:run_id}/evaluations/{phase}/{int:iteration}/report", response=ReportOut)
def report(
    request: HttpRequest,
    run_id: int,
    phase: str,
    iteration: int,
    rule: str = "",
    k: int | None = None,
    keep: int | None = None,
    short: Short = Short.REFUSE,
    leave_out_unscored: bool = False,
    repo: str = "",
    verifier: int | None = None,
    tests: int | None = None,
) -> dict[str, Any]:
    """Return the report of an evaluation (``eval:NAME``) or of an iteration's rollouts (``train``)."""
    question = Question(
        rule=rule,
        k=k,
        keep=keep,
        short=short,
        leave_out_unscored=leave_out_unscored,
        repo=repo,
        verifier=verifier,
        tests=tests,
    )
    return asdict(evaluation_report(_point(run_id, phase, iteration), question))


def _point(run_id: int, phase: str, iteration: int) -> Point:
    point = Point(run=find_run(run_id), phase=phase, iteration=iteration)
    if not has_rollouts(point):
        raise HttpError(404, f"run {run_id} has no rollouts in {phase} {iteration}")
    return point


class SubmissionIn(Schema):
    """Description of a submission, see ``engine.evaluation.submission.SubmissionInfo``; lists with commas."""

    name: str = ""
    authors: str = ""
    organizations: str = ""
    models: str = ""
    site: str = ""
    report: str = ""
    open_model: bool = False
    open_system: bool = False
    confirmed: bool = False
    rule: str = ""
    """Rule that selects one attempt of each task; empty submits the one with the number ``index``."""
    index: int = 0
    verifier: int | None = None
    """Verifier's run whose P(YES) the rule uses."""
    tests: int | None = None
    """Verifier's run whose passed tests the rule uses."""


class FindingsOut(Schema):
    """Name of a submission's folder, and the problems of the submission."""

    folder: str
    findings: list[str]


_SUBMISSION = "/runs/{int:run_id}/evaluations/{phase}/{int:iteration}/submission"


def _submission(run_id: int, phase: str, iteration: int, given: SubmissionIn) -> Submission:
    texts = {name: "on" if value is True else str(value) for name, value in given.dict().items() if value}
    return submission_of(_point(run_id, phase, iteration), texts)


@router.get(_SUBMISSION, auth=answer_reader)
def submission(
    request: HttpRequest, run_id: int, phase: str, iteration: int, given: Query[SubmissionIn]
) -> StreamingHttpResponse:
    """Return a submission folder for SWE-bench/experiments as a ZIP archive."""
    export = _submission(run_id, phase, iteration, given)
    archive = export.archive()
    audit.record(
        actor=caller(request), action="submission.export", run_id=run_id, target=f"{phase} {iteration}"
    )
    response = StreamingHttpResponse(archive, content_type="application/zip")
    response["Content-Disposition"] = f'attachment; filename="{export.folder}.zip"'
    return response


@router.get(f"{_SUBMISSION}/findings", auth=answer_reader, response=FindingsOut)
def submission_findings(
    request: HttpRequest, run_id: int, phase: str, iteration: int, given: Query[SubmissionIn]
) -> dict[str, Any]:
    """Check a submission and return its problems."""
    export = _submission(run_id, phase, iteration, given)
    return {"folder": export.folder, "findings": export.findings()}


class ModelScoreOut(Schema):
    """The newest evaluation of a run and name, of a model."""

    run: int
    run_name: str
    phase: str
    iteration: int
    model: str
    parameters: float | None
    """As stated in the model's name; null where it states none."""
    dataset: str
    split: str
    """Scores of other datasets and splits are not comparable."""
    num_tasks: int
    num_samples: int
    solve_rate: float
    interval_low: float
    interval_high: float
    """95 %."""


@router.get("/evaluations/models", response=list[ModelScoreOut])
def list_model_scores(request: HttpRequest) -> list[Any]:
    """List models with sizes and scores: the newest evaluation of each run and name, at most 200."""
    return model_scores()


@router.get("/evaluations/compare", response=ComparisonOut)
def compare(request: HttpRequest, first: str, second: str) -> dict[str, Any]:
    """Compare two evaluations, each ``RUN:PHASE:ITERATION``, over the tasks that both graded."""
    return compare_evaluations(first, second).as_dict()


class RegradeOut(Schema):
    """Original and new verdict of one trajectory; ``obstacle`` is the reason where there is no new one."""

    source: str
    """Run of the trajectory."""
    phase: str
    iteration: int
    task_key: str
    index: int
    old_verdict: str
    old_reward: float
    verdict: str
    reward: float | None
    obstacle: str
    flip: str
    """Outcomes before and after, such as ``passed_failed``; empty for equal ones."""
    detail: str
    failed_tests: list[str]
    """Required tests that did not pass, the first ones."""
    num_failed_tests: int
    dataset: str
    row: str
    """Task of the row under which the patch was graded."""


class RegradePage(Schema):
    """One page of later verdicts, and their total number."""

    total: int
    items: list[RegradeOut]


class RegradingOut(Schema):
    """Counts of a regrading, and the rates of each run and phase by both verdicts."""

    num_trajectories: int
    num_regraded: int
    num_lost: int
    """Trajectories whose grading infrastructure lost."""
    flips: dict[str, int]
    obstacles: dict[str, int]
    """Reason → trajectories that cannot be graded again."""
    parts: list[dict[str, Any]]
    """See ``webapp.evaluations.contexts.regrading.RegradedPart``."""


@router.get("/runs/{int:run_id}/regrading", response=RegradingOut)
def regrading(request: HttpRequest, run_id: int) -> dict[str, Any]:
    """Return pass@1 and Best@K of the original and the new verdicts of a regrading, and its flips."""
    run = find_run(run_id)
    return {**asdict(regrade_reads.totals(run.pk)), "parts": list(map(asdict, regraded_parts(run)))}


@router.get("/runs/{int:run_id}/regraded", response=RegradePage)
def regraded(
    request: HttpRequest, run_id: int, show: str = "flips", page: int = 1, size: int = 50
) -> dict[str, Any]:
    """List trajectories with both verdicts.

    ``show`` is ``flips``, ``all``, ``lost``, ``not_regraded`` or a kind of flip.
    """
    run = find_run(run_id)
    if show not in (*regrade_reads.SHOWN, *FLIPS):
        raise HttpError(422, f"show is '{show}'; expected one of {', '.join((*regrade_reads.SHOWN, *FLIPS))}")
    rows = regrade_reads.list_regrades(run.pk, show=show, number=page, size=max(1, min(size, 1000)))
    return {"total": rows.total, "items": list(rows.rows)}
