"""Reports of evaluations that are running, stopped, resumed or without scores."""

from __future__ import annotations

import json
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ConfigError
from tests.builders.commands import CommandFailedError, command_result, run_command
from tests.builders.web.evaluation_builders import (
    FIRST,
    Outcomes,
    end_evaluation,
    evaluate,
    evaluated,
    rollout,
    scored,
)
from tests.builders.web.event_builders import Stream, ref
from tests.builders.web.page_builders import make_dataset
from tests.builders.web.web_builders import launched, post, relaunched, signed_in
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
    """Launch an evaluation with two attempts a task; only the first task's have all ended."""
    draft = runs.create(
        recipe="quickstart-evaluate", overrides={"policy.checkpoint": "fresh:tiny", "rollout.group_size": 2}
    )
    run, claim = launched(draft)
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
    current = report(run)
    assert (current.ended, current.num_open_tasks) == (False, 2)
    assert (current.rate.num_tasks, current.rate.rate) == (1, 1.0)
    text = page(run)
    assert "has not ended: the run is running" in text
    assert "1 task whose attempts have all ended; 2 are excluded" in text
    body = signed_in(Role.VIEWER).get(f"/api/v1/runs/{run.pk}/evaluations/eval:heldout/0/report").json()
    assert (body["ended"], body["num_open_tasks"]) == (False, 2)
    posted = len(stream.lines)
    stream.finished(ref(0, tasks[1].key, 1, phase="eval:heldout"), steps=1)
    rollout(stream, ref(0, tasks[2].key, 1, phase="eval:heldout"), 1, False, "a")
    end_evaluation(stream)
    post(claim, stream, posted)
    current = report(run)
    assert (current.ended, current.num_open_tasks, current.rate.rate) == (True, 0, 0.5)
    assert "has not ended" not in page(run)


def test_stopped_evaluation_is_marked_incomplete_in_report_and_comparison() -> None:
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
    assert result.errors == f"{keys['first']} has not ended; tasks left out: 2\n"
    answer = signed_in(Role.VIEWER).get("/api/v1/evaluations/compare", keys).json()
    assert answer == json.loads(result.output)
    endings = {"submitted": 1, "limits": {"max_steps": 1}, "excluded": 0}
    assert answer["first"] == {"ended": False, "num_open_tasks": 2, "endings": endings}
    assert (answer["second"]["ended"], answer["second"]["num_open_tasks"]) == (True, 0)


def test_verifier_without_scores_is_refused_by_page_api_and_commands(tmp_path: Path) -> None:
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


def test_scores_of_a_rollout_do_not_apply_to_its_repetition_after_a_resume() -> None:
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
    second = Stream(epoch=newer.epoch, first_seq=stream.next_seq)
    second.started()
    reversed_outcomes: Outcomes = (((False, False, True, True), "aabb"),)
    evaluate(second, tasks, reversed_outcomes)
    post(newer, second)
    run.refresh_from_db()
    repeated = report(run, rule="ef", verifier=verifier.pk)
    assert repeated.curves == ()
    assert "4 of 4 rollouts have no p_yes" in repeated.curves_error
    scored(run, tasks[0], {0: 0.2, 1: 0.1, 2: 0.9, 3: 0.8}, epoch=newer.epoch)
    assert report(run, rule="ef").curves[0].points[-1].rate == 1.0


def test_patches_with_equal_effect_count_as_one_patch() -> None:
    """Votes compare the effect of patches, whose blob hashes may differ."""
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


def test_viewers_cannot_compare_the_patches_of_an_oracle() -> None:
    _, tasks = make_dataset()
    run = evaluated(tasks, FIRST)
    oracle, claim = launched(runs.create(recipe="quickstart-oracle", overrides={}))
    stream = Stream(epoch=claim.epoch)
    stream.started()
    evaluate(stream, tasks, FIRST)
    post(claim, stream)
    both = {"first": point(run).key, "second": point(oracle).key}
    assert signed_in(Role.VIEWER).get(f"/evaluations/compare/{tasks[0].key}/", both).status_code == 403
