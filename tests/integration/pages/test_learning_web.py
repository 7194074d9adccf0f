"""Stored trajectories for fine-tuning runs: selection, counts, and the file for the engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from engine.config.learning.fine_tuning import TrajectoryQuery
from engine.errors import ConfigError
from engine.events.stored_trajectories import TRAJECTORIES_FILE, read_trajectories
from engine.events.token_block import decode
from engine.types import RunState, TerminationReason, Verdict
from tests.builders.commands import CommandFailedError, run_command
from tests.builders.web.event_builders import TOKENS, Stream
from tests.builders.web.page_builders import make_dataset
from tests.builders.web.web_builders import launched, make_user, post
from webapp.core.permissions import Role
from webapp.models import Run, Task, Trajectory
from webapp.rollouts.selectors import learning
from webapp.runs.selectors.folders import run_folder
from webapp.runs.services import attempts, runs
from workers import lifecycle, rundir

pytestmark = pytest.mark.django_db


def ref(task: str, index: int, phase: str = "train") -> dict[str, Any]:
    return {"iteration": 0, "phase": phase, "task_id": task, "index": index}


@pytest.fixture
def run() -> Run:
    """Run with eight finished rollouts of two tasks: five passed, two failed, one of an evaluation."""
    _, tasks = make_dataset(tasks=2)
    source, claim = launched()
    stream = Stream()
    stream.started()
    first, second = (task.key for task in tasks)
    for index, (task, reward, steps) in enumerate(
        [(first, 1.0, 2), (first, 1.0, 3), (first, 0.0, 2), (second, 1.0, 4), (second, 1.0, 2)]
    ):
        stream.trajectory(ref(task, index), steps=steps, reward=reward)
    stream.trajectory(ref(second, 7), reward=None, termination="env_error")
    stream.trajectory(ref(second, 8), reward=1.0, termination="max_steps")
    stream.trajectory(ref(first, 0, "eval:heldout"), reward=1.0)
    stream.trajectory(ref(first, 9), finish=False)
    post(claim, stream)
    for row in Trajectory.objects.filter(run=source, state=Trajectory.State.FINISHED):
        row.patch_hash = f"{row.index:016x}"
        row.generated_tokens = 100 + row.num_steps
        row.save()
    return source


def chosen(**query: Any) -> list[tuple[str, int]]:
    ids = learning.choose(TrajectoryQuery(**query), seed=0).ids
    rows = Trajectory.objects.in_bulk(ids)
    return sorted((rows[pk].task_key[-1], rows[pk].index) for pk in ids)


PASSED = [("0", 0), ("0", 1), ("1", 3), ("1", 4), ("1", 8)]


QUERIES: tuple[tuple[dict[str, Any], list[tuple[str, int]]], ...] = (
    ({}, PASSED),
    ({"runs": (10**9,)}, []),
    ({"dataset": "quickstart"}, PASSED),
    ({"dataset": "other"}, []),
    ({"splits": ("train",)}, PASSED),
    ({"splits": ("heldout",)}, []),
    ({"phase": "eval:heldout"}, [("0", 0)]),
    ({"models": ("builtin:quickstart",)}, PASSED),
    ({"models": ("gpt",)}, []),
    ({"verdicts": (Verdict.FAILED,)}, [("0", 2)]),
    ({"verdicts": ()}, sorted([*PASSED, ("0", 2)])),  # not the one without a verdict
    ({"terminations": (TerminationReason.MAX_STEPS,)}, [("1", 8)]),
    ({"verdicts": (), "reward_max": 0.5}, [("0", 2)]),
    ({"reward_min": 0.5, "steps_min": 3}, [("0", 1), ("1", 3)]),
    ({"steps_max": 2}, [("0", 0), ("1", 4), ("1", 8)]),
    ({"tokens_min": 103, "tokens_max": 103}, [("0", 1)]),
    ({"prefer": "shortest", "per_task": 1, "terminations": ("submitted",)}, [("0", 0), ("1", 4)]),
    ({"prefer": "shortest", "steps_min": 3, "limit": 1}, [("0", 1)]),
    ({"limit": 2, "terminations": ("submitted",), "prefer": "shortest"}, [("0", 0), ("1", 4)]),
)


@pytest.mark.usefixtures("run")
def test_query_selects_trajectories_by_its_settings() -> None:
    for query, expected in QUERIES:
        assert chosen(**query) == expected, query


def test_oracle_trajectories_are_selected_only_by_run_number(run: Run) -> None:
    Run.objects.filter(pk=run.pk).update(config={**run.config, "policy": {"type": "oracle"}})
    assert chosen() == []
    assert chosen(runs=(run.pk,)) == PASSED


def test_held_out_tasks_are_left_out_by_default(run: Run) -> None:
    Task.objects.filter(key__endswith="1").update(split="heldout")
    assert chosen() == PASSED[:2]
    assert chosen(splits=("train", "heldout")) == PASSED


def test_equal_patches_of_a_task_count_once_unless_they_are_missing(run: Run) -> None:
    Trajectory.objects.filter(run=run).update(patch_hash="same")
    assert [task for task, _ in chosen()] == ["0", "1"]
    assert chosen(distinct_patches=False) == PASSED
    choice = learning.choose(TrajectoryQuery(), seed=0)
    assert (choice.matching, choice.duplicates, len(choice.ids)) == (5, 3, 2)
    Trajectory.objects.filter(run=run).update(patch_hash="")
    assert chosen() == PASSED


def test_imported_trajectories_with_uncounted_tokens_are_not_the_shortest(run: Run) -> None:
    Trajectory.objects.filter(run=run, index__in=(0, 3)).update(generated_tokens=0)
    assert chosen(prefer="shortest", per_task=1, terminations=("submitted",)) == [("0", 1), ("1", 4)]
    assert chosen(tokens_max=10**6) == [("0", 1), ("1", 4), ("1", 8)]
    assert chosen(tokens_min=0) == [("0", 1), ("1", 4), ("1", 8)]
    Trajectory.objects.filter(run=run).update(generated_tokens=0)
    assert chosen(prefer="shortest", per_task=1, terminations=("submitted",)) == [("0", 0), ("1", 4)]


@pytest.mark.usefixtures("run")
def test_random_selection_depends_only_on_the_seed() -> None:
    query = TrajectoryQuery(limit=2)
    draws = [learning.choose(query, seed=seed).ids for seed in range(20)]
    assert draws == [learning.choose(query, seed=seed).ids for seed in range(20)]
    assert len(set(draws)) > 1


def test_selected_trajectories_are_written_completely_and_once(
    run: Run, tmp_path: Path, settings: Any
) -> None:
    settings.TRAINYARD_HOME = str(tmp_path)
    tuned = runs.create(recipe="quickstart-fine-tune", overrides={"trajectories.runs": [run.pk]})
    _, claim = launched(tuned)
    folder = rundir.prepare(claim)
    written = list(read_trajectories(folder / TRAJECTORIES_FILE))
    assert len(written) == 5
    item = next(t for t in written if t.task_id.endswith("0") and len(t.steps) == 3)
    row = Trajectory.objects.get(pk=item.id)
    assert row.task is not None
    assert (item.run, item.model, item.instance_id) == (run.pk, "builtin:quickstart", row.task.instance_id)
    assert item.problem_statement == row.task.problem_statement
    assert item.patch == row.patch
    assert [step.thought for step in item.steps] == [f"look at line {i}" for i in range(3)]
    assert item.steps[0].arguments == {"command": "view", "path": "/testbed/a.py"}
    assert item.tokens is not None
    assert decode(item.tokens.data).ids.tolist() == TOKENS["ids"]
    Trajectory.objects.filter(run=run).update(verdict="failed")
    rundir.prepare(claim)
    assert list(read_trajectories(folder / TRAJECTORIES_FILE)) == written


def test_api_returns_the_selection_of_a_query(run: Run, client: Client) -> None:
    client.force_login(make_user("olga", Role.OPERATOR))

    def asked(**body: Any) -> Any:
        return client.post("/api/v1/trajectories/choose", json.dumps(body), content_type="application/json")

    selection = asked(overrides={"trajectories.per_task": 1}).json()
    assert selection["runs"] == [{"run_id": run.pk, "trajectories": 2}]
    assert (len(selection["ids"]), selection["matching"], selection["over_cap"]) == (2, 5, 3)
    assert asked(overrides={"trajectories.steps_min": "x"}).status_code == 422
    assert "does not train on stored trajectories" in asked(recipe="quickstart").content.decode()


def test_unknown_run_in_a_query_is_refused(run: Run, client: Client) -> None:
    setting, value, unknown = "runs", f"[{run.pk}, 4242]", "4242"
    with pytest.raises(CommandFailedError, match=f"trajectories.{setting}.*'{unknown}'"):
        run_command("trajectories", "count", "--set", f"trajectories.{setting}={value}")
    overrides = {f"trajectories.{setting}": json.loads(value)}
    tuned = runs.create(recipe="quickstart-fine-tune", overrides=overrides)
    with pytest.raises(ConfigError, match=unknown):
        runs.start(run=tuned)
    client.force_login(make_user("olga", Role.OPERATOR))
    body = json.dumps({"overrides": overrides})
    answer = client.post("/api/v1/trajectories/choose", body, content_type="application/json")
    assert answer.status_code == 422
    assert unknown in answer.content.decode()


def test_slow_launch_sends_heartbeats_and_ends_when_it_is_replaced(
    run: Run, tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.TRAINYARD_HOME = str(tmp_path)
    monkeypatch.setattr("webapp.runs.services.learning._REPORT_EVERY_S", 0.0)
    tuned = runs.create(recipe="quickstart-fine-tune", overrides={"trajectories.runs": [run.pk]})
    _, claim = launched(tuned)
    Run.objects.filter(pk=tuned.pk).update(heartbeat_at=None)
    path = run_folder(tuned.pk) / TRAJECTORIES_FILE
    heartbeats: list[Any] = []

    def slowly(ids: Any) -> Any:
        for trajectory in stored(ids):
            heartbeats.append(Run.objects.get(pk=tuned.pk).heartbeat_at)
            yield trajectory

    stored = learning.stored
    monkeypatch.setattr(learning, "stored", slowly)
    rundir.prepare(claim)
    assert len(heartbeats) == 5
    assert None not in heartbeats
    assert len(set(heartbeats)) > 2
    path.unlink()

    def replaced(ids: Any) -> Any:
        yield from stored(ids)
        monkeypatch.setattr(learning, "stored", stored)
        newer = attempts.claim_relaunch(run_id=tuned.pk, epoch=claim.epoch, reason="slow")
        assert newer is not None
        rundir.prepare(newer)
        path.with_name("first").hardlink_to(path)

    monkeypatch.setattr(learning, "stored", replaced)
    lifecycle.start(claim)
    tuned.refresh_from_db()
    assert tuned.state == RunState.STARTING
    assert path.samefile(path.with_name("first"))
    assert len(list(read_trajectories(path))) == 5
    assert not list(path.parent.glob("*.draft"))
    assert not (path.parent / "engine.pid").exists()


def test_run_stopped_while_its_launch_is_prepared_ends_without_a_file(
    run: Run, tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.TRAINYARD_HOME = str(tmp_path)
    monkeypatch.setattr("webapp.runs.services.learning._REPORT_EVERY_S", 0.0)
    tuned = runs.create(recipe="quickstart-fine-tune", overrides={"trajectories.runs": [run.pk]})
    _, claim = launched(tuned)
    stored, written = learning.stored, []

    def stopped(ids: Any) -> Any:
        runs.stop(run=tuned)
        for trajectory in stored(ids):
            written.append(trajectory)
            yield trajectory

    monkeypatch.setattr(learning, "stored", stopped)
    lifecycle.start(claim)
    tuned.refresh_from_db()
    assert (tuned.state, tuned.reason) == (RunState.STOPPED, "stopped")
    assert len(written) == 1
    assert not list((tmp_path / "runs" / str(tuned.pk)).iterdir())


def test_query_without_matches_is_refused_before_the_start(run: Run) -> None:
    tuned = runs.create(
        recipe="quickstart-fine-tune",
        overrides={"trajectories.runs": [run.pk], "trajectories.reward_min": 2.0},
    )
    with pytest.raises(ConfigError, match="chooses no stored trajectory"):
        runs.start(run=tuned)
    tuned.refresh_from_db()
    assert tuned.state == RunState.DRAFT


def test_unwritable_trajectory_file_fails_the_run_with_the_reason(
    run: Run, tmp_path: Path, settings: Any
) -> None:
    settings.TRAINYARD_HOME = str(tmp_path)
    tuned = runs.create(recipe="quickstart-fine-tune", overrides={"trajectories.runs": [run.pk]})
    run_folder(tuned.pk).parent.mkdir(parents=True)
    run_folder(tuned.pk).write_text("in the way")
    runs.start(run=tuned)
    assert lifecycle.launch(run_id=tuned.pk)
    tuned.refresh_from_db()
    assert tuned.state == RunState.FAILED
    assert "could not be started" in tuned.reason
