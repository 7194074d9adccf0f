"""The page of a collection or evaluation: its progress over all attempts, what ended it, how to go on."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from tests.builders.event_builders import Stream, ref
from tests.builders.html_regions import inner_html
from tests.builders.web_builders import launched, make_user, post, relaunched
from webapp.contexts.run.policy_label import policy_label
from webapp.live.fragments import Subscription, snapshot
from webapp.models import Dataset, Run
from webapp.permissions import Role
from webapp.services.access import endpoints
from webapp.services.run import runs

pytestmark = pytest.mark.django_db
STATE = {
    "graded": 30, "solved": 12, "lost": 2, "running": 8, "grading": 3, "steps": 300, "prompt_tokens": 9000,
    "generated_tokens": 40_000, "per_hour": 1200.0, "seconds_left": 96.0, "cost": 1.25,
}  # fmt: skip
ENDPOINT = {
    "policy.type": "endpoint", "policy.endpoint": "lab", "policy.model": "qwen-coder",
    "policy.input_price": 1, "policy.output_price": 2, "policy.spend_limit": 5,
}  # fmt: skip


@pytest.fixture
def operator(client: Client) -> Client:
    client.force_login(make_user("olga", Role.OPERATOR))
    return client


def made(recipe: str = "collect", **overrides: Any) -> Run:
    Dataset.objects.get_or_create(name="tasks")
    endpoints.save(name="lab", address="https://lab.example/v1")
    return runs.create(recipe=recipe, overrides={"dataset.name": "tasks", **ENDPOINT, **overrides})


def begun(run: Run) -> tuple[Run, Any, Stream]:
    run, claim = launched(run)
    stream = Stream()
    stream.add("run_started", host="h", pid=1, rollouts_kept=0, total_iterations=int(run.kind == "rollout"))
    post(claim, stream)
    return run, claim, stream


def going(run: Run, done: int = 32, total: int = 64, **state: Any) -> tuple[Run, Any, Stream]:
    run, claim, stream = begun(run)
    stream.add("run_progress", message="rollouts", done=done, total=total, collection=STATE | state)
    post(claim, stream, 1)
    run.refresh_from_db()
    return run, claim, stream


def text_of(client: Client, run: Run, region: str = "run-header") -> str:
    """The words of a live region, white space collapsed."""
    html = inner_html(client.get(f"/runs/{run.pk}/").content.decode(), region)
    return " ".join(re.sub(r"<[^>]+>", " ", html).replace("\u202f", " ").split())


def test_progress_shows_counts_interval_rate_tokens_cost_and_time_left(operator: Client) -> None:
    run, _, _ = going(made())
    text = text_of(operator, run)
    shown = "solved 12 not solved 18 excluded: lost to infrastructure 2 running 8 being graded 3 left 21"
    assert shown in text
    assert "Rollouts 32 of 64" in text
    assert "Solved so far 40.0 % 95 %: 24.6 % – 57.7 %" in text
    assert "about 1 min 36 s left" in text
    assert "Rollouts a minute 20 last ten minutes" in text
    assert "Tokens 40 000 generated in 300 steps" in text
    assert "Cost $1.25 of $5.00" in text
    assert "model qwen-coder at lab" in text


def test_the_live_region_is_the_pages(operator: Client) -> None:
    run, claim, stream = going(made())
    stream.add("run_progress", message="rollouts", done=33, total=64, collection=STATE | {"solved": 13})
    post(claim, stream, 2)
    run.refresh_from_db()
    subscription = Subscription(page="run", run_id=run.pk, target=(), params=(), role=Role.OPERATOR)
    live = snapshot(subscription).html["run-header"]
    assert "33" in text_of(operator, run)
    assert " ".join(live.split()) == " ".join(
        inner_html(operator.get(f"/runs/{run.pk}/").content.decode(), "run-header").split()
    )


def test_a_resumed_collection_says_where(operator: Client) -> None:
    run, claim, stream = going(made(), done=412, total=1000)
    assert "resumed at" not in text_of(operator, run)
    newer = relaunched(run, claim)
    run.refresh_from_db()
    assert "resumed at" not in text_of(operator, run), "the new attempt has yet to look"
    again = Stream(epoch=newer.epoch, first_seq=len(stream.lines) + 1)
    again.add("run_started", host="h", pid=2, rollouts_kept=412, total_iterations=1)
    post(newer, again)
    assert "Rollouts 412 of – resumed at 412" in text_of(operator, run)
    again.add("run_progress", message="rollouts", done=420, total=1000, collection=STATE)
    post(newer, again, 1)
    assert "Rollouts 420 of 1 000 resumed at 412 of 1 000" in text_of(operator, run)


def stopped(run: Run, **summary: Any) -> Run:
    run, claim, stream = going(run)
    reason = "the run has spent $5.0010 of policy.spend_limit $5"
    stream.add("run_finished", state="stopped", reason=reason, summary=summary)
    post(claim, stream, 2)
    run.refresh_from_db()
    return run


def test_a_spend_limit_is_named_with_the_way_to_go_on(operator: Client) -> None:
    run = stopped(made(), stopped_by="spend_limit")
    text = text_of(operator, run)
    assert "Stopped at its spend limit. The run has spent $5.0010 of policy.spend_limit $5." in text
    assert "Resume" not in text
    page = operator.get(f"/runs/{run.pk}/").content.decode()
    address = re.search(r'href="(/runs/new/\?clone=[^"#]+)[^"]*">Collect the rest', page)
    assert address is not None
    form = operator.get(address[1].replace("&amp;", "&")).context
    fields = {
        field.key: field for section in (*form["sections"], *form["others"]) for field in section.fields
    }
    assert (fields["collection.skip"].value, fields["collection.skip_runs"].value) == (
        "finished",
        str(run.pk),
    )
    assert fields["policy.spend_limit"].value == "5.0"


def test_any_other_stop_can_be_resumed(operator: Client) -> None:
    text = text_of(operator, stopped(made()))
    assert "spend limit." not in text
    assert "Resume where it stopped" in text
    assert re.search(r"Rollouts a minute [\d ]+ on average", text)


def test_an_evaluation_at_its_spend_limit_is_repeated_as_a_whole(operator: Client) -> None:
    run = stopped(made("quickstart-evaluate"), stopped_by="spend_limit")
    page = operator.get(f"/runs/{run.pk}/").content.decode()
    assert f'href="/runs/new/?clone={run.pk}#s-policy.spend_limit">Evaluate again' in page


def test_before_the_first_rollout_the_page_says_what_it_waits_for(operator: Client) -> None:
    draft = made()
    assert "Nothing was collected yet: start the run." in text_of(operator, draft)
    assert "Rollouts 0 of –" in text_of(operator, draft)
    assert "Export" not in text_of(operator, draft)
    waiting, _, _ = begun(made())
    assert "The first rollouts appear here" in text_of(operator, waiting)


def test_results_are_exported_as_soon_as_there_are_some(operator: Client) -> None:
    run, claim, stream = going(made())
    stream.trajectory(ref(0, "a", 0), reward=1.0)
    post(claim, stream, 2)
    page = operator.get(f"/runs/{run.pk}/").content.decode()
    header = inner_html(page, "run-header")
    addresses = re.findall(r'href="([^"]+)"', header[header.index("Export") :])
    exports = [address for address in addresses if str(run.pk) in address and "new" not in address]
    assert len(exports) == 4
    for address in exports:
        assert operator.get(address).status_code == 200, address


def test_an_evaluation_shows_partial_numbers_of_tasks_that_have_ended(operator: Client) -> None:
    run, claim, stream = going(made("quickstart-evaluate", **{"rollout.group_size": 2}))
    for task, rewards in {"a": (1.0, 0.0), "b": (1.0, 1.0), "c": (1.0,)}.items():
        for index, reward in enumerate(rewards):
            stream.trajectory(ref(0, task, index, phase="eval:heldout"), reward=reward)
    post(claim, stream, 2)
    text = text_of(operator, run, "run-evaluations")
    assert "partial over 2 ended tasks · report 75.0 %" in text
    tab = operator.get(f"/runs/{run.pk}/?tab=evaluation").content.decode()
    assert "partial" in inner_html(tab, "run-panel")
    assert "@2 100.0" in inner_html(tab, "run-panel")
    before = len(stream.lines)
    stream.evaluation(0)
    post(claim, stream, before)
    assert "partial" not in text_of(operator, run, "run-evaluations")


def test_lists_name_the_model(operator: Client) -> None:
    made()
    runs.create(recipe="collect", overrides={"dataset.name": "tasks", "policy.type": "noop"})
    listed = operator.get("/runs/").content.decode()
    assert "qwen-coder at lab" in listed
    assert ">no-op</td>" in listed


@pytest.mark.parametrize(
    ("policy", "label"),
    [
        (None, ""),
        ({}, ""),
        ({"type": "endpoint", "endpoint": "lab", "model": "qwen-coder"}, "qwen-coder at lab"),
        ({"type": "endpoint"}, "endpoint"),
        ({"type": "transformer"}, "transformer"),
        (
            {"type": "transformer", "checkpoint": "builtin:quickstart", "engine": "vllm"},
            "builtin:quickstart, vLLM",
        ),
        ({"type": "oracle"}, "oracle"),
    ],
)
def test_policies_of_every_version_have_a_label(policy: dict[str, Any] | None, label: str) -> None:
    assert policy_label(policy) == label
