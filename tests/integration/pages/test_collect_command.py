"""``trainyard collect``: settings of the run, skipped tasks, and printed hints."""

from __future__ import annotations

import json

import pytest

from tests.builders.commands import CommandFailedError, run_command
from tests.builders.web.event_builders import Stream
from tests.builders.web.web_builders import post
from webapp.endpoints.services import endpoints
from webapp.models import Dataset, Experiment, Run, Task
from webapp.runs.services import attempts

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def dataset() -> Dataset:
    tasks = Dataset.objects.create(name="tasks")
    Task.objects.create(dataset=tasks, key="a", instance_id="a", split="train", image="local:a")
    return tasks


def collect(*arguments: str) -> tuple[Run, str]:
    out = run_command("collect", "tasks", *arguments)
    return Run.objects.latest("pk"), out


def test_run_has_the_requested_settings() -> None:
    run, out = collect(
        *("--model", "builtin:quickstart", "--samples", "4", "--concurrency", "16", "--temperature", "0.5"),
        *("--start", "10", "--limit", "20", "--shuffle", "--split", "heldout"),
        *("--set", "agent.max_context=2048", "--set", "agent.max_response=512"),
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
    selection = {name: config["collection"][name] for name in ("start_index", "shuffle", "skip", "skip_runs")}
    assert selection == {"start_index": 10, "shuffle": True, "skip": "none", "skip_runs": []}
    assert config["collection"]["retry_temperatures"] == [0.1, 0.2]
    assert (config["seed"], config["sandbox"]["backend"]) == (7, "local")
    assert f"/runs/{run.pk}/" in out
    assert f"evaluation predictions {run.pk}" in out


def post_start(run: Run) -> Run:
    """Post the first event of a run and return the run."""
    claim = attempts.claim_launch(run_id=run.pk)
    assert claim is not None
    stream = Stream()
    stream.add("run_started", host="h", pid=1, rollouts_kept=0)
    post(claim, stream)
    return run


def test_skipping_uses_earlier_collections_of_the_same_model_and_dataset() -> None:
    first, out = collect("--model", "oracle", "--skip", "solved")
    assert first.config["collection"]["skip"] == "none"
    assert "nothing is left out" in out
    post_start(first)
    second = post_start(collect("--model", "oracle", "--samples", "3")[0])
    post_start(collect("--model", "noop")[0])
    collect("--model", "oracle")  # has not started
    Dataset.objects.create(name="other")
    run_command("collect", "other", "--model", "oracle")
    post_start(Run.objects.latest("pk"))
    third, out = collect("--model", "oracle", "--skip", "solved")
    assert third.config["collection"]["skip"] == "solved"
    assert third.config["collection"]["skip_runs"] == [str(first.pk), str(second.pk)]
    assert f"solved in run {first.pk}, {second.pk}: left out" in out


def test_invalid_settings_are_refused_with_the_reason() -> None:
    with pytest.raises(CommandFailedError, match=r"rollout\.group_size"):
        collect("--model", "oracle", "--samples", "0")
    with pytest.raises(CommandFailedError, match="dataset 'absent' is not here"):
        run_command("collect", "absent", "--model", "oracle")


def test_endpoint_models_use_native_tool_calls() -> None:
    endpoints.save(name="lab", address="http://127.0.0.1:9/v1", key="secret-key")
    run, out = collect("--model", "org/large", "--endpoint", "lab", "--temperature", "0.7")
    policy = run.config["policy"]
    assert (policy["type"], policy["endpoint"], policy["model"]) == ("endpoint", "lab", "org/large")
    assert (policy["temperature"], run.config["agent"]["tool_format"]) == (0.7, "native")
    assert "secret-key" not in out + json.dumps(run.config)
    with pytest.raises(CommandFailedError, match="policy.endpoint"):
        collect("--model", "org/large", "--endpoint", "absent")


@pytest.mark.parametrize(
    "command", [("collect", "tasks", "--model", "oracle"), ("run", "launch", "quickstart")]
)
def test_refused_run_creates_no_experiment(command: tuple[str, ...]) -> None:
    with pytest.raises(CommandFailedError, match="seed"):
        run_command(*command, "--experiment", "never", "--set", "seed=-1")
    assert not Experiment.objects.filter(name="never").exists()
