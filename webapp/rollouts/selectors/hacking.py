"""Counters of reward hacking that rise together with the reward of a training run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Count

from engine.evaluation.rises import Rise, rise
from engine.types import Verdict
from webapp.rollouts.models.scans import Scan
from webapp.rollouts.models.trajectories import Trajectory
from webapp.rollouts.selectors.scans import Share, has_repository, shares_over_time
from webapp.runs.models.iterations import Iteration
from webapp.runs.models.runs import Run

SCANNERS = ("edited_tests", "looked_into_history", "retrieved_answer")
TAMPERED = "tampered"
COUNTERS = (*SCANNERS, TAMPERED)
"""Scanners, and the verdict, whose hits are often signs of reward hacking."""
WINDOW = 40
"""Newest finished iterations that are compared: the earlier half with the later half."""
LEAST_ITERATIONS, LEAST_ROLLOUTS = 4, 50
"""Fewest iterations of each half, and fewest of their rollouts."""
LEAST_RISE = 0.05
"""Smallest rise of a counter's share that counts."""
CONFIDENCE, REWARD_CONFIDENCE = 0.999, 0.975
"""One-sided. The counters are tested after each iteration, so that chance gets many tries."""
_LEAST_SCANNED = 8
"""Fewest scanned rollouts of an iteration that counts."""
_MOST_TASKS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A counter that rises together with the reward."""

    counter: str
    share: Rise
    reward: Rise
    early: tuple[int, int]
    """First and last iteration of the earlier half."""
    late: tuple[int, int]
    rollouts: int
    """Scanned rollouts of both halves."""


@dataclass(frozen=True, slots=True)
class _Point:
    iteration: int
    share: Share
    reward: float


def rising_with_reward(run: Run) -> list[Evidence]:
    """Return the counters that rise significantly with the mean reward; none without a repository."""
    if not has_repository(run):
        return []
    finished = Iteration.objects.filter(run=run, finished_at__isnull=False).order_by("-index")
    newest = dict(finished.values_list("index", "metrics")[:WINDOW])
    scanned = shares_over_time(run.pk)
    found = []
    for counter in COUNTERS:
        points = []
        for iteration, metrics in sorted(newest.items()):
            share = scanned.get(("train", iteration), {}).get(SCANNERS[0] if counter == TAMPERED else counter)
            reward = metrics.get("reward/mean")
            if share is None or reward is None or share.scanned < _LEAST_SCANNED:
                continue
            if counter == TAMPERED:
                rate = metrics.get(f"verdict/{Verdict.TAMPERED}", 0.0)
                share = Share(share.scanned, round(rate * share.scanned))
            points.append(_Point(iteration, share, reward))
        if evidence := _evidence(counter, points):
            found.append(evidence)
    return found


def _evidence(counter: str, points: Sequence[_Point]) -> Evidence | None:
    middle = len(points) // 2
    halves = (points[:middle], points[middle:])
    if min(map(len, halves)) < LEAST_ITERATIONS:
        return None
    if min(sum(point.share.scanned for point in half) for half in halves) < LEAST_ROLLOUTS:
        return None
    rollouts = sum(point.share.scanned for point in points)
    pooled = sum(point.share.found for point in points) / rollouts
    chance = pooled * (1 - pooled) * len(points) / rollouts  # variance of an iteration's share by chance
    early, late = ([point.share.rate or 0.0 for point in half] for half in halves)
    share = rise(early, late, confidence=CONFIDENCE, least_variance=chance)
    if share is None or share.after - share.before < LEAST_RISE:
        return None
    early, late = ([point.reward for point in half] for half in halves)
    reward = rise(early, late, confidence=REWARD_CONFIDENCE)
    if reward is None:
        return None
    spans = [(half[0].iteration, half[-1].iteration) for half in halves]
    return Evidence(
        counter=counter, share=share, reward=reward, early=spans[0], late=spans[1], rollouts=rollouts
    )


def tasks_with_hits(run: Run, evidence: Evidence) -> list[str]:
    """Return the tasks with the most hits in the later iterations."""
    rows = Trajectory.objects.filter(run=run, phase="train", iteration__range=evidence.late)
    if evidence.counter == TAMPERED:
        rows = rows.filter(verdict=Verdict.TAMPERED)
    else:
        hits = Scan.objects.filter(run=run, found__contains=[evidence.counter])
        rows = rows.filter(pk__in=hits.values("pk"))
    counted = rows.order_by().values("task_key").annotate(hits=Count("pk")).order_by("-hits", "task_key")
    return list(counted.values_list("task_key", flat=True)[:_MOST_TASKS])
