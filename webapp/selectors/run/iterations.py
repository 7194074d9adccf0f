"""Reads of what a run measured: chart series, solve rates, the funnel, evaluations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass

from django.db.models import Case, Count, Min, Sum, Value, When
from django.db.models.functions import Coalesce

from engine.evaluation.metrics import EvaluationTally, TaskTally
from engine.types import INFRASTRUCTURE_REASONS
from webapp.models import Evaluation, Group, Iteration, Run, Trajectory
from webapp.models.trajectories import PAID
from webapp.selectors.rollout import attempts


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


def finished_extent(run_id: int) -> tuple[int, int | None]:
    """Return the number of a run's finished iterations, and the least index of them."""
    rows = Iteration.objects.filter(run_id=run_id, finished_at__isnull=False)
    found = rows.aggregate(number=Count("id"), first=Min("index"))
    return found["number"], found["first"]


def count_finished(run_ids: Collection[int]) -> dict[int, int]:
    """Return the number of finished iterations of each run that has any."""
    rows = Iteration.objects.filter(run_id__in=run_ids, finished_at__isnull=False).order_by()
    return dict(rows.values_list("run_id").annotate(n=Count("id")))


def get_iteration(run_id: int, index: int) -> Iteration | None:
    """Return one iteration."""
    return Iteration.objects.filter(run_id=run_id, index=index).first()


@dataclass(frozen=True, slots=True)
class SolveRate:
    """Share of graded training rollouts that were solved in one iteration."""

    iteration: int
    solved: int
    graded: int

    @property
    def rate(self) -> float | None:
        """None when nothing was graded."""
        return self.solved / self.graded if self.graded else None


def solve_rates(run_id: int, *, iterations: Sequence[int]) -> list[SolveRate]:
    """Return solve rates of the given iterations, in order."""
    rows = (
        Group.objects.filter(run_id=run_id, phase="train", iteration__in=list(iterations))
        .order_by("iteration")
        .values("iteration")
        .annotate(solved=Sum("num_solved"), graded=Sum("num_graded"))
        .values_list("iteration", "solved", "graded")
    )
    return [SolveRate(iteration, solved or 0, graded or 0) for iteration, solved, graded in rows]


@dataclass(frozen=True, slots=True)
class Funnel:
    """From the rollouts of an iteration to the tokens that were trained on."""

    iteration: int
    started: int
    unfinished: int
    """Still running, or finished and not yet seen by the objective."""
    infrastructure: int
    masked: tuple[tuple[str, int], ...]
    """Reason → trajectories without loss, infrastructure left out."""
    zero_advantage: int
    """Would carry loss, but every sibling got the same reward."""
    trained: int
    trained_tokens: int


def funnel(run_id: int, iteration: int) -> Funnel | None:
    """Count the rollouts of a training iteration by fate: one query; None before any started."""
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


def first_and_last_evaluations(
    run_ids: Collection[int], name: str
) -> dict[int, tuple[Evaluation, Evaluation]]:
    """Return the first and the newest evaluation of that name of each run that has one."""
    rows = Evaluation.objects.filter(run_id__in=run_ids, name=name)
    first, last = (
        {row.run_id: row for row in rows.order_by("run_id", order).distinct("run_id")}
        for order in ("iteration", "-iteration")
    )
    return {run_id: (first[run_id], last[run_id]) for run_id in first.keys() & last.keys()}


def get_evaluation(run_id: int, phase: str, iteration: int) -> Evaluation | None:
    """Return one evaluation that has ended, by the phase of its rollouts (``eval:<name>``)."""
    name = phase.removeprefix("eval:")
    return Evaluation.objects.filter(run_id=run_id, name=name, iteration=iteration).first()


def partial_evaluation(run: Run) -> Evaluation | None:
    """Return an evaluation so far, not saved: over the tasks whose attempts have all ended; None before one.

    Tasks with attempts in flight are left out, since attempts that end early are not like the others.
    """
    phases = Group.objects.filter(run=run, phase__startswith="eval:").values_list("phase", flat=True)
    phase = phases.first()
    if phase is None:
        return None
    point = attempts.Point(run=run, phase=phase, iteration=0)
    _, left_out = attempts.open_tasks(point)
    complete = Group.objects.filter(**point.where).exclude(task_key__in=left_out)
    tally = EvaluationTally()
    for key, finished, graded, solved in complete.values_list(
        "task_key", "num_finished", "num_graded", "num_solved"
    ):
        tally.tasks[key] = TaskTally(graded=graded, solved=solved, lost=finished - graded)
    found = tally.summary()
    if not found.num_tasks:
        return None
    return Evaluation(
        run=run,
        iteration=0,
        name=phase.removeprefix("eval:"),
        policy_version=run.policy_version or 0,
        num_samples=found.num_samples,
        num_tasks=found.num_tasks,
        num_solved=found.num_solved,
        solve_rate=found.solve_rate,
        interval_low=found.interval_low,
        interval_high=found.interval_high,
        pass_at_k=[asdict(entry) for entry in found.pass_at_k],
    )


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
    """Return how many trajectories are live and exist, and what they cost."""
    rows = Trajectory.objects.filter(run=run)
    # Three index-only scans; one over the rows themselves takes seven times as long for 100,000.
    sums = rows.filter(PAID).aggregate(cost=Sum("cost"), cached_tokens=Coalesce(Sum("cached_tokens"), 0))
    return LiveCounts(running=rows.filter(state=Trajectory.State.RUNNING).count(), total=rows.count(), **sums)
