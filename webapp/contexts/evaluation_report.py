"""Report of one evaluation: pass@1 with its errors, selection, budgets, parts, spending.

Everything is computed from stored rollouts when it is asked for; page, API and command give the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

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
from engine.evaluation.repeats import RepeatedRate, repeated_rate
from engine.verifiers.selection.curves import Curve, available_rules, possible_curves
from engine.verifiers.selection.rules import RULES, Hybrid, named_rules
from webapp.contexts.frame import Crumb, iteration_url, phase_label, run_crumbs
from webapp.contexts.line_charts import LineChart, line_chart
from webapp.contexts.numbers import MOST_ID, whole
from webapp.models import Run
from webapp.selectors.attempts import StoredAttempt, has_rollouts, stored_attempts, verifiers

CONTEXT_BUDGETS = tuple(1024 * size for size in (4, 8, 16, 32, 64, 128))
GENERATED_BUDGETS = tuple(1024 * size for size in (1, 2, 4, 8, 16, 32, 64))
STEP_BUDGETS = (5, 10, 20, 30, 40, 50, 75, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetTable:
    """Solve rate within budgets of one kind; an approximation from stored rollouts."""

    name: str
    points: tuple[BudgetPoint, ...]
    """Up to the first budget within which every attempt had ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Choices of the what-if form; empty values are defaults."""

    rule: str = ""
    """Every rule that has its scores, where empty."""
    k: int | None = None
    """Largest K; None is the smallest number of graded rollouts of any task."""
    keep: int | None = None
    """Rollouts that ``hybrid`` keeps; None is half of K."""
    repo: str = ""
    """All repositories, where empty."""
    verifier: int | None = None
    """Run of the verifier whose scores count; None is the newest that scored these rollouts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Numbers of one evaluation, or of one repository's part of it."""

    rate: RepeatedRate
    curves: tuple[Curve, ...]
    """Best@K of selection rules."""
    curves_error: str
    """Reason why there are no curves, or not those of every rule; empty without one."""
    verifier: int | None
    """Run of the verifier whose scores count; None where none scored these rollouts."""
    budgets: tuple[BudgetTable, ...]
    repositories: tuple[Part, ...]
    submissions: Submissions
    spending: Spending


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionRow:
    """Best@K of every rule at one K, in the order of the curves."""

    k: int
    rates: tuple[float, ...]
    errors: tuple[float | None, ...]
    """Standard errors over tasks."""
    num_short: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportContext:
    """The page."""

    section: str
    crumbs: tuple[Crumb, ...]
    run: Run
    phase: str
    iteration: int
    title: str
    rollouts_url: str
    compare_url: str
    report: Report
    question: Question
    rules: tuple[str, ...]
    repos: tuple[str, ...]
    verifiers: tuple[tuple[int, str], ...]
    """Number and name of the verifiers' runs that scored these rollouts."""
    selection: tuple[SelectionRow, ...]
    selection_chart: LineChart | None


def evaluation_report(run: Run, *, phase: str, iteration: int, question: Question) -> Report | None:
    """Compute the report; None when the run has no rollouts there."""
    if not has_rollouts(run.pk, phase=phase, iteration=iteration):
        return None
    question = _with_verifier(question, verifiers(run.pk, phase=phase, iteration=iteration))
    stored = stored_attempts(run.pk, phase=phase, iteration=iteration, verifier=question.verifier)
    return _report(stored, question)


def build_report(run: Run, phase: str, iteration: int, params: Mapping[str, str]) -> ReportContext | None:
    """Return the page; None when the run has no rollouts there."""
    if not has_rollouts(run.pk, phase=phase, iteration=iteration):
        return None
    known = verifiers(run.pk, phase=phase, iteration=iteration)
    question = _with_verifier(question_of(params), known)
    stored = stored_attempts(run.pk, phase=phase, iteration=iteration, verifier=question.verifier)
    report = _report(stored, question)
    title = phase_label(phase, iteration)
    key = f"{run.pk}:{phase}:{iteration}"
    return ReportContext(
        section="runs",
        crumbs=run_crumbs(run, Crumb(title, iteration_url(run.pk, phase, iteration)), Crumb("report")),
        run=run,
        phase=phase,
        iteration=iteration,
        title=title,
        rollouts_url=iteration_url(run.pk, phase, iteration),
        compare_url=f"{reverse('evaluation-compare')}?first={key}",
        report=report,
        question=question,
        rules=tuple(RULES),
        repos=tuple(sorted({one.repo for one in stored})),
        verifiers=tuple(known),
        selection=_selection_rows(report.curves),
        selection_chart=_chart(report.curves),
    )


def question_of(params: Mapping[str, str]) -> Question:
    """Return the choices in a query string."""
    return Question(
        rule=params.get("rule", ""),
        k=whole(params.get("k", "")),
        keep=whole(params.get("keep", "")),
        repo=params.get("repo", ""),
        verifier=whole(params.get("verifier", ""), most=MOST_ID),
    )


def _with_verifier(question: Question, known: Sequence[tuple[int, str]]) -> Question:
    """Return the question with the newest verifier where none is chosen."""
    newest = known[0][0] if known else None
    return question if question.verifier is not None else replace(question, verifier=newest)


def _report(stored: Sequence[StoredAttempt], question: Question) -> Report:
    chosen = [one for one in stored if question.repo in ("", one.repo)]
    attempts = [one.attempt for one in chosen]
    found, error = _curves(chosen, question)
    return Report(
        rate=repeated_rate(attempts),
        curves=found,
        curves_error=error,
        verifier=question.verifier,
        budgets=(
            _budgets("context tokens", attempts, "context_tokens", CONTEXT_BUDGETS),
            _budgets("generated tokens", attempts, "generated_tokens", GENERATED_BUDGETS),
            _budgets("turns", attempts, "steps", STEP_BUDGETS),
        ),
        repositories=tuple(parts(attempts, {one.attempt.task_id: one.repo for one in chosen})),
        submissions=submissions(attempts),
        spending=spending(attempts),
    )


def _curves(chosen: Sequence[StoredAttempt], question: Question) -> tuple[tuple[Curve, ...], str]:
    """Return the curves at powers of two and the largest K, and the reasons why some rules have none."""
    candidates = [one.candidate for one in chosen if one.candidate.resolved is not None]
    if not candidates:
        return (), "No rollout was graded, so there is nothing to select from."
    sizes: dict[str, int] = {}
    for one in candidates:
        sizes[one.task_id] = sizes.get(one.task_id, 0) + 1
    largest = question.k if question.k is not None else min(sizes.values())
    ks = sorted({largest, *(2**power for power in range(largest.bit_length()) if 2**power < largest)})
    try:
        names = [question.rule] if question.rule else [rule.name for rule in available_rules(candidates)]
        found, missing = possible_curves(
            candidates, named_rules(names, hybrid=Hybrid(keep=question.keep)), ks
        )
    except (ConfigError, DatasetError) as error:
        return (), str(error)
    return tuple(found), ". ".join(missing)


def _budgets(name: str, attempts: Sequence[Attempt], field: str, budgets: Sequence[int]) -> BudgetTable:
    longest = max(map(attrgetter(field), attempts), default=0)
    enough = next((budget for budget in budgets if budget >= longest), longest)
    chosen = [budget for budget in budgets if budget < enough] + [enough]
    return BudgetTable(name=name, points=tuple(budget_curve(attempts, attrgetter(field), chosen)))


def _selection_rows(found: Sequence[Curve]) -> tuple[SelectionRow, ...]:
    return tuple(
        SelectionRow(
            k=points[0].k,
            rates=tuple(point.rate for point in points),
            errors=tuple(point.standard_error for point in points),
            num_short=points[0].num_short,
        )
        for points in zip(*(curve.points for curve in found), strict=True)
    )


def _chart(found: Sequence[Curve]) -> LineChart | None:
    """Return the curves over equally distant K; None for a single K."""
    if not found or len(found[0].points) < 2:
        return None
    last = len(found[0].points) - 1
    series = {
        curve.rule: [(place / last, 100 * point.rate) for place, point in enumerate(curve.points)]
        for curve in found
    }
    colours = {name: number for number, name in enumerate(RULES, start=1)}
    return line_chart("best-at-k", "Best@K", "%", series, colours=colours)
