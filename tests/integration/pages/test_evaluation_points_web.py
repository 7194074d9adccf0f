"""Evaluations that run, stop, resume or lack rollouts, scores and names, as the report shows them."""

from __future__ import annotations

import json
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ConfigError
from tests.builders.commands import CommandFailedError, command_result, run_command
from tests.builders.evaluation_builders import (
    FIRST,
    Outcomes,
    end_evaluation,
    evaluate,
    evaluated,
    rollout,
    scored,
)
from tests.builders.event_builders import Stream, ref
from tests.builders.page_builders import make_dataset
from tests.builders.web_builders import launched, post, relaunched, signed_in
from webapp.core.permissions import Role
from webapp.evaluations.contexts.comparison import compare_evaluations
from webapp.evaluations.contexts.report import Question, Report, evaluation_report
from webapp.models import Run, Task
from webapp.rollouts.selectors.attempts import Point
from webapp.runs.services import runs
from webapp.runs.services.attempts import Claim

pytestmark = pytest.mark.django_db(transaction=True)
SOLVED: Outcomes = (((True, True), "ab"),)


def point(run: Run) -> Point:
    return Point(run=run, phase="eval:heldout", iteration=0)


def report(run: Run, **choices: Any) -> Report:
    return evaluation_report(point(run), Question(**choices))


def page(run: Run, **choices: Any) -> str:
    return unescape(
        signed_in(Role.VIEWER).get(f"/evaluations/{run.pk}/eval:heldout/0/", choices).content.decode()
    )


def evaluating(tasks: list[Task]) -> tuple[Run, Claim, Stream]:
    """A run of one evaluation, two attempts a task: the first task's have ended, the second's are running."""
    made = runs.create(
        recipe="quickstart-evaluate", overrides={"policy.checkpoint": "fresh:tiny", "rollout.group_size": 2}
    )
    run, claim = launched(made)
    stream = Stream(epoch=claim.epoch)
    stream.started()
    evaluate(stream, tasks, SOLVED)
    rollout(stream, ref(0, tasks[1].key, 0, phase="eval:heldout"), 1, False, "a")
    stream.add("trajectory_started", ref=ref(0, tasks[1].key, 1, phase="eval:heldout"), sandbox_id="s")
    rollout(stream, ref(0, tasks[2].key, 0, phase="eval:heldout"), 1, False, "a")
    post(claim, stream)
    run.refresh_from_db()
    return run, claim, stream


def test_a_running_evaluation_counts_tasks_whose_attempts_have_all_ended() -> None:
    _, tasks = make_dataset()
    run, claim, stream = evaluating(tasks)
    found = report(run)
    assert (found.ended, found.num_open_tasks) == (False, 2)
    assert (found.rate.num_tasks, found.rate.rate) == (1, 1.0)
    text = page(run)
    assert "has not ended: the run is running" in text
    assert "1 task whose attempts have all ended; 2 are left out" in text
    body = signed_in(Role.VIEWER).get(f"/api/v1/runs/{run.pk}/evaluations/eval:heldout/0/report").json()
    assert (body["ended"], body["num_open_tasks"]) == (False, 2)
    posted = len(stream.lines)
    stream.finished(ref(0, tasks[1].key, 1, phase="eval:heldout"), steps=1)
    rollout(stream, ref(0, tasks[2].key, 1, phase="eval:heldout"), 1, False, "a")
    end_evaluation(stream)
    post(claim, stream, posted)
    found = report(run)
    assert (found.ended, found.num_open_tasks, found.rate.rate) == (True, 0, 0.5)
    assert "has not ended" not in page(run)


def test_a_stopped_evaluation_says_so_also_in_a_comparison() -> None:
    _, tasks = make_dataset()
    run, claim, stream = evaluating(tasks)
    posted = len(stream.lines)
    stream.add("run_finished", state="stopped", reason="asked", summary={})
    post(claim, stream, posted)
    run.refresh_from_db()
    assert run.state == "stopped"
    assert "is incomplete: the run was stopped before its end" in page(run)
    other = evaluated(tasks, FIRST)
    keys = {"first": point(run).key, "second": point(other).key}
    text = unescape(signed_in(Role.VIEWER).get("/evaluations/compare/", keys).content.decode())
    assert f"The evaluation of run {run.pk}, heldout evaluation at 0 has not ended" in text
    assert compare_evaluations(keys["first"], keys["second"]).comparison.num_shared == 1
    result = command_result("evaluation", "compare", *keys.values())
    assert result.errors == f"{keys['first']} has not ended: 2 tasks are left out\n"
    answer = signed_in(Role.VIEWER).get("/api/v1/evaluations/compare", keys).json()
    assert answer == json.loads(result.output)
    endings = {"submitted": 1, "limits": {"max_steps": 1}, "excluded": 0}
    assert answer["first"] == {"ended": False, "num_open_tasks": 2, "endings": endings}
    assert (answer["second"]["ended"], answer["second"]["num_open_tasks"]) == (True, 0)


def test_a_verifier_that_scored_nothing_there_is_refused_by_page_api_and_commands(tmp_path: Path) -> None:
    _, tasks = make_dataset()
    run = evaluated(tasks[:1], FIRST)
    known = scored(run, tasks[0], {0: 0.9, 1: 0.8, 2: 0.2, 3: 0.1})
    message = f"run 999 has no scores of {point(run).key}; verifiers that have: {known.pk}"
    with pytest.raises(ConfigError, match=message):
        report(run, verifier=999)
    text = page(run, verifier=999)
    assert message in text
    assert "43.8" not in text
    assert "50.0\u202f%" in text, "everything else is still shown"
    refused = signed_in(Role.VIEWER).get(
        f"/api/v1/runs/{run.pk}/evaluations/eval:heldout/0/report", {"verifier": 999}
    )
    assert refused.status_code == 422
    assert message in refused.json()["detail"]
    for command in (["evaluation", "report"], ["run", "export", "--output", str(tmp_path / "r.jsonl")]):
        with pytest.raises(CommandFailedError, match=message):
            run_command(*command, str(run.pk), "--verifier", "999")
    assert not (tmp_path / "r.jsonl").exists()


def test_scores_of_a_rollout_that_a_resume_made_again_are_not_those_of_the_new_one() -> None:
    _, tasks = make_dataset()
    run, claim = launched()
    stream = Stream(epoch=claim.epoch)
    stream.started()
    evaluate(stream, tasks, FIRST[:1])
    post(claim, stream)
    scores = {0: 0.9, 1: 0.8, 2: 0.2, 3: 0.1}
    verifier = scored(run, tasks[0], scores, epoch=claim.epoch)
    (ef,) = report(run, rule="ef").curves
    assert ef.points[-1].rate == 1.0
    newer = relaunched(run, claim)
    again = Stream(epoch=newer.epoch, first_seq=stream.next_seq)
    again.started()
    turned: Outcomes = (((False, False, True, True), "aabb"),)
    evaluate(again, tasks, turned)
    post(newer, again)
    run.refresh_from_db()
    found = report(run, rule="ef", verifier=verifier.pk)
    assert found.curves == ()
    assert "4 of 4 rollouts have no p_yes" in found.curves_error
    scored(run, tasks[0], {0: 0.2, 1: 0.1, 2: 0.9, 3: 0.8}, epoch=newer.epoch)
    assert report(run, rule="ef").curves[0].points[-1].rate == 1.0


def test_patches_with_one_effect_are_one_patch() -> None:
    """Blob hashes differ with the base that a policy wrote; a vote counts the effect."""
    _, tasks = make_dataset()
    change = "--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-x\n+{}\n"
    run, claim = launched()
    stream = Stream(epoch=claim.epoch)
    stream.started()
    patches = [
        f"diff --git a/a.py b/a.py\nindex {blob}..{blob} 100644\n{change.format(text)}"
        for blob, text in (("1111111", "right"), ("2222222", "right"), ("3333333", "wrong"))
    ]
    for index, patch in enumerate([*patches, " \n"]):
        rollout(stream, ref(0, tasks[0].key, index, phase="eval:heldout"), 1, index < 2, patch)
    end_evaluation(stream)
    post(claim, stream)
    (majority,) = report(run, rule="majority").curves
    assert majority.points[-1].rate == 1.0
    hashes = list(run.trajectories.order_by("index").values_list("patch_hash", flat=True))
    assert hashes[0] == hashes[1] != hashes[2]
    assert hashes[3] == "", "a blank patch is none"


def test_an_oracles_patches_are_not_for_viewers() -> None:
    _, tasks = make_dataset()
    run = evaluated(tasks, FIRST)
    oracle, claim = launched(runs.create(recipe="quickstart-oracle", overrides={}))
    stream = Stream(epoch=claim.epoch)
    stream.started()
    evaluate(stream, tasks, FIRST)
    post(claim, stream)
    both = {"first": point(run).key, "second": point(oracle).key}
    assert signed_in(Role.VIEWER).get(f"/evaluations/compare/{tasks[0].key}/", both).status_code == 403
