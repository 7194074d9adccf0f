"""Reports and comparisons of stored evaluations: page, API and commands give the same numbers."""

from __future__ import annotations

import io
import json
import math
import re
from dataclasses import asdict
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from engine.verifiers.execution_based.rollout_files import read_rollouts
from engine.verifiers.selection.curves import curves
from engine.verifiers.selection.rules import named_rules
from engine.verifiers.selection.tables import read_table
from tests.builders.evaluation_builders import FIRST, SECOND, evaluated, scored
from tests.builders.event_builders import Stream, ref
from tests.builders.page_builders import make_dataset, make_yard
from tests.builders.web_builders import launched, make_user, post
from webapp.models import Trajectory
from webapp.permissions import Role

pytestmark = pytest.mark.django_db(transaction=True)


def viewer() -> Client:
    client = Client()
    client.force_login(make_user("v", Role.VIEWER))
    return client


def printed(*command: Any, **options: Any) -> Any:
    out = io.StringIO()
    call_command(*map(str, command), stdout=out, **options)
    return json.loads(out.getvalue())


def test_api_and_command_give_the_same_report() -> None:
    _, tasks = make_dataset()
    run = evaluated(tasks, FIRST)
    body = viewer().get(f"/api/v1/runs/{run.pk}/evaluations/eval:heldout/0/report").json()
    rate = body["rate"]
    assert (rate["num_tasks"], rate["num_attempts"], rate["num_lost"]) == (4, 15, 1)
    assert rate["rate"] == pytest.approx((0.5 + 0.25 + 0 + 1) / 4)
    assert rate["sampling_error"] == pytest.approx(math.sqrt((0.25 / 3 + 0.1875 / 3) / 16))
    curves = {curve["rule"]: curve["points"] for curve in body["curves"]}
    assert set(curves) == {"shortest", "majority", "oracle"}
    assert [point["k"] for point in curves["oracle"]] == [1, 2, 3]
    for points in curves.values():
        assert points[0]["rate"] == pytest.approx(rate["rate"])
    assert curves["oracle"][2]["rate"] == pytest.approx((1.0 + 0.75 + 0 + 1) / 4)
    context, _, turns = body["budgets"]
    assert [(point["budget"], point["ended"]) for point in context["points"]] == [
        (4096, pytest.approx((0.75 + 0.75 + 2 / 3 + 0.75) / 4)),
        (8192, 1.0),
    ]
    assert turns["points"] == [{"budget": 5, "rate": rate["rate"], "ended": 1.0}]
    (repository,) = body["repositories"]
    assert (repository["name"], repository["num_solved"]) == ("mahmoud/boltons", 7)
    assert body["submissions"]["submitted_solved"] == 4
    assert body["submissions"]["ended_solved"] == 3
    assert body["spending"]["cost_per_solved"] == pytest.approx(16 * 0.25 / 7)
    report = printed("evaluation_report", run.pk)
    assert {name: report[name] for name in body} == body
    assert (report["phase"], report["iteration"]) == ("eval:heldout", 0)


def test_rollouts_of_unknown_length_count_in_no_budget_of_tokens() -> None:
    _, tasks = make_dataset()
    run = evaluated(tasks, FIRST)
    rows = Trajectory.objects.filter(run=run)
    rows.filter(task_key=tasks[0].key).update(context_tokens=0)
    rows.update(generated_tokens=0)
    client = viewer()
    context, generated, turns = client.get(f"/api/v1/runs/{run.pk}/evaluations/eval:heldout/0/report").json()[
        "budgets"
    ]
    assert (context["num_unknown"], generated["num_unknown"], turns["num_unknown"]) == (4, 15, 0)
    assert (context["points"][-1]["ended"], context["points"][-1]["rate"]) == (
        1.0, pytest.approx((0.25 + 0 + 1) / 3),
    )  # fmt: skip
    assert context["points"][0]["ended"] == pytest.approx((0.75 + 2 / 3 + 0.75) / 3)
    assert generated["points"] == []
    assert len(turns["points"]) == 1
    page = client.get(f"/evaluations/{run.pk}/eval:heldout/0/").content.decode()
    assert "4 rollouts of unknown size are left out" in page
    assert "Generated tokens are unknown" in page
    assert ">Generated tokens</th>" not in page


def test_the_page_recomputes_selection_for_other_choices() -> None:
    _, tasks = make_dataset()
    run = evaluated(tasks, FIRST)
    client, address = viewer(), f"/evaluations/{run.pk}/eval:heldout/0/"
    page = client.get(address).content.decode()
    assert "43.8\u202f%" in page
    assert "1 lost to infrastructure" in page
    assert "approximate" in page
    chosen = client.get(address, {"rule": "majority", "k": "2"}).content.decode()
    assert '<th class="n" scope="col">majority</th>' in chosen
    assert '<th class="n" scope="col">oracle</th>' not in chosen
    for choice, message in (
        ({"k": "9"}, "K = 9 is more than the rollouts of 4 of 4 tasks"),
        ({"k": "0"}, "at least 1"),
        ({"rule": "ef"}, "15 of 15 rollouts have no p_yes"),
        ({"rule": "<b>"}, "there is no rule '<b>'"),
        ({"keep": "0"}, "the least is 1"),
        ({"repo": "elsewhere"}, "No rollout was graded"),
    ):
        wrong = client.get(address, choice)
        assert wrong.status_code == 200
        assert "<b>" not in wrong.content.decode()
        assert message in unescape(wrong.content.decode())


def test_comparisons_name_gained_and_lost_tasks() -> None:
    _, tasks = make_dataset()
    first, second = evaluated(tasks, FIRST), evaluated(tasks, SECOND)
    keys = [f"{run.pk}:eval:heldout:0" for run in (first, second)]
    client = viewer()
    body = client.get("/api/v1/evaluations/compare", {"first": keys[0], "second": keys[1]}).json()
    assert [change["task_id"] for change in body["gained"]] == [tasks[2].key, tasks[0].key]
    assert body["lost"] == [{"task_id": tasks[1].key, "before": 0.25, "after": 0.0}]
    assert body["difference"] == pytest.approx((0.5 - 0.25 + 1.0 + 0) / 4)
    assert body["p_value"] == 1.0
    assert printed("compare_evaluations", *keys) == body
    page = client.get("/evaluations/compare/", {"first": keys[0], "second": keys[1]}).content.decode()
    assert "p = 1.0000" in page
    address = unescape(re.findall(rf'href="(/evaluations/compare/{tasks[2].key}/[^"]+)"', page)[0])
    both = client.get(address).content.decode()
    for run in (first, second):
        assert f'href="/runs/{run.pk}/eval:heldout/0/{tasks[2].key}/0/"' in both
    assert both.count("same as rollout") == 6, "four rollouts a side with one patch"
    assert "graded different tasks" not in page


def test_evaluations_of_unequal_tasks_are_said_to_be() -> None:
    _, tasks = make_dataset()
    first, second, other = (
        evaluated(tasks[:3], FIRST),
        evaluated(tasks[1:], SECOND),
        evaluated(tasks[3:], FIRST),
    )
    keys = [f"{run.pk}:eval:heldout:0" for run in (first, second, other)]
    client = viewer()
    page = client.get("/evaluations/compare/", {"first": keys[0], "second": keys[1]}).content.decode()
    assert "graded different tasks. Compared: 2 that both graded. Left out: 1 of the first only, 1 of" in page
    apart = client.get("/evaluations/compare/", {"first": keys[0], "second": keys[2]})
    assert "none of them in common" in apart.content.decode()
    refused = client.get("/api/v1/evaluations/compare", {"first": keys[0], "second": keys[2]})
    assert refused.status_code == 422


@pytest.mark.parametrize(
    "key", ["", "x", "1", "1:eval:heldout", "999999:eval:heldout:0", "1:eval:heldout:-1"]
)
def test_keys_that_name_no_evaluation(key: str) -> None:
    answer = viewer().get("/api/v1/evaluations/compare", {"first": key, "second": key})
    assert answer.status_code == 422
    with pytest.raises(CommandError):
        printed("compare_evaluations", key, key)


def test_an_evaluation_without_a_finished_rollout_has_an_empty_report() -> None:
    _, tasks = make_dataset()
    run, claim = launched()
    stream = Stream(epoch=claim.epoch)
    stream.started()
    stream.add("trajectory_started", ref=ref(0, tasks[0].key, 0, phase="eval:heldout"), sandbox_id="s")
    post(claim, stream)
    client = viewer()
    page = client.get(f"/evaluations/{run.pk}/eval:heldout/0/")
    assert page.status_code == 200
    assert "No rollout was graded" in page.content.decode()
    assert client.get(f"/evaluations/{run.pk}/eval:heldout/1/").status_code == 404
    assert client.get(f"/api/v1/runs/{run.pk}/evaluations/eval:heldout/1/report").status_code == 404
    with pytest.raises(CommandError, match="no such finished rollouts"):
        printed("evaluation_report", run.pk)


def test_scores_of_a_verifier_select_and_the_newest_is_the_default() -> None:
    _, tasks = make_dataset()
    run = evaluated(tasks[:1], FIRST)
    right = scored(run, tasks[0], {0: 0.9, 1: 0.8, 2: 0.2, 3: 0.1})
    wrong = scored(run, tasks[0], {0: 0.1, 1: 0.2, 2: 0.8, 3: 0.9})
    client, address = viewer(), f"/api/v1/runs/{run.pk}/evaluations/eval:heldout/0/report"

    def best_of_four(**choice: int) -> tuple[int, float]:
        params: dict[str, str | int] = {"rule": "ef", **choice}
        body = client.get(address, params).json()
        assert body["curves_error"] == ""
        return body["verifier"], body["curves"][0]["points"][-1]["rate"]

    assert best_of_four() == (wrong.pk, 0.0)
    assert best_of_four(verifier=right.pk) == (right.pk, 1.0)
    page = client.get(f"/evaluations/{run.pk}/eval:heldout/0/", {"verifier": right.pk}).content.decode()
    assert re.search(rf'<option value="{right.pk}"\s+selected>\s*run {right.pk},', page)
    assert '<th class="n" scope="col">ef</th>' in page
    assert "ef: highest score of the judge" in page
    assert printed("evaluation_report", run.pk, "--verifier", right.pk)["verifier"] == right.pk


def test_a_rollout_without_a_score_costs_the_rules_that_need_it_and_is_named() -> None:
    _, tasks = make_dataset()
    run = evaluated(tasks[:1], FIRST)
    scored(run, tasks[0], {0: 0.9, 1: None, 2: 0.2})
    page = unescape(viewer().get(f"/evaluations/{run.pk}/eval:heldout/0/").content.decode())
    assert "2 of 4 rollouts have no p_yes" in page
    assert '<th class="n" scope="col">ef</th>' not in page
    assert '<th class="n" scope="col">oracle</th>' in page


def test_an_exported_table_gives_the_curves_of_the_report(tmp_path: Path) -> None:
    _, tasks = make_dataset()
    run = evaluated(tasks[:2], FIRST)
    verifier = scored(run, tasks[0], {0: 0.9, 1: 0.8, 2: 0.2, 3: 0.1})
    path = tmp_path / "rollouts.jsonl"
    counts = printed("export_rollouts", run.pk, "--output", path, "--verifier", verifier.pk)
    assert counts == {"run": run.pk, "phase": "eval:heldout", "iteration": 0, "rollouts": 8}
    table = read_table(path)
    assert [one.p_yes for one in table] == [0.9, 0.8, 0.2, 0.1, None, None, None, None]
    names = ["shortest", "majority", "oracle"]
    report = printed("evaluation_report", run.pk)
    assert [curve["rule"] for curve in report["curves"]] == names
    assert [asdict(curve) for curve in curves(table, named_rules(names), [1, 2, 4])] == [
        {**curve, "points": tuple(curve["points"])} for curve in report["curves"]
    ]
    rollouts, rejected = read_rollouts(path)
    assert rejected == []
    assert [one.candidate.patch for one in rollouts] == list("aabbabbb")
    with pytest.raises(CommandError, match="cannot write"):
        printed("export_rollouts", run.pk, "--output", tmp_path / "none" / "f")
    with pytest.raises(CommandError, match="no such finished rollouts"):
        printed("export_rollouts", run.pk, "--output", path, "--iteration", 9)


def test_the_tab_of_evaluations_leads_to_the_first_against_the_newest() -> None:
    yard = make_yard(iterations=1, group_size=2)
    client = viewer()
    tab = client.get(f"/runs/{yard.run.pk}/?tab=evaluation").content.decode()
    link = re.search(r'href="(/evaluations/compare/[^"]+)"', tab)
    assert link is not None
    page = client.get(unescape(link[1])).content.decode()
    # one task each: unsolved at first, solved after the iteration
    assert "+100.0\u202fpp" in page
    assert f'href="/evaluations/{yard.run.pk}/eval:heldout/1/"' in page


def test_tasks_with_fewer_rollouts_end_the_curves_count_with_all_or_are_left_out() -> None:
    _, tasks = make_dataset()
    run = evaluated(tasks, FIRST)
    client, address = viewer(), f"/api/v1/runs/{run.pk}/evaluations/eval:heldout/0/report"

    def oracle(**choice: str) -> tuple[list[tuple[int, float, int]], int]:
        body = client.get(address, {"rule": "oracle", **choice}).json()
        assert body["coverage"] == {
            "num_tasks": 4, "most_rollouts": 4, "num_short": 1, "num_unscored": 0,
        }  # fmt: skip
        assert body["curves_error"] == ""
        (curve,) = body["curves"]
        points = [(point["k"], point["rate"], point["num_short"]) for point in curve["points"]]
        return points, curve["num_tasks"]

    points, num_tasks = oracle()
    assert ([k for k, *_ in points], num_tasks) == ([1, 2, 3], 4)
    points, num_tasks = oracle(short="all")
    assert (points[-1], num_tasks) == ((4, 0.75, 1), 4)
    assert points[0] == (1, 0.4375, 0)
    points, num_tasks = oracle(short="leave_out")
    assert (points[-1], num_tasks) == ((4, 1.0, 0), 3)
    assert points[0][1] == pytest.approx((0.5 + 0.25 + 1) / 3)
    body = client.get(address, {"rule": "oracle", "short": "leave_out"}).json()
    told = printed("evaluation_report", run.pk, "--rule", "oracle", "--short", "leave_out")
    assert {name: told[name] for name in body} == body
    assert client.get(address, {"short": "some"}).status_code == 422
    page = f"/evaluations/{run.pk}/eval:heldout/0/"
    asked = unescape(client.get(page, {"rule": "oracle", "k": "4"}).content.decode())
    assert f"K = 4 is more than the rollouts of 1 of 4 tasks, such as {tasks[2].instance_id} with 3" in asked
    assert "fewer than 4 graded rollouts (1 of 4)" in asked
    chosen = client.get(page, {"rule": "oracle", "short": "leave_out"}).content.decode()
    assert re.search(r'<option value="leave_out"\s+selected>', chosen)
    assert "Over 3 of 4 tasks" in chosen


def test_tasks_without_scores_can_be_left_out() -> None:
    _, tasks = make_dataset()
    run = evaluated(tasks[:2], FIRST)
    scored(run, tasks[0], {0: 0.9, 1: 0.8, 2: 0.2, 3: 0.1})
    client, address = viewer(), f"/api/v1/runs/{run.pk}/evaluations/eval:heldout/0/report"
    body = client.get(address).json()
    assert "ef" not in {curve["rule"] for curve in body["curves"]}
    assert f"of task {tasks[1].instance_id};" in body["curves_error"]
    assert body["coverage"]["num_unscored"] == 1
    chosen = client.get(address, {"leave_out_unscored": "true"}).json()
    assert chosen["curves_error"] == ""
    assert {curve["rule"]: curve["num_tasks"] for curve in chosen["curves"]} == {
        "ef": 1, "shortest": 1, "majority": 1, "oracle": 1,
    }  # fmt: skip
    assert chosen["curves"][0]["points"][-1]["rate"] == 1.0
    told = printed("evaluation_report", run.pk, "--leave-out-unscored")
    assert {name: told[name] for name in chosen} == chosen
    page = f"/evaluations/{run.pk}/eval:heldout/0/"
    assert "Tasks without all scores (1 of 2)" in client.get(page).content.decode()
    left_out = client.get(page, {"leave_out_unscored": "on"}).content.decode()
    assert '<th class="n" scope="col">ef</th>' in left_out
    assert "Over 1 of 2 tasks" in left_out
    nothing = client.get(page, {"rule": "eb", "leave_out_unscored": "on"}).content.decode()
    assert "Every task has a rollout without a score of eb." in nothing
