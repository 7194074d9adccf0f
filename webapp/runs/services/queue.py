"""Admission of queued runs, first in first out, with a limit per machine and one per person."""

from __future__ import annotations

from collections import Counter

from django.conf import settings
from django.db import connection
from django.db.models import F

from engine.types import RunState
from webapp.accounts.selectors.quotas import run_quotas
from webapp.experiments.models import Experiment
from webapp.runs.models.runs import Run, RunAttempt
from webapp.runs.selectors.budgets import spent_budget
from webapp.runs.services import states

_LOCK = 1_414_677_849
"""Key of the advisory lock that serialises admissions."""


def why_waiting(*, run: Run, host: str) -> str:
    """Return the reason why a queued run must wait, in words; empty if it may start now.

    Call in the transaction that starts the run: its lock blocks other admissions until the end.

    Args:
        run: the queued run.
        host: the machine on which a local run would start. Ray clusters queue their jobs themselves.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
    if reason := spent_budget(run.experiment):
        return f"Waits: {reason}"
    per_machine, quotas = settings.TRAINYARD_RUNS_AT_ONCE, run_quotas()

    def full(person: int | None) -> bool:
        """Return whether a user has as many runs as they may; runs without a user have no such limit."""
        limit = quotas.get(person, settings.TRAINYARD_RUNS_PER_PERSON or None)
        return person is not None and limit is not None and taken[person] >= limit

    live = Run.objects.filter(state__in=states.LIVE)
    taken = Counter(live.values_list("created_by", flat=True))
    ahead = Run.objects.filter(state=RunState.QUEUED, queued_at__lt=run.queued_at).order_by("queued_at")
    limited = Experiment.objects.filter(max_rollouts__isnull=False, runs__in=ahead).distinct()
    # Runs that wait for their budget take no place: nobody may ever raise it.
    ahead = ahead.exclude(experiment__in=[limit.pk for limit in limited if spent_budget(limit)])
    earlier = 0
    for person, backend in ahead.values_list("created_by", "config__launcher__backend"):
        if full(person):
            continue  # waits for other runs of its person, so takes no place on the machine
        taken[person] += 1
        earlier += backend not in ("ray", "external")
    if full(run.created_by_id):
        limit = quotas.get(run.created_by_id, settings.TRAINYARD_RUNS_PER_PERSON)
        return f"Waits for an earlier run of the same person to end: {limit} may run at once"
    if run.launcher_backend == "local":
        attempts = RunAttempt.objects.filter(
            run__state__in=states.LIVE, epoch=F("run__epoch"), launcher="local", host__in=("", host)
        )
        if attempts.count() + earlier >= per_machine:
            queued = f"; {earlier} queued before it" if earlier else ""
            return f"Waits for a run of this machine to end: {per_machine} may run at once{queued}"
    return ""
