"""``manage.py collect``: which run it makes, what it leaves out, and what it prints about it."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import Client

from tests.builders.event_builders import Stream
from tests.builders.web_builders import launched, make_user, post
from webapp.management.commands._runs import describe
from webapp.models import Dataset, Experiment, Run, Task
from webapp.permissions import Role
from webapp.services.access import endpoints
from webapp.services.run import attempts, runs

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def dataset() -> Dataset:
    made = Dataset.objects.create(name="tasks")
    Task.objects.create(dataset=made, key="a", instance_id="a", split="train", image="local:a")
    return made


def collect(*arguments: str) -> tuple[Run, str]:
    out = StringIO()
    call_command("collect", "tasks", *arguments, stdout=out)
    return Run.objects.latest("pk"), out.getvalue()


def test_the_run_has_what_was_asked_for() -> None:
    run, out = collect(
        *("--model", "builtin:quickstart", "--samples", "4", "--concurrency", "16", "--temperature", "0.5"),
        *("--start", "10", "--limit", "20", "--shuffle", "--split", "heldout"),
        *("--set", "seed=7", "--set", "collection.retry_temperatures=[0.1, 0.2]", "--experiment", "first"),
    )
    config = run.config
    assert (run.kind, run.state, run.recipe) == ("rollout", "queued", "collect")
    assert str(run.experiment) == "first"
    assert config["policy"]["checkpoint"] == "builtin:quickstart"
    assert config["policy"]["temperature"] == 0.5
    assert (config["rollout"]["group_size"], config["rollout"]["max_concurrent"]) == (4, 16)
    dataset = {name: config["dataset"][name] for name in ("name", "split", "limit")}
    assert dataset == {"name": "tasks", "split": "heldout", "limit": 20}
    found = {name: config["collection"][name] for name in ("start_index", "shuffle", "skip", "skip_runs")}
    assert found == {"start_index": 10, "shuffle": True, "skip": "none", "skip_runs": []}
    assert config["collection"]["retry_temperatures"] == [0.1, 0.2]
    assert (config["seed"], config["sandbox"]["backend"]) == (7, "local")
    assert f"/runs/{run.pk}/" in out
    assert f"export_predictions {run.pk}" in out


def test_only_datasets_of_local_images_use_local_sandboxes(dataset: Dataset) -> None:
    Task.objects.create(dataset=dataset, key="b", instance_id="b", split="train", image="python:3.11")
    assert collect("--model", "oracle")[0].config["sandbox"]["backend"] == "docker"


def test_scripts_are_policies_of_their_own() -> None:
    assert collect("--model", "oracle")[0].config["policy"] == {"type": "oracle"}
    assert collect("--model", "noop")[0].config["policy"] == {"type": "noop"}


def test_a_temperature_without_effect_is_refused() -> None:
    with pytest.raises(CommandError, match=r"policy\.temperature"):
        collect("--model", "oracle", "--temperature", "0.5")


def begun(run: Run) -> Run:
    """The run after its process has written its first event."""
    claim = attempts.claim_launch(run_id=run.pk)
    assert claim is not None
    stream = Stream()
    stream.add("run_started", host="h", pid=1, rollouts_kept=0)
    post(claim, stream)
    return run


def test_skipping_names_the_earlier_collections_of_this_model_on_this_dataset() -> None:
    first, out = collect("--model", "oracle", "--skip", "solved")
    assert first.config["collection"]["skip"] == "none"
    assert "nothing is left out" in out
    begun(first)
    second = begun(collect("--model", "oracle", "--samples", "3")[0])
    begun(collect("--model", "noop")[0])
    collect("--model", "oracle")  # has not begun
    Dataset.objects.create(name="other")
    call_command("collect", "other", "--model", "oracle", stdout=StringIO())
    begun(Run.objects.latest("pk"))
    third, out = collect("--model", "oracle", "--skip", "solved")
    assert third.config["collection"]["skip"] == "solved"
    assert third.config["collection"]["skip_runs"] == [str(first.pk), str(second.pk)]
    assert f"solved in run {first.pk}, {second.pk}: left out" in out


def test_wrong_choices_are_explained() -> None:
    with pytest.raises(CommandError, match=r"rollout\.group_size"):
        collect("--model", "oracle", "--samples", "0")
    with pytest.raises(CommandError, match="dataset 'absent' is not here"):
        call_command("collect", "absent", "--model", "oracle", stdout=StringIO())


def test_progress_is_described_with_rate_losses_time_left_and_cost() -> None:
    overrides = {"dataset.name": "tasks", "policy": {"type": "oracle"}}
    run, claim = launched(runs.create(recipe="collect", overrides=overrides))
    stream = Stream()
    stream.add("run_started", host="h", pid=1, rollouts_kept=0)
    state: dict[str, float | None] = {
        "graded": 30, "solved": 12, "lost": 2, "running": 8, "grading": 3, "steps": 300, "cost": 1.25,
        "prompt_tokens": 9000, "generated_tokens": 40_000, "per_hour": 1200.0, "seconds_left": 96.0,
    }  # fmt: skip
    stream.add("run_progress", message="rollouts", done=32, total=64, collection=state)
    post(claim, stream)
    run.refresh_from_db()
    assert (
        "rollouts 32/64 · 12 of 30 solved · 2 lost to infrastructure · 1,200 an hour · 0:01:36 left · "
        "1.25 US dollars" in describe(run)
    )
    state |= {"lost": 0, "per_hour": None, "seconds_left": None, "cost": None}
    stream.add("run_progress", message="rollouts", done=30, total=64, collection=state)
    post(claim, stream, 2)
    run.refresh_from_db()
    assert "rollouts 30/64 · 12 of 30 solved · " in describe(run)
    assert "dollars" not in describe(run)


def test_the_api_creates_and_shows_collections(client: Client) -> None:
    client.force_login(make_user("olga", Role.OPERATOR))
    overrides = {"dataset.name": "tasks", "policy": {"type": "oracle"}, "rollout.group_size": 2}
    body = json.dumps({"recipe": "collect", "overrides": overrides, "start": True})
    made = client.post("/api/v1/runs", body, content_type="application/json")
    assert made.status_code == 201, made.content
    assert made.json()["config"]["policy"] == {"type": "oracle"}
    assert client.get(f"/api/v1/runs/{made.json()['id']}").json()["collection"] == {}


def test_a_model_of_an_endpoint_calls_tools_natively() -> None:
    endpoints.save(name="lab", address="http://127.0.0.1:9/v1", key="secret-key")
    run, out = collect("--model", "org/large", "--endpoint", "lab", "--temperature", "0.7")
    policy = run.config["policy"]
    assert (policy["type"], policy["endpoint"], policy["model"]) == ("endpoint", "lab", "org/large")
    assert (policy["temperature"], run.config["agent"]["tool_format"]) == (0.7, "native")
    assert "secret-key" not in out + json.dumps(run.config)
    with pytest.raises(CommandError, match="policy.endpoint"):
        collect("--model", "org/large", "--endpoint", "absent")


@pytest.mark.parametrize("command", [("collect", "tasks", "--model", "oracle"), ("launch", "quickstart")])
def test_a_run_that_is_refused_leaves_no_experiment(command: tuple[str, ...]) -> None:
    with pytest.raises(CommandError, match="seed"):
        call_command(*command, "--experiment", "never", "--set", "seed=-1")
    assert not Experiment.objects.filter(name="never").exists()
