"""Run queue: start order, and limits per machine and per user."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User

from engine.types import RunState
from tests.builders.web.web_builders import launched, make_run
from webapp.models import Run
from webapp.runs.selectors.runs import condition_of
from webapp.runs.services import attempts, runs

pytestmark = pytest.mark.django_db


def queue_run(person: User | None = None, *, launcher: str = "local") -> Run:
    run = make_run(**{"launcher.backend": launcher})
    Run.objects.filter(pk=run.pk).update(created_by=person)
    runs.start(run=run)
    run.refresh_from_db()
    return run


def try_to_start(run: Run, host: str = "here") -> bool:
    """Try to start a run on a machine; record its process and return whether it starts."""
    claim = attempts.claim_launch(run_id=run.pk, host=host)
    if claim is not None:
        attempts.record_process(run_id=run.pk, epoch=claim.epoch, host=host, handle="1:1", run_dir="")
    run.refresh_from_db()
    return claim is not None


def fail_run(run: Run) -> None:
    attempts.give_up(run_id=run.pk, epoch=run.epoch, to=RunState.FAILED, reason="test")


def test_machine_starts_runs_in_order_up_to_its_limit(settings: Any) -> None:
    settings.TRAINYARD_RUNS_AT_ONCE = 2
    first, second, third, fourth = (queue_run() for _ in range(4))
    assert [try_to_start(run) for run in (first, third, fourth, second)] == [True, False, False, True]
    assert (
        condition_of(third) == "Waits for a run of this machine to end: 2 may run at once; 1 queued before it"
    )
    assert try_to_start(third, host="another machine"), "it has places"
    fail_run(first)
    assert try_to_start(fourth)
    assert condition_of(fourth) == ""


def test_cluster_runs_do_not_count_towards_the_limit_of_a_machine(settings: Any) -> None:
    settings.TRAINYARD_RUNS_AT_ONCE = 2
    launched()
    assert try_to_start(queue_run(launcher="ray"))
    assert [try_to_start(queue_run()) for _ in range(2)] == [True, False]


def test_users_at_their_limit_do_not_delay_other_users(settings: Any) -> None:
    settings.TRAINYARD_RUNS_AT_ONCE, settings.TRAINYARD_RUNS_PER_PERSON = 2, 1
    ada, alan = (User.objects.create_user(name) for name in ("ada", "alan"))
    runs_of_ada = [queue_run(ada) for _ in range(3)]
    other = queue_run(alan)
    assert [try_to_start(run) for run in (*runs_of_ada, other)] == [True, False, False, True]


def test_stopped_run_clears_its_waiting_message(settings: Any) -> None:
    settings.TRAINYARD_RUNS_AT_ONCE = 1
    launched()
    waiting = queue_run()
    assert not try_to_start(waiting)
    assert waiting.progress_message
    runs.stop(run=waiting)
    waiting.refresh_from_db()
    assert (waiting.state, waiting.progress_message) == ("stopped", "")


def test_user_limit_queues_later_runs_of_the_same_user(settings: Any) -> None:
    settings.TRAINYARD_RUNS_PER_PERSON = 1
    ada, alan = (User.objects.create_user(name) for name in ("ada", "alan"))
    first, second, other = queue_run(ada), queue_run(ada), queue_run(alan)
    assert not try_to_start(second), "the first one is before it"
    assert "Waits for an earlier run of the same person to end: 1 may run at once" in condition_of(second)
    assert [try_to_start(run) for run in (first, second, other)] == [True, False, True]
    fail_run(first)
    assert try_to_start(second)
