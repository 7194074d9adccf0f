"""Self-improvement on pages, through the API and the command: rounds, phases, curves, resuming."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import Client
from django.urls import reverse

from engine.types import RunState
from tests.builders.event_builders import Stream, ref
from tests.builders.page_builders import make_dataset
from tests.builders.web_builders import launched, make_user, post
from webapp.models import Alert, Evaluation, Iteration, Run, Trajectory
from webapp.permissions import Role
from webapp.selectors.run.iterations import first_and_last_evaluations
from webapp.services.run import attempts, runs

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator(client: Client) -> Client:
    client.force_login(make_user("olga", Role.OPERATOR))
    return client


def stats(client: Client, run: Run) -> str:
    """Return the text of the strip of numbers."""
    page = client.get(f"/runs/{run.pk}/").content.decode()
    (strip,) = re.findall(r'<dl class="stats">.*?</dl>', page, re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", strip).split())


def test_it_starts_from_the_api_and_by_command(operator: Client) -> None:
    make_dataset()
    overrides = {"improvement.rounds": 5, "improvement.start_from": "previous"}
    body = {"recipe": "quickstart-improve", "overrides": overrides, "start": True}
    answer = operator.post("/api/v1/runs", json.dumps(body), content_type="application/json")
    assert answer.status_code == 201, answer.content
    run = Run.objects.get()
    assert (run.kind, run.state) == ("improve", RunState.QUEUED)
    assert run.config["improvement"]["rounds"] == 5
    call_command("launch", "quickstart-improve", "--set", "improvement.per_task=1")
    other = Run.objects.latest("pk")
    assert (other.kind, other.state) == ("improve", RunState.QUEUED)
    assert other.config["improvement"]["per_task"] == 1


def test_pages_show_rounds_and_what_happens_within_one(operator: Client) -> None:
    make_dataset()
    run, claim = launched(runs.create(recipe="quickstart-improve"))
    stream = Stream()
    stream.started(total=3)
    stream.add("run_progress", message="evaluation", done=4, total=16)
    post(claim, stream)
    assert stats(operator, run).startswith("Rounds 0 of 3 evaluation 4/16")
    stream.evaluation(0)
    stream.trajectory(ref(0, "a", 0))
    stream.add("run_progress", message="fine-tuning", done=2, total=8)
    post(claim, stream)
    assert "fine-tuning 2/8" in stats(operator, run)
    metrics = {"kept/trajectories": 7.0, "kept/tasks": 3.0, "solve/rate": 0.5}
    stream.add("iteration_started", iteration=0, policy_version=0, task_ids=["a"])
    stream.add("iteration_finished", iteration=0, policy_version=1, metrics=metrics)
    stream.checkpoint(1)
    stream.add("run_finished", state="succeeded")
    post(claim, stream)
    page = operator.get(f"/runs/{run.pk}/").content.decode()
    assert "Kept rollouts" in page
    assert "From rollouts to tokens" not in page
    iteration = operator.get(reverse("iteration-detail", args=[run.pk, "train", 0])).content.decode()
    assert "From rollouts to tokens" not in iteration
    assert stats(operator, run).startswith("Rounds 1 of 3")
    assert "fine-tuning" not in stats(operator, run)
    assert "before training" in operator.get(f"/runs/{run.pk}/?tab=evaluation").content.decode()


def test_an_attempt_that_goes_on_keeps_rounds_evaluations_and_finished_rollouts() -> None:
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
    again = attempts.claim_relaunch(run_id=run.pk, epoch=claim.epoch, reason="killed")
    assert again is not None
    second = Stream(epoch=again.epoch, first_seq=stream.next_seq)
    second.add("run_started", host="h", pid=2, resumed_from=1, rollouts_kept=before, total_iterations=3)
    post(again, second)
    assert Trajectory.objects.filter(run=run).count() == before
    assert [row.index for row in Iteration.objects.filter(run=run)] == [0]
    assert [alert.code for alert in Alert.objects.filter(run=run, seq__isnull=False)] == ["of-0"]
    assert sorted(Evaluation.objects.filter(run=run).values_list("iteration", flat=True)) == [0, 1]
    run.refresh_from_db()
    assert (run.current_iteration, run.total_iterations) == (0, 3)


def test_a_run_may_find_out_how_many_iterations_it_has() -> None:
    make_dataset()
    run, claim = launched()
    stream = Stream()
    stream.started(total=0)
    stream.add("run_planned", total_iterations=12)
    post(claim, stream)
    run.refresh_from_db()
    assert run.total_iterations == 12


def test_one_recipe_from_several_starts_is_one_experiment_with_one_comparison(operator: Client) -> None:
    make_dataset()
    starts = ["builtin:quickstart", "run:7"]
    command = ["launch", "quickstart", "--each", f"policy.checkpoint={json.dumps(starts)}"]
    call_command(*command, "--experiment", "starts", "--set", "trainer.iterations=1")
    made = list(Run.objects.order_by("pk"))
    assert [run.config["policy"]["checkpoint"] for run in made] == starts
    assert [run.name for run in made] == ["quickstart (builtin:quickstart)", "quickstart (run:7)"]
    assert {run.state for run in made} == {RunState.QUEUED}
    for run, evaluations in zip(made, (2, 1), strict=True):
        claim = attempts.claim_launch(run_id=run.pk)
        assert claim is not None
        stream = Stream()
        stream.started(total=1)
        for number in range(evaluations):
            stream.evaluation(number)
        post(claim, stream)
    (experiment,) = {run.experiment for run in made}
    assert experiment is not None
    page = operator.get(f"/experiments/{experiment.pk}/").content.decode()
    (table,) = re.findall(r"<h2>Held-out tasks</h2>.*?</table>", page, re.DOTALL)
    text = " ".join(re.sub(r"<[^>]+>", " ", table).split())
    assert "quickstart (builtin:quickstart) builtin:quickstart 100" in text
    assert "quickstart (run:7) run:7 100" in text
    assert "tasks or samples differ" not in text
    Evaluation.objects.filter(run=made[1]).update(num_samples=3)
    page = operator.get(f"/experiments/{experiment.pk}/").content.decode()
    assert "tasks or samples differ" in page


def test_of_many_evaluations_the_first_and_the_last_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    make_dataset()
    run, claim = launched(runs.create(recipe="quickstart-improve"))
    stream = Stream()
    stream.started(total=9)
    for number in range(9):
        stream.evaluation(number)
    post(claim, stream)
    read: list[int] = []
    from_db = Evaluation.from_db

    def counted(*given: Any, **named: Any) -> Evaluation:
        made = from_db(*given, **named)
        read.append(made.iteration)
        return made

    monkeypatch.setattr(Evaluation, "from_db", counted)
    first, last = first_and_last_evaluations([run.pk], "heldout")[run.pk]
    assert (first.iteration, last.iteration) == (0, 8)
    assert sorted(read) == [0, 8]


@pytest.mark.parametrize("values", ["[]", "run:3", "3"])
def test_values_that_are_no_list_make_no_run(values: str) -> None:
    make_dataset()
    with pytest.raises(CommandError, match="at least one value"):
        call_command("launch", "quickstart", "--each", f"policy.checkpoint={values}")
    with pytest.raises(CommandError):
        call_command("launch", "quickstart", "--each", 'policy.checkpoint=["builtin:quickstart", "no"]')
    assert not Run.objects.exists()
