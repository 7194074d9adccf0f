"""Plans through the API and ``trainyard plan``."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client

from engine.config.recipes import resolve
from engine.planning import plan_run, to_json
from tests.builders.commands import CommandFailedError, command_result, run_command
from tests.integration.access.test_api import API, client_of, send
from webapp.core.permissions import Role

pytestmark = pytest.mark.django_db


def test_a_viewer_reads_the_plan_of_a_recipe_with_overrides() -> None:
    body: dict[str, Any] = {
        "recipe": "deepswe-32b",
        "overrides": {"trainer.iterations": 10},
        "gpus": "64xH100",
        "assumptions": {"mfu": 0.4},
    }
    answer = send(client_of(Role.VIEWER), "/plans", body)
    assert answer.status_code == 200
    plan = answer.json()
    assert (plan["iterations"], plan["hardware"]["count"], plan["fits"]) == (10, 64, True)
    assert plan["assumptions"]["mfu"] == 0.4
    assert send(client_of(None), "/plans", body).status_code == 403
    assert Client().post(API + "/plans", json.dumps(body), content_type="application/json").status_code == 401


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"recipe": "deepswe-32b", "gpus": "8xV100"}, "known names: GB200"),
        ({"recipe": "deepswe-32b", "assumptions": {"speed": 1}}, "unknown assumption 'speed'"),
        ({"recipe": "quickstart-oracle"}, "only runs of kind 'train' can be planned"),
        (
            {"recipe": "deepswe-32b", "overrides": {"policy.checkpoint": "/etc"}},
            "no shape of '/etc' is known",
        ),
        (
            {"recipe": "deepswe-32b", "overrides": {"rollout.group_size": 10**400}},
            "rollout.group_size: expected a number between ±9,007",
        ),
        ({"recipe": "deepswe-32b", "gpus": f"{10**400}xH100"}, "unknown GPUs"),
    ],
)
def test_refused_plans_report_the_reason(body: dict[str, Any], message: str) -> None:
    answer = send(client_of(Role.VIEWER), "/plans", body)
    assert answer.status_code == 422
    assert message in answer.json()["detail"]


def test_plan_command_prints_the_planners_result() -> None:
    assert json.loads(run_command("plan", "deepswe-32b", "--json")) == json.loads(
        json.dumps(to_json(plan_run(resolve("deepswe-32b"))))
    )
    result = command_result("plan", "deepswe-32b", "--gpus", "8xH100", "--set", "seed=3")
    assert result.status == 1
    assert "the run needs 64 GPUs and there are 8" in result.output
    with pytest.raises(CommandFailedError, match="unknown GPUs 'many'"):
        run_command("plan", "deepswe-32b", "--gpus", "many")
