"""Reads of labels and comments."""

from __future__ import annotations

from collections.abc import Sequence

from django.db.models import Count, Prefetch, QuerySet

from webapp.rollouts.models.annotations import Annotation
from webapp.rollouts.models.trajectories import Trajectory
from webapp.runs.models.runs import Run

MOST_LABELS = 100
"""Maximum number of labels that a form offers."""
_NEWEST = 5_000
"""Newest labels that are counted."""
_LABELS = Annotation.objects.filter(kind=Annotation.Kind.LABEL)


def annotations_of(trajectory_id: int) -> list[Annotation]:
    """Return the labels and comments of a trajectory, oldest first."""
    rows = Annotation.objects.filter(trajectory_id=trajectory_id)
    return list(rows.select_related("author").order_by("pk"))


def get_annotation(trajectory_id: int, annotation_id: int) -> Annotation | None:
    """Return one label or comment of a trajectory."""
    rows = Annotation.objects.select_related("trajectory__run")
    return rows.filter(trajectory_id=trajectory_id, pk=annotation_id).first()


def common_labels(*, with_answers: bool) -> list[str]:
    """Return the most frequent of the newest labels; without access to answers none of oracles' rollouts."""
    labels = _LABELS if with_answers else _LABELS.exclude(trajectory__run__in=Run.playing_answers())
    newest = labels.order_by("-pk").values("pk")[:_NEWEST]
    counted = Annotation.objects.filter(pk__in=newest).order_by().values("text").annotate(count=Count("pk"))
    return list(counted.order_by("-count", "text").values_list("text", flat=True)[:MOST_LABELS])


def with_labels(rows: QuerySet[Trajectory], *, hidden_runs: Sequence[int] = ()) -> QuerySet[Trajectory]:
    """Add the list ``labels``: labels of the trajectory and its steps, by one more query.

    Args:
        rows: trajectories.
        hidden_runs: runs whose labels are left out.
    """
    labels = _LABELS.exclude(trajectory__run__in=hidden_runs).order_by("pk")
    return rows.prefetch_related(Prefetch("annotations", queryset=labels, to_attr="labels"))


def labelled(text: str) -> QuerySet[Annotation, int]:
    """Return the labels with this text, as ids of their trajectories."""
    return _LABELS.filter(text=text).values_list("trajectory_id", flat=True)
