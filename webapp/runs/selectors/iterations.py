"""Reads of a run's measurements: chart series, solve rates, the funnel, evaluations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import asdict, dataclass
from functools import reduce
from operator import or_

from django.db.models import Case, Count, Q, QuerySet, Sum, Value, When
from django.db.models.functions import Coalesce

from engine.evaluation.comparison import PairedChange, paired_change
from engine.evaluation.endings import Endings
from engine.evaluation.metrics import EvaluationSummary, EvaluationTally, TaskTally
from engine.types import INFRASTRUCTURE_REASONS
from webapp.rollouts.models.trajectories import PAID, Group, Trajectory
from webapp.rollouts.selectors import attempts
from webapp.runs.models.iterations import Evaluation, Iteration
from webapp.runs.models.runs import Run
from webapp.runs.selectors import results


@dataclass(frozen=True, slots=True)
class Point:
    """A finished iteration's metrics."""

    index: int
    metrics: dict[str, float]
    seconds: float | None


def points_after(run_id: int, after: int, *, limit: int = 5000) -> list[Point]:
    """Return the newest ``limit`` finished iterations with an index above ``after``, oldest first."""
    rows = (
        Iteration.objects.filter(run_id=run_id, index__gt=after, finished_at__isnull=False)
        .order_by("-index")
        .values_list("index", "metrics", "started_at", "finished_at")[:limit]
    )
    return [
        Point(index, metrics, (finished - started).total_seconds() if finished else None)
        for index, metrics, started, finished in reversed(rows)
    ]


def num_finished(run_id: int) -> int:
    """Return the number of a run's finished iterations."""
    return Iteration.objects.filter(run_id=run_id, finished_at__isnull=False).count()


def count_finished(run_ids: Collection[int]) -> dict[int, int]:
    """Return the number of finished iterations of each run that has any."""
    rows = Iteration.objects.filter(run_id__in=run_ids, finished_at__isnull=False).order_by()
    return dict(rows.values_list("run_id").annotate(n=Count("id")))


def get_iteration(run_id: int, index: int) -> Iteration | None:
    """Return one iteration."""
    return Iteration.objects.filter(run_id=run_id, index=index).first()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRate:
    """Solve rate of an iteration's training rollouts."""

    solved: int
    graded: int
    rate: float | None
    """Mean over tasks of their solve rates; None when nothing was graded."""
    low: float
    high: float
    """95 % interval of ``rate`` for tasks like these."""
    endings: Endings | None
    """None where the iteration has not reported them."""


def batch_rate(run_id: int, point: Point) -> BatchRate:
    """Return the solve rate of a finished iteration."""
    summary = _tally(Group.objects.filter(run_id=run_id, phase="train", iteration=point.index))
    return BatchRate(
        solved=summary.num_solved,
        graded=summary.num_samples,
        rate=summary.solve_rate if summary.num_samples else None,
        low=summary.interval_low,
        high=summary.interval_high,
        endings=Endings.of_metrics(point.metrics, graded=summary.num_samples),
    )


@dataclass(frozen=True, slots=True)
class Funnel:
    """Rollouts of an iteration by fate, and the tokens trained on."""

    iteration: int
    started: int
    unfinished: int
    """Still running, or finished and not yet seen by the objective."""
    infrastructure: int
    masked: tuple[tuple[str, int], ...]
    """Reason → trajectories without loss, infrastructure left out."""
    zero_advantage: int
    """Not masked, but without loss: every sibling got the same reward."""
    trained: int
    trained_tokens: int


def funnel(run_id: int, iteration: int) -> Funnel | None:
    """Count the rollouts of a training iteration by fate, with one query; None before any started."""
    fate = Case(
        When(termination__in=[str(r) for r in INFRASTRUCTURE_REASONS], then=Value("infrastructure")),
        When(loss_mask__isnull=True, then=Value("unfinished")),
        When(loss_mask=False, then=Value("masked")),
        When(advantage=0.0, then=Value("zero")),
        default=Value("trained"),
    )
    rows = (
        Trajectory.objects.filter(run_id=run_id, phase="train", iteration=iteration)
        .order_by()
        .annotate(fate=fate)
        .values("fate", "mask_reason")
        .annotate(n=Count("id"), tokens=Coalesce(Sum("generated_tokens"), 0))
        .values_list("fate", "mask_reason", "n", "tokens")
    )
    counts: Counter[str] = Counter()
    masked: Counter[str] = Counter()
    tokens = 0
    for name, reason, n, row_tokens in rows:
        counts[name] += n
        if name == "masked":
            masked[reason or "unknown"] += n
        if name == "trained":
            tokens += row_tokens
    if not counts:
        return None
    return Funnel(
        iteration=iteration,
        started=sum(counts.values()),
        unfinished=counts["unfinished"],
        infrastructure=counts["infrastructure"],
        masked=tuple(sorted(masked.items(), key=lambda item: (-item[1], item[0]))),
        zero_advantage=counts["zero"],
        trained=counts["trained"],
        trained_tokens=tokens,
    )


def evaluations(run_id: int) -> list[Evaluation]:
    """Return every evaluation of a run, by name, then iteration."""
    return list(Evaluation.objects.filter(run_id=run_id).order_by("name", "iteration"))


def get_evaluation(run_id: int, phase: str, iteration: int) -> Evaluation | None:
    """Return one evaluation that has ended, by the phase of its rollouts (``eval:<name>``)."""
    name = phase.removeprefix("eval:")
    return Evaluation.objects.filter(run_id=run_id, name=name, iteration=iteration).first()


def task_rates(evaluations: Collection[Evaluation]) -> dict[int, dict[str, float]]:
    """Return the solve rate of each graded task of evaluations, by their primary keys, with one query."""
    by_point = {(row.run_id, f"eval:{row.name}", row.iteration): row.pk for row in evaluations}
    rates: dict[int, dict[str, float]] = {pk: {} for pk in by_point.values()}
    if not by_point:
        return rates
    where = [Q(run_id=run, phase=phase, iteration=iteration) for run, phase, iteration in by_point]
    groups = Group.objects.filter(reduce(or_, where), num_graded__gt=0).order_by()
    for run, phase, iteration, key, solved, graded in groups.values_list(
        "run_id", "phase", "iteration", "task_key", "num_solved", "num_graded"
    ):
        rates[by_point[run, phase, iteration]][key] = solved / graded
    return rates


def paired_changes(pairs: Collection[tuple[Evaluation, Evaluation]]) -> dict[int, PairedChange]:
    """Return the change from the first to the second evaluation of each pair, over tasks graded in both.

    Keys are the primary keys of the second evaluations; pairs without a common graded task are left out. One
    query reads all groups.
    """
    rates = task_rates([evaluation for pair in pairs for evaluation in pair])
    changes = {second.pk: paired_change(rates[first.pk], rates[second.pk]) for first, second in pairs}
    return {key: change for key, change in changes.items() if change is not None}


def partial_evaluations(run: Run, known: Collection[Evaluation]) -> list[Evaluation]:
    """Return unsaved evaluations in progress, over the tasks whose attempts have all ended.

    Tasks with attempts in flight are left out: their first attempts to end would bias the solve rate.

    Args:
        run: the run.
        known: its evaluations that have ended.
    """
    ended = {(f"eval:{evaluation.name}", evaluation.iteration) for evaluation in known}
    names = {evaluation.name for evaluation in known}
    names |= {"heldout", "train", run.config.get("dataset", {}).get("split")}
    # By name and from the newest on: a run may have a hundred thousand groups.
    groups = Group.objects.filter(
        run=run,
        phase__in=[f"eval:{name}" for name in names],
        iteration__gte=max((evaluation.iteration for evaluation in known), default=0),
    )
    started = groups.order_by("-iteration", "phase").values_list("phase", "iteration").distinct()
    partial = [_partial(run, *point) for point in started if point not in ended]
    return [evaluation for evaluation in partial if evaluation is not None]


def _partial(run: Run, phase: str, iteration: int) -> Evaluation | None:
    point = attempts.Point(run=run, phase=phase, iteration=iteration)
    _, left_out = attempts.open_tasks(point)
    summary = _tally(Group.objects.filter(**point.where).exclude(task_key__in=left_out))
    if not summary.num_tasks:
        return None
    evaluation = Evaluation(
        run=run,
        iteration=iteration,
        name=phase.removeprefix("eval:"),
        policy_version=run.policy_version or 0,
        num_samples=summary.num_samples,
        num_tasks=summary.num_tasks,
        num_solved=summary.num_solved,
        solve_rate=summary.solve_rate,
        interval_low=summary.interval_low,
        interval_high=summary.interval_high,
        pass_at_k=[asdict(entry) for entry in summary.pass_at_k],
    )
    evaluation.endings = results.endings(**point.where, left_out=left_out)
    return evaluation


def _tally(groups: QuerySet[Group]) -> EvaluationSummary:
    tally = EvaluationTally()
    rows = groups.order_by().values_list("task_key", "num_finished", "num_graded", "num_solved")
    for key, finished, graded, solved in rows:
        tally.tasks[key] = TaskTally(graded=graded, solved=solved, lost=finished - graded)
    return tally.summary()


@dataclass(frozen=True, slots=True)
class LiveCounts:
    """Counts and costs of a run's rollouts."""

    running: int
    """Trajectories that are live."""
    total: int
    """Trajectories of the run so far."""
    cost: float | None
    """US dollars so far, with the steps of live rollouts; None where no price is known."""
    cached_tokens: int
    """Prompt tokens from an endpoint's cache so far."""


def live_counts(run: Run) -> LiveCounts:
    """Return the numbers of live and of all trajectories, and their cost."""
    rows = Trajectory.objects.filter(run=run)
    # Three index-only scans; one over the rows themselves takes seven times as long for 100,000.
    sums = rows.filter(PAID).aggregate(cost=Sum("cost"), cached_tokens=Coalesce(Sum("cached_tokens"), 0))
    return LiveCounts(running=rows.filter(state=Trajectory.State.RUNNING).count(), total=rows.count(), **sums)
