"""Admission of queued runs: limited numbers at once on a machine and of a person, first come first served."""

from __future__ import annotations

from collections import Counter

from django.conf import settings
from django.db import connection
from django.db.models import F

from engine.types import RunState
from webapp.runs.models.runs import Run, RunAttempt
from webapp.runs.services import states

_LOCK = 1_414_677_849
"""Number of the lock under which admissions are decided one by one."""


def why_waiting(*, run: Run, host: str) -> str:
    """Return what a queued run waits for, in words; empty if it may start now.

    Call it in the transaction that starts the run: other admissions wait for its end.

    Args:
        run: the queued run.
        host: the machine on which a local run would start. Ray clusters queue their jobs themselves.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
    per_person, per_machine = settings.TRAINYARD_RUNS_PER_PERSON, settings.TRAINYARD_RUNS_AT_ONCE
    live = Run.objects.filter(state__in=states.LIVE)
    taken = Counter(live.values_list("created_by", flat=True))
    ahead = Run.objects.filter(state=RunState.QUEUED, queued_at__lt=run.queued_at).order_by("queued_at")
    earlier = 0
    for person, backend in ahead.values_list("created_by", "config__launcher__backend"):
        if per_person and person is not None and taken[person] >= per_person:
            continue  # it waits for its own person's runs
        taken[person] += 1
        earlier += backend != "ray"
    if per_person and run.created_by_id is not None and taken[run.created_by_id] >= per_person:
        return f"Waits for an earlier run of the same person to end: {per_person} may run at once"
    if run.launcher_backend == "local":
        here = RunAttempt.objects.filter(
            run__state__in=states.LIVE, epoch=F("run__epoch"), launcher="local", host__in=("", host)
        )
        if here.count() + earlier >= per_machine:
            others = f"; {earlier} queued before it" if earlier else ""
            return f"Waits for a run of this machine to end: {per_machine} may run at once{others}"
    return ""
