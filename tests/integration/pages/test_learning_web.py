"""Stored trajectories that fine-tuning runs choose: filtered, counted, written for the engine."""

from __future__ import annotations

import gzip
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import Client

from engine.config.fine_tuning import ConversationConfig, TrajectoryQuery
from engine.errors import ConfigError
from engine.events.stored_trajectories import TRAJECTORIES_FILE, read_trajectories, write_trajectories
from engine.events.token_block import decode
from engine.trainer.sft.recorded import ConversationWriter
from engine.types import RunState, TerminationReason, Verdict
from tests.builders.event_builders import TOKENS, Stream
from tests.builders.page_builders import make_dataset
from tests.builders.web_builders import launched, make_user, post
from webapp.models import Run, Task, Trajectory
from webapp.permissions import Role
from webapp.selectors.rollout import learning
from webapp.selectors.run.folders import run_folder
from webapp.services.run import attempts, runs
from workers import lifecycle, rundir

pytestmark = pytest.mark.django_db


def ref(task: str, index: int, phase: str = "train") -> dict[str, Any]:
    return {"iteration": 0, "phase": phase, "task_id": task, "index": index}


@pytest.fixture
def run() -> Run:
    """A run with eight finished rollouts of two tasks: five passed, two failed, one of an evaluation."""
    _, tasks = make_dataset(tasks=2)
    found, claim = launched()
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
    for row in Trajectory.objects.filter(run=found, state=Trajectory.State.FINISHED):
        row.patch_hash = f"{row.index:016x}"
        row.generated_tokens = 100 + row.num_steps
        row.save()
    return found


def chosen(**query: Any) -> list[tuple[str, int]]:
    ids = learning.choose(TrajectoryQuery(**query), seed=0).ids
    rows = Trajectory.objects.in_bulk(ids)
    return sorted((rows[pk].task_key[-1], rows[pk].index) for pk in ids)


PASSED = [("0", 0), ("0", 1), ("1", 3), ("1", 4), ("1", 8)]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
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
        ({"verdicts": ()}, sorted([*PASSED, ("0", 2), ("1", 7)])),
        ({"terminations": (TerminationReason.MAX_STEPS,)}, [("1", 8)]),
        ({"verdicts": (), "reward_max": 0.5}, [("0", 2)]),
        ({"reward_min": 0.5, "steps_min": 3}, [("0", 1), ("1", 3)]),
        ({"steps_max": 2}, [("0", 0), ("1", 4), ("1", 8)]),
        ({"tokens_min": 103, "tokens_max": 103}, [("0", 1)]),
        ({"prefer": "shortest", "per_task": 1, "terminations": ("submitted",)}, [("0", 0), ("1", 4)]),
        ({"prefer": "shortest", "steps_min": 3, "limit": 1}, [("0", 1)]),
        ({"limit": 2, "terminations": ("submitted",), "prefer": "shortest"}, [("0", 0), ("1", 4)]),
    ],
)
@pytest.mark.usefixtures("run")
def test_a_query_chooses_what_its_settings_say(
    query: dict[str, Any], expected: list[tuple[str, int]]
) -> None:
    assert chosen(**query) == expected


def test_answers_that_an_oracle_played_are_chosen_only_by_the_number_of_the_run(run: Run) -> None:
    Run.objects.filter(pk=run.pk).update(config={**run.config, "policy": {"type": "oracle"}})
    assert chosen() == []
    assert chosen(runs=(run.pk,)) == PASSED


def test_held_out_tasks_are_left_out_by_default(run: Run) -> None:
    Task.objects.filter(key__endswith="1").update(split="heldout")
    assert chosen() == PASSED[:2]
    assert chosen(splits=("train", "heldout")) == PASSED


def test_equal_patches_of_a_task_count_once_and_missing_ones_never_do(run: Run) -> None:
    Trajectory.objects.filter(run=run).update(patch_hash="same")
    assert [task for task, _ in chosen()] == ["0", "1"]
    assert chosen(distinct_patches=False) == PASSED
    found = learning.choose(TrajectoryQuery(), seed=0)
    assert (found.matching, found.duplicates, len(found.ids)) == (5, 3, 2)
    Trajectory.objects.filter(run=run).update(patch_hash="")
    assert chosen() == PASSED


def test_imported_trajectories_whose_tokens_were_not_counted_are_not_the_shortest(run: Run) -> None:
    Trajectory.objects.filter(run=run, index__in=(0, 3)).update(generated_tokens=0)
    assert chosen(prefer="shortest", per_task=1, terminations=("submitted",)) == [("0", 1), ("1", 4)]
    assert chosen(tokens_max=10**6) == [("0", 1), ("1", 4), ("1", 8)]
    assert chosen(tokens_min=0) == [("0", 1), ("1", 4), ("1", 8)]
    Trajectory.objects.filter(run=run).update(generated_tokens=0)
    assert chosen(prefer="shortest", per_task=1, terminations=("submitted",)) == [("0", 0), ("1", 4)]


@pytest.mark.usefixtures("run")
def test_a_draw_depends_on_the_seed_alone() -> None:
    query = TrajectoryQuery(limit=2)
    draws = [learning.choose(query, seed=seed).ids for seed in range(20)]
    assert draws == [learning.choose(query, seed=seed).ids for seed in range(20)]
    assert len(set(draws)) > 1


@pytest.mark.usefixtures("run")
def test_counts_are_told_before_a_launch() -> None:
    out = io.StringIO()
    call_command("count_trajectories", "--set", "trajectories.per_task=2", stdout=out)
    found = json.loads(out.getvalue())
    (of_run,) = found.pop("runs").values()
    assert of_run == 4
    assert found.pop("generated_tokens") > 400
    assert found == {
        "trajectories": 4,
        "matching": 5,
        "duplicates": 0,
        "over_cap": 1,
        "over_limit": 0,
        "tasks": 2,
        "with_token_ids": 4,
    }
    with pytest.raises(CommandError, match="does not train on stored trajectories"):
        call_command("count_trajectories", "--recipe", "quickstart")


def test_the_engine_gets_the_chosen_trajectories_whole_and_once(
    run: Run, tmp_path: Path, settings: Any
) -> None:
    settings.TRAINYARD_HOME = str(tmp_path)
    tuned = runs.create(recipe="quickstart-fine-tune", overrides={"trajectories.runs": [run.pk]})
    _, claim = launched(tuned)
    folder = rundir.prepare(claim)
    written = list(read_trajectories(folder / TRAJECTORIES_FILE))
    assert len(written) == 5
    one = next(t for t in written if t.task_id.endswith("0") and len(t.steps) == 3)
    row = Trajectory.objects.get(pk=one.id)
    assert row.task is not None
    assert (one.run, one.model, one.instance_id) == (run.pk, "builtin:quickstart", row.task.instance_id)
    assert one.problem_statement == row.task.problem_statement
    assert one.patch == row.patch
    assert [step.thought for step in one.steps] == [f"look at line {i}" for i in range(3)]
    assert one.steps[0].arguments == {"command": "view", "path": "/testbed/a.py"}
    assert one.tokens is not None
    assert decode(one.tokens.data).ids.tolist() == TOKENS["ids"]
    Trajectory.objects.filter(run=run).update(verdict="failed")
    rundir.prepare(claim)
    assert list(read_trajectories(folder / TRAJECTORIES_FILE)) == written


def test_api_and_form_tell_what_a_query_chooses(run: Run, client: Client) -> None:
    client.force_login(make_user("olga", Role.OPERATOR))

    def asked(**body: Any) -> Any:
        return client.post("/api/v1/trajectories/choose", json.dumps(body), content_type="application/json")

    found = asked(overrides={"trajectories.per_task": 1}).json()
    assert found["runs"] == [{"run_id": run.pk, "trajectories": 2}]
    assert (len(found["ids"]), found["matching"], found["over_cap"]) == (2, 5, 3)
    assert asked(overrides={"trajectories.steps_min": "x"}).status_code == 422
    assert "does not train on stored trajectories" in asked(recipe="quickstart").content.decode()
    shown = client.get("/runs/new/?recipe=quickstart-fine-tune&trajectories.per_task=1").content.decode()
    (box,) = re.findall(r'<section class="chosen.*?</section>', shown, re.DOTALL)
    text = " ".join(re.sub(r"<[^>]+>", " ", box).split())
    assert "2 of 5 that pass the filters, of 2 tasks" in text
    assert "3 left out: beyond the maximum per task" in text
    assert f"run {run.pk} : 2" in text
    wrong = client.get("/runs/new/?recipe=quickstart-fine-tune&trajectories.per_task=0").content.decode()
    assert 'class="chosen' not in wrong
    assert 'class="chosen' not in client.get("/runs/new/?recipe=quickstart").content.decode()


@pytest.mark.usefixtures("run")
def test_chosen_trajectories_can_be_written_to_a_file(tmp_path: Path) -> None:
    out, path = io.StringIO(), tmp_path / "t.jsonl"
    call_command("export_trajectories", "--set", "trajectories.limit=3", "--output", str(path), stdout=out)
    assert "wrote 3 trajectories" in out.getvalue()
    ids = learning.choose(TrajectoryQuery(limit=3), seed=0).ids
    assert [one.id for one in read_trajectories(path)] == list(ids)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(CommandError, match="cannot write"):
        call_command("export_trajectories", "--output", str(tmp_path / "no" / "t.jsonl"))


@pytest.mark.parametrize(
    ("setting", "value", "told"),
    [
        ("runs", "[RUN, 4242]", "4242"),
        ("models", '["builtin:quickstart", "builtin:quickstrat"]', "builtin:quickstrat"),
        ("dataset", "quickstrat", "quickstrat"),
        ("splits", '["train", "trian"]', "trian"),
    ],
)
def test_a_name_that_a_query_misspells_is_refused(
    run: Run, setting: str, value: str, told: str, client: Client
) -> None:
    value = value.replace("RUN", str(run.pk))
    with pytest.raises(CommandError, match=f"trajectories.{setting}.*'{told}'"):
        call_command("count_trajectories", "--set", f"trajectories.{setting}={value}")
    overrides = {f"trajectories.{setting}": json.loads(value) if value.startswith("[") else value}
    tuned = runs.create(recipe="quickstart-fine-tune", overrides=overrides)
    with pytest.raises(ConfigError, match=told):
        runs.start(run=tuned)
    client.force_login(make_user("olga", Role.OPERATOR))
    body = json.dumps({"overrides": overrides})
    answer = client.post("/api/v1/trajectories/choose", body, content_type="application/json")
    assert answer.status_code == 422
    assert told in answer.content.decode()


def test_a_launch_that_writes_for_long_counts_as_alive_and_ends_once_it_is_replaced(
    run: Run, tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.TRAINYARD_HOME = str(tmp_path)
    monkeypatch.setattr("webapp.services.run.learning._REPORT_EVERY_S", 0.0)
    tuned = runs.create(recipe="quickstart-fine-tune", overrides={"trajectories.runs": [run.pk]})
    _, claim = launched(tuned)
    Run.objects.filter(pk=tuned.pk).update(heartbeat_at=None)
    path = run_folder(tuned.pk) / TRAJECTORIES_FILE
    seen: list[Any] = []

    def slowly(ids: Any) -> Any:
        for one in stored(ids):
            seen.append(Run.objects.get(pk=tuned.pk).heartbeat_at)
            yield one

    stored = learning.stored
    monkeypatch.setattr(learning, "stored", slowly)
    rundir.prepare(claim)
    assert len(seen) == 5
    assert None not in seen
    assert len(set(seen)) > 2
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


def test_a_launch_that_chooses_for_long_counts_as_alive(
    run: Run, tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.TRAINYARD_HOME = str(tmp_path)
    monkeypatch.setattr(learning, "_PAGE", 2)
    tuned = runs.create(recipe="quickstart-fine-tune", overrides={"trajectories.runs": [run.pk]})
    _, claim = launched(tuned)
    reported: list[str] = []
    chosen, stored, preparing = learning.choose, learning.stored, attempts.preparing

    def noted(what: str, function: Any) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            reported.append(what)
            return function(*given, **named)

        return call

    monkeypatch.setattr(learning, "choose", noted("choose", chosen))
    monkeypatch.setattr(learning, "stored", noted("read", stored))
    monkeypatch.setattr(attempts, "preparing", noted("alive", preparing))
    folder = rundir.prepare(claim)
    assert reported == ["choose", "alive", "alive", "alive", "read", "alive"]
    assert len(list(read_trajectories(folder / TRAJECTORIES_FILE))) == 5


def test_a_run_that_is_stopped_while_its_launch_is_prepared_ends_without_a_file(
    run: Run, tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.TRAINYARD_HOME = str(tmp_path)
    monkeypatch.setattr("webapp.services.run.learning._REPORT_EVERY_S", 0.0)
    tuned = runs.create(recipe="quickstart-fine-tune", overrides={"trajectories.runs": [run.pk]})
    _, claim = launched(tuned)
    stored, written = learning.stored, []

    def stopped(ids: Any) -> Any:
        runs.stop(run=tuned)
        for one in stored(ids):
            written.append(one)
            yield one

    monkeypatch.setattr(learning, "stored", stopped)
    lifecycle.start(claim)
    tuned.refresh_from_db()
    assert (tuned.state, tuned.reason) == (RunState.STOPPED, "stopped")
    assert len(written) == 1
    assert not list((tmp_path / "runs" / str(tuned.pk)).iterdir())


def test_two_writers_of_one_file_do_not_mix(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    whole = list(learning.stored(learning.choose(TrajectoryQuery(), seed=0).ids))

    def interrupted() -> Any:
        yield whole[0]
        assert write_trajectories(path, whole) == 5
        yield from whole[1:]

    assert write_trajectories(path, interrupted()) == 5
    assert list(read_trajectories(path)) == whole
    assert run.pk in {one.run for one in whole}


def test_a_query_that_chooses_nothing_is_refused_before_anything_starts(run: Run) -> None:
    tuned = runs.create(
        recipe="quickstart-fine-tune",
        overrides={"trajectories.runs": [run.pk], "trajectories.reward_min": 2.0},
    )
    with pytest.raises(ConfigError, match="chooses no stored trajectory"):
        runs.start(run=tuned)
    tuned.refresh_from_db()
    assert tuned.state == RunState.DRAFT


def test_a_file_that_cannot_be_written_fails_the_run_with_the_reason(
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


def test_conversations_of_other_systems_become_trajectories_to_learn_from(tmp_path: Path) -> None:
    """SWE-Gym's completions: imported, chosen and written with the same calls; a bad line is told."""

    def row(name: str, resolved: bool) -> str:
        called = {"name": "execute_bash", "arguments": json.dumps({"command": f"ls {name}"})}
        submit = {"name": "submit", "arguments": "{}"}
        messages = [
            {"role": "system", "content": "You mend code."},
            {
                "role": "user",
                "content": "<uploaded_files>\n/workspace/one__1.0\n</uploaded_files>\nDo:\n"
                f"<pr_description>\n{name} breaks\n</pr_description>\nnow",
            },
            {
                "role": "assistant",
                "content": "I look.",
                "tool_calls": [{"id": "a", "type": "function", "function": called}],
            },
            {"role": "tool", "tool_call_id": "a", "content": "a.py"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "b", "type": "function", "function": submit}],
            },
        ]
        found = {"messages": messages, "tools": []}
        return json.dumps({"instance_id": name, "report": {"resolved": resolved}, "raw_completions": found})

    path = tmp_path / "output.with_completions.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join([row("one", True), "{", row("two", False)]).encode()))
    out, err = io.StringIO(), io.StringIO()
    call_command("import_trajectories", str(path), format="conversations", stdout=out, stderr=err)
    assert "2 trajectories" in out.getvalue()
    assert "line 2: not JSON" in err.getvalue()
    (chosen_one,) = learning.stored(learning.choose(TrajectoryQuery(), seed=0).ids)
    assert (chosen_one.instance_id, chosen_one.problem_statement) == ("one", "one breaks")
    assert (chosen_one.verdict, chosen_one.termination) == ("passed", "submitted")
    assert chosen_one.workdir == "/workspace/one__1.0"
    calls = [(step.tool, step.arguments) for step in chosen_one.steps]
    assert calls == [("execute_bash", {"command": "ls one"}), ("submit", {})]
    assert [step.observation for step in chosen_one.steps] == ["a.py", ""]
    assert chosen_one.steps[0].response.startswith("I look.\n<tool_call>")
    settings_of_rendering = ConversationConfig.model_validate({"prompt": "deepswe_v1", "tools": "r2e_gym"})
    written = ConversationWriter(settings_of_rendering).conversation(chosen_one)
    assert [m["content"] for m in written.messages if m["role"] == "assistant"] == [
        "I look.\n\n<function=execute_bash>\n<parameter=cmd>ls one</parameter>\n</function>",
        "<function=finish>\n<parameter=command>submit</parameter>\n</function>",
    ]
