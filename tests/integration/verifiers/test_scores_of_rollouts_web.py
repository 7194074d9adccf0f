"""Verifier scores of a rollout on its page, on its group's page and in the API."""

from __future__ import annotations

import pytest
from django.test import Client

from tests.builders.web.evaluation_builders import rollout, scored
from tests.builders.web.event_builders import Stream, ref
from tests.builders.web.html_regions import inner_html
from tests.builders.web.page_builders import make_dataset
from tests.builders.web.web_builders import launched, make_user, post
from webapp.core.contexts.frame import group_url, trajectory_url
from webapp.core.permissions import Role
from webapp.models import Trajectory

pytestmark = pytest.mark.django_db


def test_pages_and_api_show_the_verifier_scores_of_rollouts() -> None:
    _, (task, *_) = make_dataset()
    source, claim = launched()
    stream = Stream(epoch=claim.epoch)
    stream.started()
    keys = [ref(0, task.key, index, phase="eval:heldout") for index in range(3)]
    for key in keys:
        rollout(stream, key, 1, key["index"] == 0, "a")
    post(claim, stream)
    first = scored(source, task, {0: 0.75, 1: None}, epoch=claim.epoch)
    second = scored(source, task, {0: 0.25}, epoch=claim.epoch)
    other = scored(source, task, {1: 0.5}, epoch=claim.epoch + 1)
    client = Client()
    client.force_login(make_user("reader", Role.VIEWER))

    def shown(index: int) -> str:
        page = client.get(trajectory_url(source.pk, "eval:heldout", 0, task.key, index))
        return inner_html(page.content.decode(), "scores")

    def given(index: int) -> list[tuple[int, float | None]]:
        trajectory = Trajectory.objects.get(run=source, index=index)
        scores = client.get(f"/api/v1/trajectories/{trajectory.pk}").json()["scores"]
        return [(score["run_id"], score["p_yes"]) for score in scores]

    assert shown(0).index("0.750") < shown(0).index("0.250")
    assert f"run {second.pk}" in shown(0)
    assert "no answer" in shown(1)
    assert "0.500" not in shown(1)
    assert [given(index) for index in range(3)] == [
        [(first.pk, 0.75), (second.pk, 0.25)], [(first.pk, None)], [],
    ]  # fmt: skip
    group = client.get(group_url(source.pk, "eval:heldout", 0, task.key)).content.decode()
    assert group.count("P(YES)") == 2
    assert f"run {other.pk}" not in group
