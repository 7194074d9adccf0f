"""Labels and comments on trajectories and their steps."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from django.http import HttpRequest
from ninja import Router, Schema
from ninja.errors import HttpError

from webapp.api.auth import caller, operator, role_of_caller, viewer
from webapp.core.permissions import check_author
from webapp.rollouts.api.trajectories import AnnotationOut, readable
from webapp.rollouts.models.annotations import Annotation
from webapp.rollouts.selectors import annotations as reads
from webapp.rollouts.services import annotations as writes

router = Router(tags=["annotations"])


class AnnotationIn(Schema):
    """A new label or comment."""

    kind: Literal["label", "comment"]
    text: str
    """A label has at most 100 characters, a comment 10,000."""
    step: int | None = None
    """Index of the step; null for the whole trajectory."""


class AddedOut(AnnotationOut):
    """A stored label or comment."""

    created_at: datetime


@router.get("/trajectories/{int:trajectory_id}/annotations", auth=viewer, response=list[AddedOut])
def list_annotations(request: HttpRequest, trajectory_id: int) -> list[Annotation]:
    """List the labels and comments of a trajectory, oldest first."""
    return reads.annotations_of(readable(request, trajectory_id).pk)


@router.post("/trajectories/{int:trajectory_id}/annotations", auth=operator, response={201: AddedOut})
def add_annotation(request: HttpRequest, trajectory_id: int, body: AnnotationIn) -> tuple[int, Any]:
    """Add a label or a comment; an equal label is not added twice."""
    trajectory = readable(request, trajectory_id)
    try:
        annotation = writes.add(
            trajectory=trajectory,
            kind=body.kind,
            text=body.text,
            author=caller(request),
            step_index=body.step,
        )
    except writes.AnnotationError as error:
        raise HttpError(422, str(error)) from None
    return 201, annotation


@router.delete(
    "/trajectories/{int:trajectory_id}/annotations/{int:annotation_id}", auth=operator, response={204: None}
)
def remove_annotation(request: HttpRequest, trajectory_id: int, annotation_id: int) -> tuple[int, None]:
    """Remove a label or comment: one's own, or as administrator any."""
    annotation = reads.get_annotation(trajectory_id, annotation_id)
    if annotation is None:
        raise HttpError(404, f"trajectory {trajectory_id} has no label or comment {annotation_id}")
    user = caller(request)
    check_author(annotation.author_id, role_of_caller(request), user.pk)
    writes.remove(annotation=annotation, actor=user)
    return 204, None
