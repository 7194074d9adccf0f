"""Time strips of a run's iterations."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Router, Schema

from engine.events.schedule import Timeline
from webapp.api.auth import viewer
from webapp.runs.api.runs import find
from webapp.runs.selectors import timelines as reads

router = Router(tags=["runs"])


class TimelineOut(Schema):
    """Timeline of one finished iteration; times are seconds since its start."""

    index: int
    started_at: datetime
    finished_at: datetime
    timeline: Timeline


class TimelinePage(Schema):
    """One page of timelines, newest iteration first, and their total number."""

    total: int
    items: list[TimelineOut]


@router.get("/runs/{int:run_id}/timeline", auth=viewer, response=TimelinePage)
def get_timeline(request: HttpRequest, run_id: int, page: int = 1, size: int = 10) -> dict[str, Any]:
    """List the busy times of engines and trainer in each iteration, and the waits of its rollouts."""
    timelines = reads.list_timelines(find(run_id).pk, number=page, size=size)
    return {"total": timelines.total, "items": list(timelines.rows)}
