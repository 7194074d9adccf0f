"""Queued runs start in their order, as many at once as a machine and a person may have."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User

from engine.types import RunState
from tests.builders.web_builders import launched, make_run
from webapp.models import Run
from webapp.runs.selectors.runs import condition_of
from webapp.runs.services import attempts, runs

pytestmark = pytest.mark.django_db


def queued(person: User | None = None, *, launcher: str = "local") -> Run:
    run = make_run(**{"launcher.backend": launcher})
    Run.objects.filter(pk=run.pk).update(created_by=person)
    runs.start(run=run)
    run.refresh_from_db()
    return run


def claimed(run: Run, host: str = "here") -> bool:
    """Return whether a run starts on a machine; its process is recorded then."""
    claim = attempts.claim_launch(run_id=run.pk, host=host)
    if claim is not None:
        attempts.record_process(run_id=run.pk, epoch=claim.epoch, host=host, handle="1:1", run_dir="")
    run.refresh_from_db()
    return claim is not None


def ended(run: Run) -> None:
    attempts.give_up(run_id=run.pk, epoch=run.epoch, to=RunState.FAILED, reason="test")


def test_a_machine_runs_as_many_as_it_may_and_the_next_in_order(settings: Any) -> None:
    settings.TRAINYARD_RUNS_AT_ONCE = 2
    first, second, third, fourth = (queued() for _ in range(4))
    assert [claimed(run) for run in (first, third, fourth, second)] == [True, False, False, True]
    assert (
        condition_of(third) == "Waits for a run of this machine to end: 2 may run at once; 1 queued before it"
    )
    assert claimed(third, host="another machine"), "it has places"
    ended(first)
    assert claimed(fourth)
    assert condition_of(fourth) == ""


def test_runs_of_a_cluster_wait_there(settings: Any) -> None:
    settings.TRAINYARD_RUNS_AT_ONCE = 2
    launched()
    assert claimed(queued(launcher="ray"))
    assert [claimed(queued()) for _ in range(2)] == [True, False]


def test_people_at_their_limit_hold_nobody_up(settings: Any) -> None:
    settings.TRAINYARD_RUNS_AT_ONCE, settings.TRAINYARD_RUNS_PER_PERSON = 2, 1
    ada, alan = (User.objects.create_user(name) for name in ("ada", "alan"))
    runs_of_ada = [queued(ada) for _ in range(3)]
    other = queued(alan)
    assert [claimed(run) for run in (*runs_of_ada, other)] == [True, False, False, True]


def test_a_run_that_no_longer_waits_says_so(settings: Any) -> None:
    settings.TRAINYARD_RUNS_AT_ONCE = 1
    launched()
    waiting = queued()
    assert not claimed(waiting)
    assert waiting.progress_message
    runs.stop(run=waiting)
    waiting.refresh_from_db()
    assert (waiting.state, waiting.progress_message) == ("stopped", "")


def test_a_person_has_a_limit_over_all_machines(settings: Any) -> None:
    settings.TRAINYARD_RUNS_PER_PERSON = 1
    ada, alan = (User.objects.create_user(name) for name in ("ada", "alan"))
    first, second, other = queued(ada), queued(ada), queued(alan)
    assert not claimed(second), "the first one is before it"
    assert "Waits for an earlier run of the same person to end: 1 may run at once" in condition_of(second)
    assert [claimed(run) for run in (first, second, other)] == [True, False, True]
    ended(first)
    assert claimed(second)
