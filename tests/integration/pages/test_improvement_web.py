"""Self-improvement runs: resumed attempts and planned iterations."""

from __future__ import annotations

import pytest

from tests.builders.web.event_builders import Stream, ref
from tests.builders.web.page_builders import make_dataset
from tests.builders.web.web_builders import launched, post
from webapp.models import Alert, Evaluation, Iteration, Trajectory
from webapp.runs.services import attempts, runs

pytestmark = pytest.mark.django_db


def test_resumed_attempt_keeps_rounds_evaluations_and_finished_rollouts() -> None:
    make_dataset()
    run, claim = launched(runs.create(recipe="quickstart-improve"))
    stream = Stream()
    stream.started(total=3)
    stream.evaluation(0)
    stream.iteration(0)
    stream.checkpoint(1)
    stream.evaluation(1)
    for number in (0, 1):
        stream.add("alert", severity="warning", code=f"of-{number}", message="m", iteration=number)
    stream.trajectory(ref(1, "a", 0))
    stream.trajectory(ref(1, "a", 1), finish=False)
    post(claim, stream)
    before = Trajectory.objects.filter(run=run, state=Trajectory.State.FINISHED).count()
    newer = attempts.claim_relaunch(run_id=run.pk, epoch=claim.epoch, reason="killed")
    assert newer is not None
    second = Stream(epoch=newer.epoch, first_seq=stream.next_seq)
    second.add("run_started", host="h", pid=2, resumed_from=1, rollouts_kept=before, total_iterations=3)
    post(newer, second)
    assert Trajectory.objects.filter(run=run).count() == before
    assert [row.index for row in Iteration.objects.filter(run=run)] == [0]
    assert [alert.code for alert in Alert.objects.filter(run=run, seq__isnull=False)] == ["of-0"]
    assert sorted(Evaluation.objects.filter(run=run).values_list("iteration", flat=True)) == [0, 1]
    run.refresh_from_db()
    assert (run.current_iteration, run.total_iterations) == (0, 3)


def test_number_of_iterations_may_be_reported_after_the_start() -> None:
    make_dataset()
    run, claim = launched()
    stream = Stream()
    stream.started(total=0)
    stream.add("run_planned", total_iterations=12)
    post(claim, stream)
    run.refresh_from_db()
    assert run.total_iterations == 12
