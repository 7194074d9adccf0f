"""Run queue: start order, and limits per machine and per user."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from engine.errors import ConfigError
from engine.types import RunState
from tests.builders.commands import command_result, run_command
from tests.builders.web.web_builders import launched, make_run
from webapp.experiments import services as experiments
from webapp.models import AuditEntry, Group, Run
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


def test_a_quota_of_a_user_replaces_the_general_limit(settings: Any) -> None:
    settings.TRAINYARD_RUNS_AT_ONCE, settings.TRAINYARD_RUNS_PER_PERSON = 9, 1
    ada, alan = (User.objects.create_user(name) for name in ("ada", "alan"))
    run_command("account", "quota", "ada", 2)
    run_command("account", "quota", "alan", 0)
    runs_of_ada, of_alan = [queue_run(ada) for _ in range(3)], queue_run(alan)
    assert [try_to_start(run) for run in (*runs_of_ada, of_alan)] == [True, True, False, False]
    assert condition_of(runs_of_ada[2]).endswith("of the same person to end: 2 may run at once")
    run_command("account", "quota", "alan")
    assert try_to_start(of_alan)
    assert AuditEntry.objects.filter(action="account.quota").count() == 3
    assert "10,000 runs" in command_result("account", "quota", "ada", 20_000).errors


def test_runs_wait_and_are_refused_while_the_budget_of_their_experiment_is_spent(settings: Any) -> None:
    settings.TRAINYARD_RUNS_AT_ONCE = 9
    experiment = experiments.create(name="costly", max_rollouts=10)
    spender, waiting, draft, stopped = queue_run(), queue_run(), make_run(), make_run()
    Run.objects.update(experiment=experiment)
    Run.objects.filter(pk=stopped.pk).update(state="stopped")
    Group.objects.create(
        run=spender, iteration=0, phase="train", task_key="a", size=10, started_at=timezone.now()
    )
    for run in (waiting, draft, stopped):
        run.refresh_from_db()
    assert not try_to_start(waiting)
    words = "the budget of experiment costly is spent: 10 of 10 rollouts"
    assert condition_of(waiting).startswith(f"Waits: {words}")
    with pytest.raises(ConfigError, match=words):
        runs.start(run=draft)
    with pytest.raises(ConfigError, match=words):
        runs.resume(run=stopped)
    run_command("experiment", "edit", "costly", "--max-rollouts", 11)
    for run in (draft, stopped):
        run.refresh_from_db()
    assert try_to_start(waiting)
    runs.start(run=draft)
    runs.resume(run=stopped)


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


def test_runs_that_wait_for_their_budget_delay_no_other_run(settings: Any) -> None:
    settings.TRAINYARD_RUNS_AT_ONCE, settings.TRAINYARD_RUNS_PER_PERSON = 1, 1
    experiment, ada = experiments.create(name="costly", max_rollouts=1), User.objects.create_user("ada")
    spender, waiting, behind = make_run(), queue_run(ada), queue_run(ada)
    Run.objects.filter(pk__in=(spender.pk, waiting.pk)).update(experiment=experiment)
    Group.objects.create(
        run=spender, iteration=0, phase="train", task_key="a", size=1, started_at=timezone.now()
    )
    waiting.refresh_from_db()
    assert [try_to_start(run) for run in (waiting, behind)] == [False, True]
