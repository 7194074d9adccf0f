"""Report of one evaluation: pass@1 with its errors, selection, budgets, parts, spending.

All numbers are computed from stored rollouts on request; page, API and command return the same numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from urllib.parse import urlencode

from django.urls import reverse

from engine.errors import ConfigError, DatasetError
from engine.evaluation.attempts import Attempt
from engine.evaluation.breakdown import (
    BudgetPoint,
    Part,
    Spending,
    Submissions,
    budget_curve,
    parts,
    spending,
    submissions,
)
from engine.evaluation.endings import Endings
from engine.evaluation.repeats import RepeatedRate, repeated_rate
from engine.verifiers.selection.candidates import Candidate
from engine.verifiers.selection.curves import (
    Curve,
    CurvePoint,
    Short,
    available_rules,
    possible_curves,
    unscored_tasks,
)
from engine.verifiers.selection.rules import RULES, Hybrid, named_rules
from webapp.core.contexts.frame import Crumb, iteration_url, phase_label, run_crumbs
from webapp.core.contexts.line_charts import LineChart, line_chart
from webapp.core.contexts.numbers import MOST_ID, whole
from webapp.evaluations.contexts.difficulty import DifficultyTable, difficulty_tables
from webapp.rollouts.selectors.attempts import (
    Point,
    StoredAttempt,
    StoredPoint,
    Verifier,
    stored_point,
    verifiers,
    with_most_scores,
)
from webapp.runs.models.runs import Run

CONTEXT_BUDGETS = tuple(1024 * size for size in (4, 8, 16, 32, 64, 128))
GENERATED_BUDGETS = tuple(1024 * size for size in (1, 2, 4, 8, 16, 32, 64))
STEP_BUDGETS = (5, 10, 20, 30, 40, 50, 75, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetTable:
    """Solve rate within budgets of one kind; an approximation from stored rollouts."""

    name: str
    points: tuple[BudgetPoint, ...]
    """Up to the first budget within which every attempt had ended; empty where no size is known."""
    num_unknown: int
    """Graded attempts left out because they have steps but no token counts, as in some imports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Choices of the what-if form; empty values are defaults."""

    rule: str = ""
    """Empty for every rule whose scores exist."""
    k: int | None = None
    """Largest K; None is the smallest number of graded rollouts of any task, or the largest if
    ``short`` is not ``refuse``."""
    short: Short = Short.REFUSE
    """Treatment of tasks with fewer than K graded rollouts."""
    leave_out_unscored: bool = False
    """Whether to leave out tasks with a rollout that lacks a score needed by any of the rules."""
    keep: int | None = None
    """Rollouts that ``hybrid`` keeps; None is half of K."""
    repo: str = ""
    """Empty for all repositories."""
    verifier: int | None = None
    """Verifier's run whose P(YES) is used; None is the run with the most scores, the newest of equals."""
    tests: int | None = None
    """Verifier's run whose passed tests are used; None is as for ``verifier``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Tasks of an evaluation that selection rules can and cannot select from."""

    num_tasks: int
    """Tasks with a graded rollout."""
    most_rollouts: int
    """Largest number of graded rollouts of any task."""
    num_short: int
    """Tasks with fewer graded rollouts than the largest K; without one, than ``most_rollouts``."""
    num_unscored: int
    """Tasks with a graded rollout that lacks a score needed by any of the rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Numbers of one evaluation, or of one repository's part of it."""

    ended: bool
    """Whether the evaluation has ended; before, all numbers are of tasks whose attempts have all ended."""
    num_open_tasks: int
    """Tasks left out because some of their attempts have not ended."""
    rate: RepeatedRate
    endings: Endings
    curves: tuple[Curve, ...]
    """Best@K of selection rules."""
    curves_error: str
    """Reason why the curves of some or all rules are missing; empty without one."""
    coverage: Coverage
    verifier: int | None
    """Run of the verifier whose P(YES) is used; None if none has scored these rollouts."""
    tests: int | None
    """Run of the verifier whose passed tests are used; None if none has scored these rollouts."""
    regression_only: bool
    """Whether no written tests were run, so that ``eb`` and ``hybrid`` compare regression tests alone."""
    budgets: tuple[BudgetTable, ...]
    repositories: tuple[Part, ...]
    difficulties: tuple[DifficultyTable, ...]
    submissions: Submissions
    spending: Spending


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionRow:
    """Best@K of every rule at one K, in the order of the curves."""

    k: int
    points: tuple[CurvePoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportContext:
    """Context of the report page."""

    section: str
    crumbs: tuple[Crumb, ...]
    run: Run
    title: str
    rollouts_url: str
    compare_url: str
    submission_url: str
    report: Report
    question: Question
    error: str
    """Reason why the chosen verifier cannot be used; empty without one."""
    rules: tuple[str, ...]
    repos: tuple[str, ...]
    verifiers: tuple[Verifier, ...]
    """Verifiers' runs that judged these rollouts."""
    testers: tuple[Verifier, ...]
    """Verifiers' runs that ran tests on their patches."""
    selection: tuple[SelectionRow, ...]
    selection_chart: LineChart | None
    budget_charts: tuple[LineChart, ...]


def evaluation_report(point: Point, question: Question) -> Report:
    """Compute the report. Raises ConfigError where the verifier has no scores of these rollouts."""
    question = _with_verifiers(question, verifiers(point))
    return _report(stored_point(point, verifier=question.verifier, tests=question.tests), question)


def build_report(point: Point, params: Mapping[str, str]) -> ReportContext:
    """Build the context of the report page."""
    known = verifiers(point)
    question, error = _with_verifiers(question_of(params), known), ""
    try:
        stored = stored_point(point, verifier=question.verifier, tests=question.tests)
    except ConfigError as problem:
        error, question = str(problem), replace(question, verifier=None, tests=None)
        stored = stored_point(point)
    report = _report(stored, question)
    title, url = phase_label(point.phase, point.iteration), _rollouts_url(point)
    return ReportContext(
        section="runs",
        crumbs=run_crumbs(point.run, Crumb(title, url), Crumb("report")),
        run=point.run,
        title=title,
        rollouts_url=url,
        compare_url=f"{reverse('evaluation-compare')}?{urlencode({'first': point.key})}",
        submission_url=reverse("evaluation-submission", args=[point.run.pk, point.phase, point.iteration]),
        report=report,
        question=question,
        error=error,
        rules=tuple(RULES),
        repos=tuple(sorted({rollout.task.repo for rollout in stored.attempts})),
        verifiers=tuple(verifier for verifier in known if not verifier.by_tests),
        testers=tuple(verifier for verifier in known if verifier.by_tests),
        selection=_selection_rows(report.curves),
        selection_chart=_chart(report.curves),
        budget_charts=tuple(filter(None, map(_budget_chart, report.budgets))),
    )


def _rollouts_url(point: Point) -> str:
    return iteration_url(point.run.pk, point.phase, point.iteration)


def question_of(params: Mapping[str, str]) -> Question:
    """Parse the choices of a query string."""
    return Question(
        rule=params.get("rule", ""),
        k=whole(params.get("k", "")),
        keep=whole(params.get("keep", "")),
        short=Short(short) if (short := params.get("short", "")) in set(Short) else Short.REFUSE,
        leave_out_unscored=bool(params.get("leave_out_unscored")),
        repo=params.get("repo", ""),
        verifier=whole(params.get("verifier", ""), most=MOST_ID),
        tests=whole(params.get("tests", ""), most=MOST_ID),
    )


def _with_verifiers(question: Question, known: Sequence[Verifier]) -> Question:
    """Replace verifiers that were not chosen by those with the most scores."""
    judge, tests = with_most_scores(known)
    return replace(
        question,
        verifier=judge if question.verifier is None else question.verifier,
        tests=tests if question.tests is None else question.tests,
    )


def _report(stored: StoredPoint, question: Question) -> Report:
    chosen = [rollout for rollout in stored.attempts if question.repo in ("", rollout.task.repo)]
    attempts = [rollout.attempt for rollout in chosen]
    curves, error, coverage = _curves(chosen, question)
    return Report(
        ended=stored.ended,
        num_open_tasks=stored.num_open_tasks,
        rate=repeated_rate(attempts),
        endings=Endings.of_attempts(attempts),
        curves=curves,
        curves_error=error,
        coverage=coverage,
        verifier=question.verifier,
        tests=question.tests,
        regression_only=_has_regression_only([rollout.candidate for rollout in chosen]),
        budgets=(
            _budgets("context tokens", attempts, "context_tokens", CONTEXT_BUDGETS),
            _budgets("generated tokens", attempts, "generated_tokens", GENERATED_BUDGETS),
            _budgets("turns", attempts, "steps", STEP_BUDGETS),
        ),
        repositories=tuple(
            parts(attempts, {rollout.attempt.task_id: rollout.task.repo for rollout in chosen})
        ),
        difficulties=difficulty_tables(chosen),
        submissions=submissions(attempts),
        spending=spending(attempts),
    )


def _has_regression_only(candidates: Sequence[Candidate]) -> bool:
    return any(candidate.regression_passes is not None for candidate in candidates) and all(
        candidate.reproduction_passes is None for candidate in candidates
    )


def _curves(chosen: Sequence[StoredAttempt], question: Question) -> tuple[tuple[Curve, ...], str, Coverage]:
    """Return the curves at powers of two and the largest K, and the reasons why some rules have none."""
    candidates = _named_candidates(chosen)
    sizes = Counter(candidate.task_id for candidate in candidates)
    most = max(sizes.values(), default=0)
    unscored: frozenset[str] = frozenset()
    curves: Sequence[Curve] = ()
    try:
        if not candidates:
            raise DatasetError("No rollout was graded, so no rollout can be selected.")
        names = [question.rule] if question.rule else [rule.name for rule in available_rules(candidates)]
        rules = named_rules(names, hybrid=Hybrid(keep=question.keep))
        unscored = unscored_tasks(candidates, rules)
        left_out = unscored if question.leave_out_unscored else frozenset()
        counted = [candidate for candidate in candidates if candidate.task_id not in left_out]
        if not counted:
            raise DatasetError(f"Every task has a rollout without a score of {', '.join(names)}.")
        ks = _ks(question, [size for task, size in sizes.items() if task not in left_out])
        curves, missing = possible_curves(counted, rules, ks, short=question.short)
        error = ". ".join(missing)
    except (ConfigError, DatasetError) as problem:
        error = str(problem)
    coverage = Coverage(
        num_tasks=len(sizes),
        most_rollouts=most,
        num_short=sum(size < (most if question.k is None else question.k) for size in sizes.values()),
        num_unscored=len(unscored),
    )
    return tuple(curves), error, coverage


def _ks(question: Question, sizes: Sequence[int]) -> list[int]:
    """Return the largest K and all powers of two below; ``sizes`` are graded rollouts per task."""
    largest = question.k
    if largest is None:
        largest = min(sizes) if question.short is Short.REFUSE else max(sizes)
    return sorted({largest, *(2**power for power in range(largest.bit_length()) if 2**power < largest)})


def _named_candidates(chosen: Sequence[StoredAttempt]) -> list[Candidate]:
    """Return the graded candidates, with the readable names of tasks where these are unique."""
    names = {rollout.candidate.task_id: rollout.task.instance_id for rollout in chosen}
    counts = Counter(names.values())
    return [
        replace(rollout.candidate, task_id=rollout.task.instance_id)
        if counts[rollout.task.instance_id] == 1
        else rollout.candidate
        for rollout in chosen
        if rollout.candidate.resolved is not None
    ]


def _budgets(name: str, attempts: Sequence[Attempt], field: str, budgets: Sequence[int]) -> BudgetTable:
    size = attrgetter(field)
    graded = [attempt for attempt in attempts if attempt.solved is not None]
    known = [attempt for attempt in graded if size(attempt) or not attempt.steps]
    num_unknown = len(graded) - len(known)
    if num_unknown and not known:
        return BudgetTable(name=name, points=(), num_unknown=num_unknown)
    longest = max(map(size, known), default=0)
    enough = next((budget for budget in budgets if budget >= longest), longest)
    chosen = [budget for budget in budgets if budget < enough] + [enough]
    points = tuple(budget_curve(known, size, chosen))
    return BudgetTable(name=name, points=points, num_unknown=num_unknown)


def _selection_rows(curves: Sequence[Curve]) -> tuple[SelectionRow, ...]:
    return tuple(
        SelectionRow(k=points[0].k, points=points)
        for points in zip(*(curve.points for curve in curves), strict=True)
    )


def _chart(curves: Sequence[Curve]) -> LineChart | None:
    """Return the curves over equally distant K; None for a single K."""
    if not curves or len(curves[0].points) < 2:
        return None
    last = len(curves[0].points) - 1
    series = {
        curve.rule: [(place / last, 100 * point.rate) for place, point in enumerate(curve.points)]
        for curve in curves
    }
    colours = {name: number for number, name in enumerate(RULES, start=1)}
    return line_chart("best-at-k", "Best@K", "%", series, colours=colours)


def _budget_chart(table: BudgetTable) -> LineChart | None:
    """Return resolved and ended attempts over equally distant budgets; None for a single budget."""
    last = len(table.points) - 1
    if last < 1:
        return None
    rates = {"resolved": attrgetter("rate"), "ended": attrgetter("ended")}
    series = {
        name: [
            (place / last, 100 * value)
            for place, point in enumerate(table.points)
            if (value := rate(point)) is not None
        ]
        for name, rate in rates.items()
    }
    name = table.name.replace(" ", "-")
    colours = {"resolved": 3, "ended": 7}
    return line_chart(name, f"Within {table.name}", "% of attempts", series, colours=colours, top=100.0)
