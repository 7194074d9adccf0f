"""Labels and comments on trajectories, and acknowledgement of alerts."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from engine.errors import TrainyardError
from webapp.core.services import audit
from webapp.rollouts.models.annotations import Annotation
from webapp.rollouts.models.trajectories import Trajectory
from webapp.runs.models.alerts import Alert


class AnnotationError(TrainyardError):
    """The text is empty or too long."""


@transaction.atomic
def label(*, trajectory: Trajectory, text: str, author: User) -> Annotation:
    """Add a label to a trajectory unless it exists. Raises AnnotationError."""
    text = " ".join(text.split())
    if not 0 < len(text) <= 100:
        raise AnnotationError("a label has 1 to 100 characters")
    annotation, _ = Annotation.objects.get_or_create(
        trajectory=trajectory, kind="label", text=text, step_index=None, defaults={"author": author}
    )
    return annotation


@transaction.atomic
def comment(*, trajectory: Trajectory, text: str, author: User, step_index: int | None = None) -> Annotation:
    """Comment on a trajectory or one of its steps. Raises AnnotationError."""
    if not 0 < len(text.strip()) <= 10_000:
        raise AnnotationError("a comment has 1 to 10,000 characters")
    return Annotation.objects.create(
        trajectory=trajectory, kind="comment", text=text.strip(), author=author, step_index=step_index
    )


@transaction.atomic
def remove(*, annotation: Annotation, actor: User) -> None:
    """Delete a label or comment."""
    audit.record(
        actor=actor, action="annotation.remove", run_id=annotation.trajectory.run_id,
        target=f"trajectory {annotation.trajectory_id}", changes={annotation.kind: annotation.text},
    )  # fmt: skip
    annotation.delete()


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
