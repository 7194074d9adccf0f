"""Use of the machine by runs."""

from __future__ import annotations

from datetime import datetime

from django.http import HttpRequest
from ninja import Router, Schema

from webapp.api.auth import viewer
from webapp.runs.api.runs import find
from webapp.runs.contexts.system import SystemView, build_system
from webapp.runs.selectors.system import MOST_POINTS

router = Router(tags=["runs"])


class QuantityOut(Schema):
    """Points (Unix seconds, value) of each series of a quantity."""

    key: str
    title: str
    unit: str
    series: dict[str, list[tuple[float, float]]]


class SeriesRowOut(Schema):
    """Summary of one series."""

    title: str
    unit: str
    name: str
    newest: float
    mean: float
    highest: float


class SystemOut(Schema):
    """Use of the machine over all attempts of a run; null and 0 before the first report."""

    since: datetime | None
    until: datetime | None
    cores: int
    memory_total: float
    """Memory of the machine, GB."""
    quantities: list[QuantityOut]
    rows: list[SeriesRowOut]


@router.get("/runs/{int:run_id}/system", auth=viewer, response=SystemOut)
def get_system(request: HttpRequest, run_id: int, points: int = MOST_POINTS) -> SystemView:
    """Return processor, memory, disk, GPUs, sandboxes and engines over time, at most 600 points a series."""
    return build_system(find(run_id), points=points)
