"""Run state machine: transitions between all pairs of states, timeouts, and cleanup at the end."""

from __future__ import annotations

import itertools

import pytest
from django.utils import timezone

from engine.types import RunState
from tests.builders.web.event_builders import Stream, ref
from tests.builders.web.web_builders import launched, make_run, post
from webapp.models import Run, RunAttempt, Trajectory
from webapp.runs.services import states
from webapp.runs.services.states import TRANSITIONS, IllegalTransitionError

pytestmark = pytest.mark.django_db
EXPECTED = {
    ("draft", "queued"), ("draft", "stopped"),
    ("queued", "starting"), ("queued", "stopped"), ("queued", "failed"),
    ("starting", "starting"), ("starting", "running"), ("starting", "stopping"),
    ("starting", "succeeded"), ("starting", "failed"), ("starting", "stopped"),
    ("running", "starting"), ("running", "paused"), ("running", "stopping"),
    ("running", "succeeded"), ("running", "failed"), ("running", "stopped"),
    ("paused", "starting"), ("paused", "running"), ("paused", "stopping"),
    ("paused", "succeeded"), ("paused", "failed"), ("paused", "stopped"),
    ("stopping", "succeeded"), ("stopping", "failed"), ("stopping", "stopped"),
    ("failed", "queued"), ("stopped", "queued"), ("succeeded", "queued"),
}  # fmt: skip


def test_exactly_the_expected_state_transitions_are_allowed() -> None:
    run = make_run()
    moved = set()
    for source, target in itertools.product(RunState, RunState):
        Run.objects.filter(pk=run.pk).update(state=source.value)
        before = source.value
        if states.move(run_id=run.pk, to=target):
            moved.add((source.value, target.value))
            before = target.value
        else:
            with pytest.raises(IllegalTransitionError, match=f"is {source.value}"):
                states.require(run_id=run.pk, to=target)
        run.refresh_from_db()
        assert run.state == before
    assert moved == EXPECTED


def test_every_unfinished_state_times_out_to_a_terminal_state() -> None:
    assert set(states.TIMEOUTS) == set(RunState) - states.TERMINAL
    for state, timeout in states.TIMEOUTS.items():
        assert timeout.to in TRANSITIONS[state] & states.TERMINAL


def test_only_one_of_two_claims_wins() -> None:
    run = make_run()
    assert states.move(run_id=run.pk, to=RunState.QUEUED)
    assert states.move(run_id=run.pk, to=RunState.STARTING, only_from=RunState.QUEUED)
    assert not states.move(run_id=run.pk, to=RunState.STARTING, only_from=RunState.QUEUED)


def test_first_running_time_is_kept_over_a_pause() -> None:
    run, _ = launched()
    states.move(run_id=run.pk, to=RunState.RUNNING)
    run.refresh_from_db()
    first = run.running_at
    assert first is not None
    assert first <= timezone.now()
    states.move(run_id=run.pk, to=RunState.PAUSED)
    states.move(run_id=run.pk, to=RunState.RUNNING)
    run.refresh_from_db()
    assert run.running_at == first
    assert run.paused_at is not None


def test_end_of_a_run_finishes_its_trajectories_and_attempts() -> None:
    run, claim = launched()
    stream = Stream()
    stream.started()
    stream.trajectory(ref(0, "a", 0), finish=False)
    post(claim, stream)
    assert states.move(run_id=run.pk, to=RunState.FAILED, reason="x")
    trajectory = Trajectory.objects.get(run=run)
    assert (trajectory.state, trajectory.termination, trajectory.reward) == ("finished", "cancelled", None)
    assert not RunAttempt.objects.filter(run=run, ended_at=None).exists()
