"""Health page of a dataset: validation results, quarantine with reasons, difficulty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from urllib.parse import urlencode

from django.urls import reverse

from engine.events.health import RowStatus, SideOutcome
from webapp.core.contexts.frame import Crumb, LiveCursor
from webapp.core.contexts.numbers import page_number
from webapp.core.contexts.row_status import LOOKS
from webapp.core.selectors import Page
from webapp.datasets.models.datasets import Dataset, Task
from webapp.datasets.selectors import difficulty
from webapp.datasets.selectors import health as reads
from webapp.datasets.selectors.health import (
    NO_TIMES,
    SECOND_BOUNDS,
    GradingTimes,
    MutantCounts,
    OutcomeCount,
    StrengthCounts,
)
from webapp.runs.models.runs import Run

_FAILED, _PASSED, _FLAKY, _INFRA = (
    side.value for side in (SideOutcome.FAILED, SideOutcome.PASSED, SideOutcome.FLAKY, SideOutcome.INFRA)
)
SIDES = (_FAILED, _PASSED, _FLAKY, _INFRA)
"""Outcomes of the untouched row, the correct one first."""
_TIMED = (("noop", "untouched"), ("gold", "gold patch"))
SOLVED_LABELS = {
    "none": "never solved", "mixed": "sometimes solved", "all": "always solved",
    "unmeasured": "not measured yet",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StatusCount:
    """Number of tasks with one status."""

    status: str
    label: str
    css: str
    tasks: int
    url: str
    """URL of the list of these tasks."""


@dataclass(frozen=True, slots=True)
class MatrixCell:
    """Number of tasks by outcome of the untouched row and of the gold patch."""

    noop: str
    gold: str
    tasks: int
    wanted: bool
    """True for the outcome of a valid row."""
    url: str


COUNTED = ("rows", "valid", "noop_passes", "gold_fails", "flaky", "infra")
"""Names of a validation's counts, in the order of the page's columns."""


@dataclass(frozen=True, slots=True)
class RunLine:
    """Row of a validation run."""

    run: Run
    counts: tuple[int | None, ...]
    """Counts in the order of ``COUNTED``; None until the run has ended."""
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Bin:
    """Bin of a histogram, with one bar per series."""

    label: str
    amounts: tuple[int, ...]
    widths: tuple[float, ...]
    """Widths of the bars, per cent of the largest one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthContext:
    """Health page of a dataset."""

    section: str
    crumbs: tuple[Crumb, ...]
    live: LiveCursor | None
    """Present while a validation runs."""
    dataset: Dataset
    statuses: tuple[StatusCount, ...]
    status_parts: tuple[tuple[str, str, float], ...]
    """(label, css class, tasks) of the parts of the status bar."""
    num_validated: int
    num_quarantined: int
    matrix: tuple[tuple[str, tuple[MatrixCell, ...]], ...]
    """Outcome of the gold patch → cells by outcome of the untouched row, in the order of ``sides``."""
    sides: tuple[str, ...]
    quarantined: Page[Task]
    flaky: tuple[Task, ...]
    num_flaky: int
    times: tuple[tuple[str, GradingTimes], ...]
    time_bins: tuple[Bin, ...]
    solved: tuple[StatusCount, ...]
    solve_bins: tuple[Bin, ...]
    attempts: int
    """Number of graded rollouts behind the solve rates."""
    mutants: MutantCounts | None
    failed_proofs: tuple[Task, ...]
    strength: StrengthCounts | None
    strength_bins: tuple[Bin, ...]
    weakest: tuple[Task, ...]
    runs: tuple[RunLine, ...]
    active: Run | None
    params: Mapping[str, str]
    can_operate: bool


def build_health(dataset: Dataset, params: Mapping[str, str], *, can_operate: bool) -> HealthContext:
    """Return the current health page of a dataset."""
    url = reverse("dataset-detail", args=[dataset.name])
    counts = reads.outcome_counts(dataset)
    statuses = _statuses(counts, url)
    runs = reads.validation_runs(dataset)
    active = reads.active_run(runs)
    measured = reads.grading_times(dataset)
    times = tuple((label, measured.get(side, NO_TIMES)) for side, label in _TIMED) if measured else ()
    profile = difficulty.profile(dataset)
    mutants = reads.mutant_counts(dataset)
    strength = reads.strength_counts(dataset)
    flaky = sum(count.tasks for count in counts if count.health == RowStatus.FLAKY)
    return HealthContext(
        section="datasets",
        crumbs=(Crumb("Datasets", reverse("dataset-list")), Crumb(dataset.name, url), Crumb("health")),
        live=_cursor(dataset, active) if active else None,
        dataset=dataset,
        statuses=statuses,
        status_parts=tuple((count.label, f"health-{count.css}", count.tasks) for count in statuses),
        num_validated=sum(count.tasks for count in counts if count.health),
        num_quarantined=sum(count.tasks for count in counts if count.quarantined),
        matrix=_matrix(counts, url),
        sides=SIDES,
        quarantined=reads.quarantined_tasks(dataset, number=page_number(params)),
        flaky=tuple(reads.flaky_tasks(dataset)) if flaky else (),
        num_flaky=flaky,
        times=times,
        time_bins=_time_bins([series for _, series in times]),
        solved=_solved(profile.classes, url),
        solve_bins=_solve_bins(profile.bins) if profile.attempts else (),
        attempts=profile.attempts,
        mutants=mutants,
        failed_proofs=tuple(reads.failed_proofs(dataset)) if mutants and mutants.tasks_failed else (),
        strength=strength,
        strength_bins=_bins(_SHARES, [strength.counts]) if strength else (),
        weakest=tuple(reads.weakest_tasks(dataset)) if strength else (),
        runs=tuple(_run_line(run) for run in runs),
        active=active,
        params=dict(params),
        can_operate=can_operate,
    )


def _run_line(run: Run) -> RunLine:
    return RunLine(run, tuple(run.summary.get(name) for name in COUNTED), run.summary.get("seconds"))


def _cursor(dataset: Dataset, run: Run) -> LiveCursor:
    return LiveCursor(run.pk, run.last_seq, "health", dataset.name, (dataset.name,))


def _solved(classes: Mapping[str, int], url: str) -> tuple[StatusCount, ...]:
    return tuple(
        StatusCount(kind, SOLVED_LABELS[kind], kind, tasks, f"{url}?{urlencode({'solved': kind})}")
        for kind, tasks in classes.items()
    )


def _statuses(counts: Sequence[OutcomeCount], url: str) -> tuple[StatusCount, ...]:
    totals = dict.fromkeys(LOOKS, 0)
    for count in counts:
        totals[count.health] += count.tasks
    return tuple(
        StatusCount(
            status, LOOKS[status][2], LOOKS[status][0], tasks,
            f"{url}?{urlencode({'health': status or 'unvalidated'})}",
        )
        for status, tasks in totals.items()
    )  # fmt: skip


def _matrix(counts: Sequence[OutcomeCount], url: str) -> tuple[tuple[str, tuple[MatrixCell, ...]], ...]:
    totals: dict[tuple[str, str], int] = {}
    for count in counts:
        if count.health:
            key = (count.noop, count.gold)
            totals[key] = totals.get(key, 0) + count.tasks
    if not totals:
        return ()
    return tuple(
        (gold, tuple(_cell(noop, gold, totals.get((noop, gold), 0), url) for noop in SIDES))
        for gold in (_PASSED, _FAILED, _FLAKY, _INFRA)
    )


def _cell(noop: str, gold: str, tasks: int, url: str) -> MatrixCell:
    address = f"{url}?{urlencode({'noop': noop, 'gold': gold})}"
    return MatrixCell(noop, gold, tasks, (noop, gold) == (_FAILED, _PASSED), address)


def _bins(labels: Sequence[str], series: Sequence[Sequence[int]]) -> tuple[Bin, ...]:
    """Return the bins of a histogram without empty bins at both ends."""
    amounts = list(zip(*series, strict=True))
    filled = [position for position, column in enumerate(amounts) if any(column)]
    if not filled:
        return ()
    most = max(max(column) for column in amounts)
    return tuple(
        Bin(labels[n], amounts[n], tuple(round(100 * amount / most, 2) for amount in amounts[n]))
        for n in range(filled[0], filled[-1] + 1)
    )


def _time_bins(times: Sequence[GradingTimes]) -> tuple[Bin, ...]:
    labels = [f"below {_seconds(SECOND_BOUNDS[0])}"]
    labels += [f"{_seconds(low)} – {_seconds(high)}" for low, high in pairwise(SECOND_BOUNDS)]
    labels += [f"{_seconds(SECOND_BOUNDS[-1])} and more"]
    return _bins(labels, [series.counts for series in times])


def _seconds(bound: float) -> str:
    return f"{bound:g}\u202fs" if bound < 60 else f"{bound / 60:g}\u202fmin"


_SHARES = tuple(f"{10 * n} – {10 * (n + 1)}\u202f%" for n in range(reads.STRENGTH_BINS))


def _solve_bins(counts: Sequence[int]) -> tuple[Bin, ...]:
    most = max(counts)
    return tuple(
        Bin(label, (amount,), (round(100 * amount / most, 2),))
        for label, amount in zip(_SHARES, counts, strict=True)
    )
