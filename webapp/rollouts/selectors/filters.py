"""Filters of a search over trajectories: one class for the page, the API, the command and saved searches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from django.db.models import QuerySet
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from webapp.rollouts.models.trajectories import Trajectory
from webapp.rollouts.selectors.annotations import labelled
from webapp.rollouts.selectors.regrades import has_flipped
from webapp.rollouts.selectors.scans import has_hit

MOST_CHARS = 200
"""Maximum length of a text."""
Text = Annotated[str, StringConstraints(strip_whitespace=True, max_length=MOST_CHARS, pattern=r"^[^\x00]*$")]
"""PostgreSQL stores no NUL."""
_MOST, _MOST_ID = 2**31 - 1, 2**63 - 1
"""Largest values of the database's columns."""
Reward = Annotated[float, Field(ge=-1e12, le=1e12)]


class TrajectoryFilters(BaseModel):
    """Filters of a search; empty means everything."""

    model_config = ConfigDict(frozen=True)

    q: Text = ""
    """Words: ``"a phrase"``, ``or``, ``-without``."""
    place: Literal["", "thoughts", "actions", "observations", "patches", "statements"] = ""
    """Texts to search; empty for all."""
    run: Annotated[int, Field(ge=0, le=_MOST_ID)] | None = None
    task: Text = ""
    """A task's key, or a part of its readable name."""
    verdict: Text = ""
    termination: Text = ""
    """A termination reason, or ``running``."""
    phase: Text = ""
    """Beginning of the phase."""
    finding: Text = ""
    """A kind of sign of tampering, or ``any``."""
    flip: Text = ""
    """A kind of flip by any regrading, such as ``passed_failed``, or ``any``."""
    label: Text = ""
    """A label of the trajectory or one of its steps."""
    scanner: Text = ""
    """A scanner with a hit."""
    reward_min: Reward | None = None
    reward_max: Reward | None = None
    steps_min: Annotated[int, Field(ge=0, le=_MOST)] | None = None

    def chosen(self) -> dict[str, Any]:
        """Return the filters that are not empty."""
        return self.model_dump(exclude_defaults=True)


def parse_filters(params: Mapping[str, Any]) -> tuple[TrajectoryFilters, tuple[str, ...]]:
    """Return filters, and a sentence for each value that is not valid and ignored; empty texts are none."""
    fields = TrajectoryFilters.model_fields
    given = {name: value for name, value in params.items() if value != "" and name in fields}
    try:
        return TrajectoryFilters.model_validate(given), ()
    except ValidationError as error:
        problems = {str(problem["loc"][0]): problem["msg"] for problem in error.errors()}
    valid = {name: value for name, value in given.items() if name not in problems}
    return TrajectoryFilters.model_validate(valid), tuple(
        f"{name}: {message}, not {str(given[name])[:80]!r}" for name, message in problems.items()
    )


def narrowed(filters: TrajectoryFilters) -> QuerySet[Trajectory]:
    """Return the trajectories that pass every filter but the words."""
    rows = Trajectory.objects.all()
    if filters.run is not None:
        rows = rows.filter(run_id=filters.run)
    if filters.task:
        by_key = rows.filter(task_key=filters.task)
        rows = by_key if by_key.exists() else rows.filter(task__instance_id__icontains=filters.task)
    if filters.verdict:
        rows = rows.filter(verdict=filters.verdict)
    if filters.termination == "running":
        rows = rows.filter(state=Trajectory.State.RUNNING)
    elif filters.termination:
        rows = rows.filter(termination=filters.termination)
    if filters.phase:
        rows = rows.filter(phase__startswith=filters.phase)
    if filters.finding == "any":
        rows = rows.exclude(findings=[])
    elif filters.finding:
        rows = rows.filter(findings__contains=[{"kind": filters.finding}])
    if filters.flip:
        rows = rows.filter(has_flipped(filters.flip))
    if filters.label:
        rows = rows.filter(pk__in=labelled(filters.label))
    if filters.scanner:
        rows = rows.filter(has_hit(filters.scanner))
    if filters.reward_min is not None:
        rows = rows.filter(reward__gte=filters.reward_min)
    if filters.reward_max is not None:
        rows = rows.filter(reward__lte=filters.reward_max)
    if filters.steps_min is not None:
        rows = rows.filter(num_steps__gte=filters.steps_min)
    return rows
