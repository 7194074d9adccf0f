"""Forms that add and remove labels and comments of a trajectory."""

from __future__ import annotations

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponseRedirect
from django.shortcuts import redirect
from django.views.decorators.http import require_POST

from webapp.accounts.gate import operator
from webapp.core.contexts.frame import trajectory_url
from webapp.core.contexts.numbers import whole
from webapp.core.pages import posted_of
from webapp.core.permissions import Person, check_author
from webapp.rollouts.models.trajectories import Trajectory
from webapp.rollouts.selectors import annotations as reads
from webapp.rollouts.services import annotations as writes
from webapp.rollouts.views.trajectories import readable_trajectory


@operator
@require_POST
def annotation_add(request: HttpRequest, person: Person, trajectory_id: int) -> HttpResponseRedirect:
    """Add a label or comment to a trajectory or, with ``step``, to one of its steps."""
    trajectory = readable_trajectory(person, trajectory_id)
    posted = posted_of(request)
    step = posted.get("step", "").strip()
    try:
        index = whole(step)
        if step and index is None:
            raise writes.AnnotationError(f"step: expected a number, not {step[:20]!r}")
        writes.add(
            trajectory=trajectory,
            kind=posted.get("kind", ""),
            text=posted.get("text", ""),
            author=person.user,
            step_index=index,
        )
    except writes.AnnotationError as error:
        messages.error(request, f"Nothing was added: {error}")
        index = None
    return _back(trajectory, index)


@operator
@require_POST
def annotation_remove(
    request: HttpRequest,  # noqa: ARG001 (the gate's signature)
    person: Person,
    trajectory_id: int,
    annotation_id: int,
) -> HttpResponseRedirect:
    """Remove a label or comment."""
    annotation = reads.get_annotation(trajectory_id, annotation_id)
    if annotation is None:
        raise Http404("There is no such label or comment.")
    check_author(annotation.author_id, person.role, person.user.pk)
    writes.remove(annotation=annotation, actor=person.user)
    return _back(annotation.trajectory, annotation.step_index)


def _back(trajectory: Trajectory, index: int | None) -> HttpResponseRedirect:
    """Redirect to the step, or to the list of labels and comments."""
    page = trajectory_url(
        trajectory.run_id, trajectory.phase, trajectory.iteration, trajectory.task_key, trajectory.index
    )
    return redirect(f"{page}#annotations" if index is None else f"{page}?from={index}#step-{index}")
