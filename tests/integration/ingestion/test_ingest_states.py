"""Ingest by run state: fencing of attempts, and removal of rows that a new attempt repeats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from psycopg.errors import UniqueViolation

from engine.errors import ConfigError
from engine.types import RunState
from tests.builders.web.event_builders import Stream, ref
from tests.builders.web.web_builders import launched, make_run, post, relaunched, snapshot
from webapp.core.services.copying import copy_rows
from webapp.ingestion.services import heartbeats, ingest, projections
from webapp.models import (
    Alert,
    Dataset,
    Evaluation,
    Event,
    Group,
    Iteration,
    Run,
    Step,
    Task,
    TestResult,
    TokenBlob,
    Trajectory,
)
from webapp.rollouts.services import store as trajectory_store
from webapp.runs.services import attempts, runs, states

pytestmark = pytest.mark.django_db


def test_an_older_attempt_is_fenced_and_an_unknown_one_refused() -> None:
    run, claim = launched()
    stream = Stream()
    stream.started()
    post(claim, stream)
    newer = attempts.claim_relaunch(run_id=run.pk, epoch=1, reason="test")
    assert newer is not None
    assert newer.epoch == 2
    assert newer.token != claim.token
    stream.add("run_progress", message="zombie", done=1, total=2)
    with pytest.raises(ingest.StaleEpochError) as caught:
        post(claim, stream, 1)
    assert caught.value.epoch == 2
    with pytest.raises(ingest.StaleEpochError):
        post(claim, stream, 0, 1)
    with pytest.raises(ingest.StaleEpochError):
        heartbeats.beat(run_id=run.pk, token=claim.token, epoch=2)
    future = Stream(epoch=3, first_seq=2)
    future.started()
    with pytest.raises(ingest.MalformedError, match="never started"):
        post(newer, future)
    current = Stream(epoch=2, first_seq=2)
    current.started()
    assert post(newer, current).acked_seq == 2


def test_later_attempt_sends_the_remaining_events_of_the_earlier_one() -> None:
    run, claim = launched()
    first = Stream()
    first.started()
    first.iteration(0)
    post(claim, first, 0, 3)
    first.add("run_finished", state="failed")
    newer = relaunched(run, claim)
    second = Stream(epoch=2, first_seq=first.next_seq)
    second.started()
    ingest.ingest(run_id=run.pk, token=newer.token, body=first.body(3) + second.body())
    assert list(Event.objects.filter(run=run).values_list("epoch", flat=True)) == [1] * len(first.lines) + [2]
    assert not Trajectory.objects.filter(run=run).exists()
    run.refresh_from_db()
    assert run.state == "running"
    late = Stream(first_seq=second.next_seq)
    late.add("run_paused")
    with pytest.raises(ingest.MalformedError, match="attempt 1 is over"):
        ingest.ingest(run_id=run.pk, token=newer.token, body=late.body())


def test_a_second_start_of_an_attempt_removes_nothing() -> None:
    run, claim = launched()
    stream = Stream()
    stream.started()
    stream.iteration(0)
    post(claim, stream)
    before = snapshot(run)
    forged = Stream(first_seq=stream.next_seq)
    forged.started()
    for start, stop in ((0, 1), (0, 2)):
        with pytest.raises(ingest.MalformedError, match="run_started must be the first event of attempt 1"):
            post(claim, forged, start, stop)
        forged.add("run_paused")
    assert snapshot(run) == before
    inside = Stream(first_seq=stream.next_seq)
    inside.add("run_paused")
    inside.started()
    with pytest.raises(ingest.MalformedError, match="run_started must be the first event of attempt 1"):
        post(claim, inside)
    assert snapshot(run) == before


def test_completed_records_cannot_be_changed_by_their_own_attempt() -> None:
    run, claim = launched()
    stream = Stream()
    stream.started()
    stream.evaluation(0)
    stream.iteration(0)
    stream.checkpoint(1)
    post(claim, stream)
    before = snapshot(run)
    forged = Stream(first_seq=stream.next_seq)
    forged.add("iteration_started", iteration=0, policy_version=9, task_ids=[])
    forged.trajectory(ref(0, "a", 0), steps=1, reward=0.0)
    forged.trajectory(ref(0, "a", 1), steps=1, finish=False)
    forged.add("iteration_finished", iteration=0, policy_version=9, metrics={})
    forged.add(
        "evaluation_finished", iteration=0, name="heldout", policy_version=9, num_samples=9, num_tasks=9,
        num_solved=0, solve_rate=0.0, interval_low=0.0, interval_high=0.0,
    )  # fmt: skip
    forged.add("checkpoint_saved", iteration=1, policy_version=9, path="/etc/passwd", checksum="")
    for start in range(len(forged.lines)):
        post(claim, forged, start, start + 1)
    after = snapshot(run)
    assert {name for name in before if before[name] != after[name]} == {"run", "Event"}


def test_dataset_name_comes_from_the_config_and_not_from_the_event(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[Any, ...]] = []
    monkeypatch.setattr(projections, "send_on_commit", lambda *arguments: sent.append(arguments))
    run = runs.create(recipe="quickstart-dataset")
    _, claim = launched(run)
    stream = Stream()
    stream.started()
    stream.add("run_finished", state="succeeded", summary={"dataset": "../../../etc"})
    post(claim, stream)
    assert [arguments[1] for arguments in sent] == [run.config["curation"]["output"]]


@pytest.mark.parametrize("state", ["succeeded", "failed", "stopped"])
def test_finished_run_accepts_no_events(state: str) -> None:
    run, claim = launched()
    stream = Stream()
    stream.started()
    stream.iteration(0)
    stream.add("run_finished", state=state)
    post(claim, stream)
    before = snapshot(run)
    more = Stream(first_seq=stream.next_seq)
    more.trajectory(ref(0, "a", 0))
    later = Stream(epoch=2, first_seq=stream.next_seq)
    later.started()
    for late_stream in (more, later, stream):
        with pytest.raises(ingest.RunOverError) as caught:
            post(claim, late_stream)
        assert (caught.value.state, caught.value.acked_seq) == (state, len(stream.lines))
    with pytest.raises(ingest.RunOverError):
        heartbeats.beat(run_id=run.pk, token=claim.token, epoch=1, seq=99)
    assert snapshot(run) == before
    if state != "succeeded":
        runs.resume(run=run)
        with pytest.raises(ingest.RunOverError):
            post(claim, later)


def test_batch_authenticated_before_the_run_ended_or_relaunched_stores_nothing() -> None:
    """The token is checked before the run's row is locked, and the run is checked again under the lock."""
    for end in (True, False):
        run, claim = launched()
        stream = Stream()
        stream.started()
        post(claim, stream)
        stream.trajectory(ref(0, "a", 0))
        assert ingest.authenticate(run_id=run.pk, token=claim.token).epoch == 1
        if end:
            assert states.move(run_id=run.pk, to=RunState.FAILED)
        else:
            relaunched(run, claim)
        before = snapshot(run)
        with pytest.raises(ingest.RunOverError if end else ingest.StaleEpochError):
            ingest.store(run_id=run.pk, lines=parsed_lines(stream), attempt=1)
        assert snapshot(run) == before


def test_events_are_stored_once_by_sequence_number() -> None:
    run, claim = launched()
    stream = Stream()
    stream.started()
    stream.trajectory(ref(0, "a", 0), reward=1.0)
    post(claim, stream)
    forged = Stream()
    forged.started()
    forged.trajectory(ref(0, "a", 0), reward=0.0)
    forged.trajectory(ref(0, "b", 0))
    receipt = post(claim, forged)
    assert (receipt.accepted, receipt.duplicates) == (
        len(forged.lines) - len(stream.lines),
        len(stream.lines),
    )
    assert dict(Trajectory.objects.filter(run=run).values_list("task_key", "reward")) == {"a": 1.0, "b": 1.0}
    numbers = list(Event.objects.filter(run=run).order_by("seq").values_list("epoch", "seq"))
    assert numbers == [(1, seq) for seq in range(1, len(forged.lines) + 1)]
    with pytest.raises(UniqueViolation), transaction.atomic():
        copy_rows(Event, ingest._EVENT_COLUMNS, ingest._event_rows(run.pk, parsed_lines(stream)))


def parsed_lines(stream: Stream) -> list[ingest.ParsedLine]:
    return ingest.parse_lines(stream.lines)


def test_events_after_the_end_of_a_run_store_nothing() -> None:
    run, claim = launched()
    stream = Stream()
    stream.started()
    stream.add("run_finished", state="succeeded")
    stream.trajectory(ref(0, "a", 0))
    with pytest.raises(ingest.MalformedError, match="nothing may follow"):
        post(claim, stream)
    assert not Event.objects.filter(run=run).exists()


def test_run_ended_by_the_server_takes_its_last_events_only_from_its_spool(tmp_path: Any) -> None:
    run, claim = launched()
    stream = Stream()
    stream.started()
    stream.trajectory(ref(0, "a", 0))
    stream.trajectory(ref(0, "a", 1), finish=False)
    post(claim, stream, 0, 1)
    attempts.give_up(run_id=run.pk, epoch=claim.epoch, to=RunState.FAILED, reason="its process fell silent")
    with pytest.raises(ingest.StaleEpochError):
        post(claim, stream, 1)
    path = tmp_path / "events.jsonl"
    path.write_bytes(stream.body())
    assert ingest.ingest_spool(run_id=run.pk, path=path).accepted == len(stream.lines) - 1
    terminations = dict(Trajectory.objects.filter(run=run).values_list("index", "termination"))
    assert terminations == {0: "submitted", 1: "cancelled"}
    stream.add("run_finished", state="succeeded")
    path.write_bytes(stream.body())
    assert ingest.ingest_spool(run_id=run.pk, path=path).accepted == 1
    run.refresh_from_db()
    assert (run.state, run.reason) == ("failed", "its process fell silent")
    stream.trajectory(ref(0, "b", 0))
    path.write_bytes(stream.body())
    with pytest.raises(ingest.MalformedError, match="nothing may follow"):
        ingest.ingest_spool(run_id=run.pk, path=path)


def start_next_attempt(run: Run, claim: attempts.Claim, *, resumed_from: int | None, first_seq: int) -> None:
    newer = relaunched(run, claim)
    stream = Stream(epoch=newer.epoch, first_seq=first_seq)
    stream.started(resumed_from)
    post(newer, stream)


def test_resuming_removes_rows_after_the_checkpoint() -> None:
    run, claim = launched()
    stream = Stream()
    stream.started()
    stream.evaluation(0)
    for index in range(3):
        stream.iteration(index)
        stream.evaluation(index + 1)
        stream.checkpoint(index + 1)
    post(claim, stream)
    start_next_attempt(run, claim, resumed_from=2, first_seq=stream.next_seq)
    assert [i.index for i in Iteration.objects.filter(run=run)] == [0, 1]
    assert [e.iteration for e in Evaluation.objects.filter(run=run)] == [0, 1, 2]
    keys = set(Trajectory.objects.filter(run=run).values_list("phase", "iteration"))
    assert keys == {("train", 0), ("train", 1), ("eval:heldout", 0), ("eval:heldout", 1), ("eval:heldout", 2)}
    assert set(Group.objects.filter(run=run).values_list("phase", "iteration")) == keys
    run.refresh_from_db()
    assert (run.state, run.current_iteration, run.epoch) == ("running", 1, 2)
    assert Event.objects.filter(run=run).count() == stream.next_seq


def test_starting_over_removes_all_rows_but_the_events() -> None:
    run, claim = launched()
    stream = Stream()
    stream.started()
    stream.evaluation(0)
    stream.iteration(0)
    stream.checkpoint(1)
    post(claim, stream)
    start_next_attempt(run, claim, resumed_from=None, first_seq=len(stream.lines) + 1)
    for model in (Iteration, Evaluation, Group, Trajectory):
        assert not model.objects.filter(run=run).exists()
    assert not Step.objects.exists()
    assert not TokenBlob.objects.exists()
    assert not TestResult.objects.exists()


def test_later_attempt_restarts_a_trajectory_under_the_same_id() -> None:
    run, claim = launched()
    stream = Stream()
    stream.started()
    stream.trajectory(ref(0, "a", 0), steps=3)
    post(claim, stream)
    first = Trajectory.objects.get(run=run)
    newer = relaunched(run, claim)
    restarted = Stream(epoch=2, first_seq=stream.next_seq)
    restarted.started(resumed_from=1)
    restarted.trajectory(ref(0, "a", 0), steps=1, reward=0.0, finish=False)
    post(newer, restarted)
    second = Trajectory.objects.get(run=run)
    assert second.pk == first.pk
    assert (second.state, second.reward, second.num_steps, second.verdict) == ("running", None, 1, "")
    assert Step.objects.filter(trajectory=second).count() == 1
    assert not TestResult.objects.filter(trajectory=second).exists()
    assert not TokenBlob.objects.filter(trajectory=second).exists()


def test_retried_rollout_replaces_its_unfinished_record() -> None:
    run, claim = launched()
    stream = Stream()
    stream.started()
    stream.trajectory(ref(0, "a", 0), steps=3, finish=False)
    stream.trajectory(ref(0, "a", 0), steps=1, finish=False)
    for start in range(len(stream.lines)):
        post(claim, stream, start, start + 1)
    assert Trajectory.objects.get(run=run).num_steps == 1
    assert Step.objects.filter(trajectory__run=run).count() == 1


def test_first_terminal_record_of_a_trajectory_is_kept() -> None:
    run, claim = launched()
    stream = Stream()
    stream.started()
    stream.trajectory(ref(0, "a", 0), reward=1.0)
    stream.finished(ref(0, "a", 0), steps=9, reward=0.0)
    post(claim, stream)
    later = Stream(first_seq=stream.next_seq)
    later.finished(ref(0, "a", 0), steps=9, reward=0.0)
    later.step(ref(0, "a", 0), 1, thought="late")
    later.step(ref(0, "a", 0), 7, thought="late")
    post(claim, later)
    trajectory = Trajectory.objects.get(run=run)
    assert (trajectory.reward, trajectory.num_steps) == (1.0, 2)
    assert TestResult.objects.filter(trajectory=trajectory).count() == 2
    assert not Step.objects.filter(thought="late").exists()


def collecting(epoch: int = 1, first_seq: int = 1, kept: int = 0) -> Stream:
    stream = Stream(epoch=epoch, first_seq=first_seq)
    stream.add("run_started", host="h", pid=1, rollouts_kept=kept)
    return stream


def test_attempt_that_keeps_rollouts_removes_only_unfinished_ones() -> None:
    run, claim = launched()
    stream = collecting()
    stream.add("iteration_started", iteration=0, policy_version=0, task_ids=["a", "b"])
    stream.trajectory(ref(0, "a", 0))
    stream.trajectory(ref(0, "a", 1), finish=False)
    stream.trajectory(ref(0, "b", 0), finish=False)
    stream.add("alert", severity="warning", code="infrastructure_rate", message="m", iteration=0)
    post(claim, stream)
    finished = Trajectory.objects.get(run=run, index=0, task_key="a")
    newer = relaunched(run, claim)
    second = collecting(2, stream.next_seq, kept=1)
    post(newer, second)
    assert Trajectory.objects.get(run=run) == finished
    assert Step.objects.filter(trajectory=finished).count() == Step.objects.count() == 2
    assert TestResult.objects.filter(trajectory=finished).exists()
    assert [(g.task_key, g.size, g.num_finished, g.num_solved) for g in Group.objects.filter(run=run)] == [
        ("a", 1, 1, 1)
    ]
    assert [i.index for i in Iteration.objects.filter(run=run)] == [0]
    assert not Alert.objects.filter(run=run, code="infrastructure_rate").exists()
    second.trajectory(ref(0, "a", 1))
    second.trajectory(ref(0, "b", 0), reward=0.0)
    post(newer, second, 1)
    assert Trajectory.objects.filter(run=run, state="finished").count() == 3


def test_replayed_steps_replace_those_of_the_killed_attempt() -> None:
    run, claim = launched()
    stream, key = collecting(), ref(0, "a", 0)
    stream.trajectory(key, steps=3, finish=False)
    post(claim, stream)
    newer = relaunched(run, claim)
    second = collecting(2, stream.next_seq)
    second.add("trajectory_started", ref=key, sandbox_id="s-2")
    for index in range(4):
        sampled = {"tokens": "AAAA", "stopped": True}
        second.step(key, index, replayed=index < 3, sampled=sampled)
    difference = {"step": 1, "field": "observation", "recorded": "0.1s", "found": "0.2s", "is_minor": True}
    replay = {"recorded": 3, "replayed": 3, "differences": [difference]}
    second.finished(key, steps=4, replay=replay)
    post(newer, second)
    trajectory = Trajectory.objects.get(run=run)
    assert (trajectory.num_steps, trajectory.sandbox_id, trajectory.replay) == (4, "s-2", replay)
    assert sorted(Step.objects.values_list("index", flat=True)) == [0, 1, 2, 3]
    stored = Event.objects.filter(run=run, epoch=2, type="step_finished")
    assert [event.payload["replayed"] for event in stored.order_by("seq")] == [True, True, True, False]
    assert not any("sampled" in event.payload for event in stored), "only the spool has what a replay reads"


@pytest.mark.parametrize("apart", [True, False])
def test_lost_rollout_is_replaced_when_its_own_attempt_repeats_it(apart: bool) -> None:
    run, claim = launched()
    stream = collecting()
    stream.trajectory(ref(0, "a", 0), steps=3, reward=None, termination="env_error")
    stream.trajectory(ref(0, "b", 0), steps=3, reward=0.0)
    repeated = len(stream.lines)
    for task in ("a", "b"):
        stream.trajectory(ref(0, task, 0), steps=1)
    if apart:
        post(claim, stream, 0, repeated)
        first = Trajectory.objects.get(run=run, task_key="a")
        post(claim, stream, repeated)
        assert Trajectory.objects.get(run=run, task_key="a").pk == first.pk
    else:
        post(claim, stream)
    trajectories = Trajectory.objects.filter(run=run).order_by("task_key")
    assert [(t.reward, t.num_steps, t.termination) for t in trajectories] == [
        (1.0, 1, "submitted"),
        (0.0, 3, "submitted"),
    ]
    assert [Step.objects.filter(trajectory=t).count() for t in trajectories] == [1, 3]
    assert Group.objects.get(run=run, task_key="a").num_solved == 1


def test_spool_completes_the_record_of_a_rollout_cancelled_with_its_run(tmp_path: Path) -> None:
    run, claim = launched()
    stream = collecting()
    stream.trajectory(ref(0, "a", 0), steps=2, finish=False)
    num_posted = len(stream.lines)
    stream.step(ref(0, "a", 0), 2)
    stream.finished(ref(0, "a", 0), steps=3)
    post(claim, stream, 0, num_posted)
    attempts.give_up(run_id=run.pk, epoch=claim.epoch, to=RunState.FAILED, reason="its process fell silent")
    assert Trajectory.objects.get(run=run).termination == "cancelled"
    path = tmp_path / "events.jsonl"
    path.write_bytes(stream.body())
    ingest.ingest_spool(run_id=run.pk, path=path)
    row = Trajectory.objects.get(run=run)
    assert (row.termination, row.num_steps, row.reward, row.error) == ("submitted", 3, 1.0, "")
    assert Step.objects.filter(trajectory=row).count() == 3


def test_a_second_end_of_a_cancelled_rollout_replaces_the_first() -> None:
    run, claim = launched()
    stream = collecting()
    stream.trajectory(ref(0, "a", 0), reward=0.0, termination="cancelled")
    post(claim, stream)
    assert TestResult.objects.filter(trajectory__run=run).count() == 2
    start = len(stream.lines)
    stream.finished(ref(0, "a", 0), steps=2)
    post(claim, stream, start)
    row = Trajectory.objects.get(run=run)
    assert (row.termination, row.reward) == ("submitted", 1.0)
    assert TestResult.objects.filter(trajectory=row).count() == 2
    assert Step.objects.filter(trajectory=row).count() == 2


def test_collection_state_is_stored_until_the_next_attempt_starts() -> None:
    run, claim = launched()
    stream = collecting()
    state = {
        "graded": 30, "solved": 12, "lost": 2, "running": 8, "grading": 3, "steps": 300, "cost": 1.25,
        "prompt_tokens": 9000, "generated_tokens": 40_000, "per_hour": 1200.0, "seconds_left": 96.0,
        "endings": {"submitted": 20, "max_steps": 10},
    }  # fmt: skip
    later = {"follows": "fine-tuning", "seconds_left": 300.0}
    stream.add("run_progress", message="rollouts", done=32, total=64, collection=state, **later)
    post(claim, stream)
    run.refresh_from_db()
    assert (run.progress_done, run.progress_total) == (32, 64)
    assert run.collection == run.collection | state
    assert (run.progress_follows, run.progress_seconds_left) == ("fine-tuning", 300.0)
    newer = relaunched(run, claim)
    post(newer, collecting(2, stream.next_seq, kept=30))
    run.refresh_from_db()
    assert run.collection == {}
    assert (run.progress_follows, run.progress_seconds_left) == ("", None)


def test_evaluation_tasks_may_come_from_another_dataset() -> None:
    evaluated = Dataset.objects.create(name="other")
    run = make_run(**{"evaluation.dataset": "other"})
    trained = Dataset.objects.get(name="quickstart")
    task = Task.objects.create(dataset=trained, key="a", instance_id="a", split="train")
    other_task = Task.objects.create(dataset=evaluated, key="c", instance_id="c", split="heldout")
    run, claim = launched(run)
    stream = Stream()
    stream.started()
    stream.trajectory(ref(0, "a", 0))
    stream.trajectory(ref(0, "c", 0, phase="eval:heldout"))
    stream.trajectory(ref(0, "a", 0, phase="eval:train"))
    post(claim, stream)
    pairs = Trajectory.objects.filter(run=run).values_list("phase", "task")
    assert set(pairs) == {("train", task.pk), ("eval:heldout", other_task.pk), ("eval:train", task.pk)}


def test_start_requires_the_dataset_of_evaluations() -> None:
    run = make_run(**{"evaluation.dataset": "absent"})
    with pytest.raises(ConfigError, match=r"dataset 'absent' is not here.*evaluation\.dataset"):
        runs.start(run=run)


def test_start_refuses_conversations_longer_than_the_model_allows() -> None:
    run = make_run(**{"agent.max_context": 4096})
    with pytest.raises(ConfigError, match=r"agent\.max_context.*'builtin:quickstart' .* at most 2048 tokens"):
        runs.start(run=run)


def test_groups_count_timed_out_and_cancelled_rollouts_separately() -> None:
    run, claim = launched()
    stream = Stream()
    stream.started()
    for index, (reward, termination) in enumerate([
        (0.0, "rollout_timeout"), (1.0, "env_timeout"), (0.0, "max_steps"), (None, "cancelled"),
    ]):  # fmt: skip
        stream.trajectory(ref(0, "a", index), reward=reward, termination=termination)
    post(claim, stream)
    group = Group.objects.get(run=run)
    assert (group.num_graded, group.num_solved, group.num_cut_short) == (3, 1, 1)
    assert (group.num_finished, group.size, group.num_cancelled) == (3, 4, 1)
    assert group.finished_at is not None
    Trajectory.objects.filter(group=group, index=0).update(verdict="")
    trajectory_store.refresh_groups([group.pk])
    group.refresh_from_db()
    assert (group.num_graded, group.num_cut_short) == (2, 0)


@pytest.mark.parametrize(
    ("recipe", "saves", "expected"),
    [
        ("quickstart", False, "starts over: it had saved nothing"),
        ("quickstart", True, "goes on from the checkpoint after iteration 2"),
        ("quickstart-evaluate", False, "keeps what it had finished"),
    ],
)
def test_alert_of_a_lost_attempt_reports_where_the_next_one_continues(
    recipe: str, saves: bool, expected: str
) -> None:
    Dataset.objects.get_or_create(name="quickstart")
    run, claim = launched(runs.create(recipe=recipe, overrides={}))
    stream = Stream()
    stream.started()
    stream.trajectory(ref(0, "a", 0))
    if saves:
        stream.checkpoint(2)
    post(claim, stream)
    relaunched(run, claim)
    assert run.alerts.get().message == f"Attempt 1 was lost: test. Attempt 2 {expected}."
