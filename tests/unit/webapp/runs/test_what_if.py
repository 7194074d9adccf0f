"""Counterfactual advantages: equal numbers from page, API and command."""

from __future__ import annotations

import json
import statistics
from typing import Any

import pytest
from django.db.models import F

from tests.builders.commands import run_command
from tests.builders.web.page_builders import Yard, make_yard
from tests.builders.web.web_builders import signed_in
from webapp.core.permissions import Role
from webapp.models import Group, Trajectory
from webapp.rollouts.contexts.what_if import counterfactual

pytestmark = pytest.mark.django_db(transaction=True)

KEEP_ALL = {"filtered_reasons": [], "baseline": "group_mean", "std_normalisation": "group"}


def mixed_task(yard: Yard) -> str:
    """Return the task of a group with both solved and unsolved rollouts."""
    group = Group.objects.filter(
        run=yard.run, phase="train", num_solved__gt=0, num_solved__lt=F("num_graded")
    )
    return group[0].task_key


def stored_rollouts(yard: Yard) -> list[Trajectory]:
    return list(
        Trajectory.objects.filter(
            run=yard.run, phase="train", iteration=0, task_key=mixed_task(yard)
        ).order_by("index")
    )


def test_settings_of_the_run_reproduce_the_stored_advantages() -> None:
    yard = make_yard(iterations=1)
    result = counterfactual(yard.run, phase="train", iteration=0, task_key=mixed_task(yard), settings={})
    assert result is not None
    rows = stored_rollouts(yard)
    assert any(row.advantage for row in rows)
    assert any(row.mask_reason == "infrastructure" for row in rows)
    assert [(m.advantage, m.baseline, m.loss_mask, m.mask_reason) for m in result.members] == [
        (t.advantage, t.baseline, t.loss_mask, t.mask_reason) for t in rows
    ]


def test_another_objective_includes_filtered_rollouts() -> None:
    yard = make_yard(iterations=1)
    key = mixed_task(yard)
    rewards = {t.index: t.reward for t in stored_rollouts(yard) if t.reward is not None}
    mean, deviation = statistics.fmean(rewards.values()), statistics.stdev(rewards.values())
    answer = signed_in(Role.VIEWER).post(
        f"/api/v1/runs/{yard.run.pk}/groups/train/0/{key}/what-if",
        json.dumps({"settings": KEEP_ALL}),
        content_type="application/json",
    )
    assert answer.status_code == 200, answer.content
    body: dict[str, Any] = answer.json()
    assert body["algorithm"]["baseline"] == "group_mean"
    assert body["algorithm"]["clip_high"] == 0.28
    for member in body["members"]:
        if member["index"] not in rewards:
            assert member["mask_reason"] == "infrastructure"
            assert member["advantage"] is None
            continue
        assert member["loss_mask"]
        expected = (rewards[member["index"]] - mean) / (deviation + 1e-6)
        assert member["advantage"] == pytest.approx(expected, rel=1e-12)
    settings = [f"{name}={json.dumps(value)}" for name, value in KEEP_ALL.items()]
    flags = [part for setting in settings for part in ("--set", setting)]
    assert json.loads(run_command("run", "what-if", yard.run.pk, 0, key, *flags)) == body


def test_a_whole_run_is_recomputed_on_page_api_and_command() -> None:
    yard = make_yard(iterations=2)
    reader, url = signed_in(Role.VIEWER), f"/api/v1/runs/{yard.run.pk}/what-if"
    trained = Trajectory.objects.filter(run=yard.run, phase="train", loss_mask=True).exclude(advantage=0.0)
    rows = list(trained.values_list("iteration", "generated_tokens"))

    def answer(settings: dict[str, Any], query: str = "") -> dict[str, Any]:
        body = json.dumps({"settings": settings})
        response = reader.post(url + query, body, content_type="application/json")
        assert response.status_code == 200, response.content
        document: dict[str, Any] = response.json()
        return document

    whole = answer({})
    assert whole["own"] == whole["other"]
    assert whole["updates"] == 2
    assert (whole["own"]["trajectories"], whole["own"]["tokens"]) == (len(rows), sum(row[1] for row in rows))
    assert sum(whole["own"]["tasks"].values()) == pytest.approx(1.0)
    one = answer({}, "?iteration=1")
    assert one["updates"] == 1
    assert one["own"]["tokens"] == sum(tokens for iteration, tokens in rows if iteration == 1)
    other = answer(KEEP_ALL)
    assert other["other"]["trajectories"] > other["own"]["trajectories"]
    flags = [part for name, value in KEEP_ALL.items() for part in ("--set", f"{name}={json.dumps(value)}")]
    assert json.loads(run_command("run", "what-if", yard.run.pk, *flags)) == other
    page = reader.get(f"/runs/{yard.run.pk}/what-if/", {"preset": "dr_grpo", "iteration": "1"})
    assert page.status_code == 200
    assert f"{one['own']['tokens']:,}".replace(",", "\u202f") in page.content.decode()
    assert "No group has finished" in reader.get(f"/runs/{yard.run.pk}/what-if/?iteration=9").content.decode()
    missing = reader.post(f"{url}?iteration=9", '{"settings": {}}', content_type="application/json")
    assert missing.status_code == 404
