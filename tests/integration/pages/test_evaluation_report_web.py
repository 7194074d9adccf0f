"""Reports and comparisons of stored evaluations: page, API and commands return the same numbers."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from engine.verifiers.execution_based.rollout_files import read_rollouts
from engine.verifiers.selection.curves import curves
from engine.verifiers.selection.rules import named_rules
from engine.verifiers.selection.tables import read_table
from tests.builders.commands import CommandFailedError, run_command
from tests.builders.web.evaluation_builders import FIRST, SECOND, evaluated, scored
from tests.builders.web.page_builders import make_dataset
from tests.builders.web.web_builders import signed_in
from webapp.core.permissions import Role
from webapp.models import Trajectory

pytestmark = pytest.mark.django_db(transaction=True)


def printed(*command: Any) -> Any:
    return json.loads(run_command(*command))


def test_api_and_command_return_the_same_report() -> None:
    _, tasks = make_dataset()
    run = evaluated(tasks, FIRST)
    body = signed_in(Role.VIEWER).get(f"/api/v1/runs/{run.pk}/evaluations/eval:heldout/0/report").json()
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
    report = printed("evaluation", "report", run.pk)
    assert {name: report[name] for name in body} == body
    assert (report["phase"], report["iteration"]) == ("eval:heldout", 0)


def test_rollouts_of_unknown_length_are_left_out_of_token_budgets() -> None:
    _, tasks = make_dataset()
    run = evaluated(tasks, FIRST)
    rows = Trajectory.objects.filter(run=run)
    rows.filter(task_key=tasks[0].key).update(context_tokens=0)
    rows.update(generated_tokens=0)
    client = signed_in(Role.VIEWER)
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


def test_comparisons_name_gained_and_lost_tasks() -> None:
    _, tasks = make_dataset()
    first, second = evaluated(tasks, FIRST), evaluated(tasks, SECOND)
    keys = [f"{run.pk}:eval:heldout:0" for run in (first, second)]
    client = signed_in(Role.VIEWER)
    body = client.get("/api/v1/evaluations/compare", {"first": keys[0], "second": keys[1]}).json()
    assert [change["task_id"] for change in body["gained"]] == [tasks[2].key, tasks[0].key]
    assert body["lost"] == [{"task_id": tasks[1].key, "before": 0.25, "after": 0.0}]
    assert body["difference"] == pytest.approx((0.5 - 0.25 + 1.0 + 0) / 4)
    assert body["p_value"] == 1.0
    assert printed("evaluation", "compare", *keys) == body
    for wrong in ("", "1:eval:heldout", "999999:eval:heldout:0"):
        answer = client.get("/api/v1/evaluations/compare", {"first": wrong, "second": wrong})
        assert answer.status_code == 422


def test_comparison_reports_that_evaluations_have_different_tasks() -> None:
    _, tasks = make_dataset()
    first, second, other = (
        evaluated(tasks[:3], FIRST),
        evaluated(tasks[1:], SECOND),
        evaluated(tasks[3:], FIRST),
    )
    keys = [f"{run.pk}:eval:heldout:0" for run in (first, second, other)]
    client = signed_in(Role.VIEWER)
    page = client.get("/evaluations/compare/", {"first": keys[0], "second": keys[1]}).content.decode()
    assert "graded different tasks. Compared: 2 graded by both. Excluded: 1 only in the first, 1" in page
    disjoint = client.get("/evaluations/compare/", {"first": keys[0], "second": keys[2]})
    assert "none of them in common" in disjoint.content.decode()
    refused = client.get("/api/v1/evaluations/compare", {"first": keys[0], "second": keys[2]})
    assert refused.status_code == 422


def test_reports_select_by_verifier_scores_and_default_to_the_newest() -> None:
    _, tasks = make_dataset()
    run = evaluated(tasks[:1], FIRST)
    right = scored(run, tasks[0], {0: 0.9, 1: 0.8, 2: 0.2, 3: 0.1})
    wrong = scored(run, tasks[0], {0: 0.1, 1: 0.2, 2: 0.8, 3: 0.9})
    client, address = signed_in(Role.VIEWER), f"/api/v1/runs/{run.pk}/evaluations/eval:heldout/0/report"

    def best_of_four(**choice: int) -> tuple[int, float]:
        params: dict[str, str | int] = {"rule": "ef", **choice}
        body = client.get(address, params).json()
        assert body["curves_error"] == ""
        return body["verifier"], body["curves"][0]["points"][-1]["rate"]

    assert best_of_four() == (wrong.pk, 0.0)
    assert best_of_four(verifier=right.pk) == (right.pk, 1.0)
    assert printed("evaluation", "report", run.pk, "--verifier", right.pk)["verifier"] == right.pk


def test_exported_table_reproduces_the_curves_of_the_report(tmp_path: Path) -> None:
    _, tasks = make_dataset()
    run = evaluated(tasks[:2], FIRST)
    verifier = scored(run, tasks[0], {0: 0.9, 1: 0.8, 2: 0.2, 3: 0.1})
    path = tmp_path / "rollouts.jsonl"
    counts = printed("run", "export", run.pk, "--output", path, "--verifier", verifier.pk)
    assert counts == {"run": run.pk, "phase": "eval:heldout", "iteration": 0, "rollouts": 8}
    table = read_table(path)
    assert [row.p_yes for row in table] == [0.9, 0.8, 0.2, 0.1, None, None, None, None]
    names = ["shortest", "majority", "oracle"]
    report = printed("evaluation", "report", run.pk)
    assert [curve["rule"] for curve in report["curves"]] == names
    assert [asdict(curve) for curve in curves(table, named_rules(names), [1, 2, 4])] == [
        {**curve, "points": tuple(curve["points"])} for curve in report["curves"]
    ]
    rollouts, rejected = read_rollouts(path)
    assert rejected == []
    assert [row.candidate.patch for row in rollouts] == list("aabbabbb")
    with pytest.raises(CommandFailedError, match="cannot write"):
        printed("run", "export", run.pk, "--output", tmp_path / "none" / "f")
    with pytest.raises(CommandFailedError, match="no such finished rollouts"):
        printed("run", "export", run.pk, "--output", path, "--iteration", 9)


def test_tasks_with_few_rollouts_end_the_curves_use_all_or_are_left_out() -> None:
    _, tasks = make_dataset()
    run = evaluated(tasks, FIRST)
    client, address = signed_in(Role.VIEWER), f"/api/v1/runs/{run.pk}/evaluations/eval:heldout/0/report"

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
    printed_report = printed("evaluation", "report", run.pk, "--rule", "oracle", "--short", "leave_out")
    assert {name: printed_report[name] for name in body} == body
    assert client.get(address, {"short": "some"}).status_code == 422


def test_tasks_without_scores_can_be_left_out() -> None:
    _, tasks = make_dataset()
    run = evaluated(tasks[:2], FIRST)
    scored(run, tasks[0], {0: 0.9, 1: 0.8, 2: 0.2, 3: 0.1})
    client, address = signed_in(Role.VIEWER), f"/api/v1/runs/{run.pk}/evaluations/eval:heldout/0/report"
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
    printed_report = printed("evaluation", "report", run.pk, "--leave-out-unscored")
    assert {name: printed_report[name] for name in chosen} == chosen


def test_page_of_an_evaluation_lists_tasks_with_the_lowest_solve_rate_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, tasks = make_dataset()
    run = evaluated(tasks, FIRST)
    viewer, address = signed_in(Role.VIEWER), f"/runs/{run.pk}/eval:heldout/0/"
    response = viewer.get(address)
    assert [row.group.task.instance_id for row in response.context["page"].rows] == [
        tasks[place].instance_id for place in (2, 1, 0, 3)
    ]
    page = response.content.decode()
    rows = page.split("<tbody>")[1].split("</tr>")
    marks = [re.findall(r'href="([^"]*)" title="[^"]*">(.)</a>', row) for row in rows[:4]]
    assert ["".join(mark for _, mark in row) for row in marks] == ["✕✕!✕", "✓✕✕✕", "✓✓✕✕", "✓✓✓✓"]
    assert [url for url, _ in marks[0]] == [f"{address}{tasks[2].key}/{index}/" for index in range(4)]
    monkeypatch.setattr("webapp.rollouts.selectors.groups.TASKS_OF_PAGE", 3)
    second = viewer.get(address, {"page": "2"})
    assert [row.group.task.instance_id for row in second.context["page"].rows] == [tasks[3].instance_id]
    assert "showing 4–4 of 4" in second.content.decode()
