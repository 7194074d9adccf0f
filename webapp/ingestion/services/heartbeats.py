"""Heartbeats of attempts, answered with the desired state of the run."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils import timezone

from webapp.ingestion.services import ingest
from webapp.runs.models.runs import Run
from webapp.runs.services import states


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to a heartbeat."""

    desired: str
    epoch: int
    acked_seq: int


def beat(*, run_id: int, token: str, epoch: int, seq: int = 0) -> Answer:
    """Record that attempt ``epoch`` is alive and has written events up to ``seq``.

    Raises:
        BadTokenError: the token is not of this run.
        StaleEpochError: a newer attempt exists.
        RunOverError: the run has ended.
    """
    run = ingest.authenticate(run_id=run_id, token=token)
    if epoch != run.epoch:
        raise ingest.StaleEpochError(run.epoch)
    Run.objects.filter(pk=run_id, epoch=epoch).update(heartbeat_at=timezone.now(), engine_seq=seq)
    stopping = run.state == states.S.STOPPING
    return Answer("stop" if stopping else run.desired, run.epoch, run.last_seq)
