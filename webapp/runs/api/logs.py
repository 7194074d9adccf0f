"""Logs of runs."""

from __future__ import annotations

from django.http import HttpRequest
from ninja import Router, Schema

from webapp.api.auth import operator
from webapp.runs.api.runs import find
from webapp.runs.selectors.logs import TAIL_BYTES, LogTail, log_tail

router = Router(tags=["runs"])
MOST_BYTES = 1 << 20


class LogOut(Schema):
    """The end of a run's log."""

    text: str
    size: int
    """Size of the whole log, bytes."""
    shortened: bool


@router.get("/runs/{int:run_id}/log", auth=operator, response=LogOut)
def get_log(request: HttpRequest, run_id: int, most: int = TAIL_BYTES) -> LogTail:
    """Return the last ``most`` bytes of a run's log, at most 1 MiB."""
    return log_tail(find(run_id).pk, most=max(1, min(most, MOST_BYTES)))
