"""Labels and comments on trajectories, and acknowledgement of alerts."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from engine.errors import TrainyardError
from webapp.core.services import audit, notifications
from webapp.rollouts.models.annotations import Annotation
from webapp.rollouts.models.trajectories import Trajectory
from webapp.runs.models.alerts import Alert

MOST_CHARS = {Annotation.Kind.LABEL: 100, Annotation.Kind.COMMENT: 10_000}
"""Longest text by kind."""
MOST = 200
"""Maximum number of labels and comments of one trajectory."""


class AnnotationError(TrainyardError):
    """The kind, text or step is not valid, or the trajectory has too many annotations."""


@transaction.atomic
def add(
    *,
    trajectory: Trajectory,
    kind: str,
    text: str,
    author: User | None = None,
    step_index: int | None = None,
) -> Annotation:
    """Add a label or a comment to a trajectory or one of its steps; an existing equal label is returned.

    Args:
        trajectory: the trajectory.
        kind: ``label`` or ``comment``.
        text: the text; white space in labels is collapsed.
        author: its author; None for a command.
        step_index: the step; None for the whole trajectory.

    Raises:
        AnnotationError: see the class; nothing was stored.
    """
    if kind not in MOST_CHARS:
        raise AnnotationError(f"kind: expected label or comment, not {kind[:80]!r}")
    longest = MOST_CHARS[Annotation.Kind(kind)]
    text = " ".join(text.split()) if kind == Annotation.Kind.LABEL else text.strip()
    if not 0 < len(text) <= longest or "\0" in text:
        raise AnnotationError(f"a {kind} has 1 to {longest:,} characters, this one has {len(text):,}")
    if step_index is not None and not 0 <= step_index < trajectory.num_steps:
        raise AnnotationError(
            f"trajectory {trajectory.pk} has no step {step_index}: it has {trajectory.num_steps} steps"
        )
    Trajectory.objects.select_for_update().only("pk").get(pk=trajectory.pk)  # one writer at a time
    known = Annotation.objects.filter(trajectory=trajectory)
    if kind == Annotation.Kind.LABEL and (
        same := known.filter(kind=kind, text=text, step_index=step_index).first()
    ):
        return same
    if known.count() >= MOST:
        raise AnnotationError(f"trajectory {trajectory.pk} has {MOST} labels and comments: remove some first")
    annotation = Annotation.objects.create(
        trajectory=trajectory, kind=kind, text=text, author=author, step_index=step_index
    )
    _record(annotation, "annotation.add", author)
    return annotation


@transaction.atomic
def remove(*, annotation: Annotation, actor: User | None = None) -> None:
    """Delete a label or comment."""
    _record(annotation, "annotation.remove", actor)
    annotation.delete()


def _record(annotation: Annotation, action: str, actor: User | None) -> None:
    row, run = annotation.trajectory, annotation.trajectory.run
    step = {} if annotation.step_index is None else {"step": annotation.step_index}
    audit.record(
        actor=actor, action=action, run_id=run.pk, target=f"trajectory {annotation.trajectory_id}",
        changes={annotation.kind: annotation.text, **step},
    )  # fmt: skip
    named = [row.phase, row.iteration, row.task_key, row.index]
    changes = {"after": run.last_seq, "areas": ["labels"], "groups": [], "rollouts": [named]}
    notifications.run_changed(run.pk, run.last_seq, changes)


@transaction.atomic
def acknowledge(*, alert: Alert, actor: User | None = None) -> None:
    """Acknowledge an alert and earlier ones with its run and code; earlier acknowledgements are kept."""
    alike = Alert.objects.filter(run=alert.run_id, code=alert.code, time__lte=alert.time)
    open_alerts = alike.filter(acknowledged_at=None)
    if open_alerts.update(acknowledged_at=timezone.now(), acknowledged_by=actor):
        audit.record_change(
            actor=actor,
            action="alert.acknowledge",
            run=alert.run,
            changes={"alert": alert.pk, "code": alert.code},
        )
