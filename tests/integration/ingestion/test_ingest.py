"""Ingest: exactly once, whole batches or nothing, refused input, and replay of the log."""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from engine.evaluation.attempts import is_solved
from engine.tokens import TokenRecord
from engine.types import TerminationReason, Verdict
from tests.builders.web.event_builders import Stream, ref
from tests.builders.web.web_builders import launched, make_run, post, snapshot, stored_log
from webapp.ingestion.services import ingest
from webapp.models import Evaluation, Event, Group, Iteration, Step, TokenBlob, Trajectory

pytestmark = pytest.mark.django_db


def history() -> Stream:
    """Return the events of a small training run with every kind of record."""
    stream = Stream()
    stream.started(total=2)
    stream.evaluation(0)
    stream.checkpoint(0)
    stream.iteration(0)
    stream.checkpoint(1)
    stream.add("alert", severity="warning", code="collapse", message="reward fell", iteration=0)
    stream.add("run_progress", message="collecting", done=1, total=2)
    stream.iteration(1)
    stream.add("engines_reported", iteration=1, queued=2, replicas=[{"name": "engine-0", "state": "ready"}])
    stream.add("run_paused")
    stream.add("run_resumed")
    stream.evaluation(2)
    stream.checkpoint(2)
    stream.trajectory(ref(2, "a", 0), finish=False)
    stream.add("run_finished", state="succeeded", summary={"solve_rate": 0.5})
    return stream


def test_all_events_of_a_run_are_stored_as_rows() -> None:
    run, claim = launched()
    stream = history()
    assert post(claim, stream) == ingest.Receipt(len(stream.lines), len(stream.lines), 0)
    run.refresh_from_db()
    assert (run.state, run.summary, run.current_iteration) == ("succeeded", {"solve_rate": 0.5}, 1)
    first = Iteration.objects.get(run=run, index=0)
    assert first.metrics == {"reward/mean": 0.5}
    assert first.profile == {
        "steps": [4, 4], "thinking": [3.0, 4.0], "generated": [7.0, 7.0], "actions": {"view": 8},
    }  # fmt: skip
    group = Group.objects.get(run=run, iteration=0, task_key="a")
    assert (group.size, group.num_solved, group.num_masked, group.mean_reward) == (2, 1, 1, 0.5)
    loser = Trajectory.objects.get(group=group, index=0)
    assert (loser.reward, loser.advantage, loser.loss_mask, loser.verdict) == (0.0, -0.5, True, "failed")
    assert (loser.prompt, loser.prompt_hash) == ("deepswe_v1", "0123456789abcdef")
    assert (loser.num_steps, loser.num_tests, loser.num_tests_passed) == (2, 2, 1)
    assert [step.thinking_tokens for step in Step.objects.filter(trajectory=loser)] == [3, 4]
    assert TokenBlob.objects.get(trajectory=loser).record == TokenRecord(
        ids=[1, 2, 3], mask=[0, 1, 1], logprobs=[0, -0.5, -0.25], versions=[-1, 0, 0], steps=[-1, 0, 1]
    )
    assert Evaluation.objects.filter(run=run).count() == 2
    reported = Event.objects.get(run=run, type="engines_reported").payload
    assert (reported["queued"], reported["replicas"][0]["name"]) == (2, "engine-0")


@pytest.mark.parametrize("size", [4, 1000])
def test_snapshot_does_not_depend_on_batches_and_equals_a_replay_of_the_log(size: int) -> None:
    run, claim = launched()
    stream = history()
    for start in range(0, len(stream.lines), size):
        post(claim, stream, start, start + size)
    replayed, replay_claim = launched()
    body = "\n".join(map(json.dumps, stored_log(run))).encode()
    ingest.ingest(run_id=replayed.pk, token=replay_claim.token, body=body)
    assert TokenBlob.objects.filter(trajectory__run=replayed).exists()
    assert snapshot(run) == snapshot(replayed)


def test_replaying_any_part_changes_nothing() -> None:
    run, claim = launched()
    stream = history()
    total = len(stream.lines) - 1
    post(claim, stream, 0, total)
    before = snapshot(run)
    stream.lines.pop()
    assert post(claim, stream) == ingest.Receipt(total, 0, total)
    assert post(claim, stream, 3, 9) == ingest.Receipt(total, 0, 6)
    assert snapshot(run) == before


def test_overlapping_batches_store_only_new_events() -> None:
    run, claim = launched()
    stream = history()
    post(claim, stream, 0, 10)
    assert post(claim, stream, 5, 15) == ingest.Receipt(15, 5, 5)
    assert Event.objects.filter(run=run).count() == 15


def test_gap_is_refused_with_the_expected_sequence_number() -> None:
    run, claim = launched()
    stream = history()
    post(claim, stream, 0, 4)
    with pytest.raises(ingest.GapError) as caught:
        post(claim, stream, 5, 8)
    assert caught.value.expected_seq == 5
    assert Event.objects.filter(run=run).count() == 4


def test_a_forged_token_is_refused() -> None:
    _, claim = launched()
    _, other = launched()
    stream = history()
    for run_id, token in [
        (claim.run_id, "x"),
        (claim.run_id, other.token),
        (987_654, claim.token),
        (claim.run_id, ""),
    ]:
        with pytest.raises(ingest.BadTokenError):
            ingest.ingest(run_id=run_id, token=token, body=stream.body())
    draft = make_run()
    with pytest.raises(ingest.BadTokenError):
        ingest.ingest(run_id=draft.pk, token="", body=stream.body())
    assert not Event.objects.exists()


def bad_lines() -> tuple[bytes, ...]:
    stream = Stream()
    stream.started()
    base: dict[str, Any] = json.loads(stream.lines[0])
    progress = {"type": "run_progress", "seq": 1, "epoch": 1, "time": 1.0, "message": "m", "done": 1}
    return (
        b"{",
        b"[1]",
        json.dumps(base | {"type": "nonsense"}).encode(),
        json.dumps(base | {"surprise": 1}).encode(),
        json.dumps(progress).encode(),
        json.dumps(progress | {"total": 2, "time": float("nan")}).encode(),
        json.dumps(progress | {"total": 10**30}).encode(),
        json.dumps(progress | {"total": 2, "time": 1e300}).encode(),
        json.dumps(progress | {"total": 2, "message": "\ud800"}).encode(),
        b'{"type": "run_paused", "seq": 1, "epoch": 1, "time": 1.0, "x": "\xff"}',
        json.dumps(progress | {"total": 2, "seq": 0}).encode(),
    )


def test_a_malformed_line_stores_nothing_of_its_batch() -> None:
    run, claim = launched()
    before = snapshot(run)
    stream = history()
    for line in bad_lines():
        body = stream.body(0, 5) + line.replace(b'"seq": 1,', b'"seq": 6,') + b"\n"
        with pytest.raises(ingest.MalformedError):
            ingest.ingest(run_id=run.pk, token=claim.token, body=body)
        assert snapshot(run) == before, line


def test_token_columns_of_unequal_length_store_nothing() -> None:
    run, claim = launched()
    stream = Stream()
    stream.started()
    stream.trajectory(ref(0, "a", 0))
    broken = stream.body().replace(b'"mask": [0, 1, 1]', b'"mask": [0, 1]')
    assert broken != stream.body()
    with pytest.raises(ingest.MalformedError, match="differ in length"):
        ingest.ingest(run_id=run.pk, token=claim.token, body=broken)
    assert not Event.objects.exists()


def test_hostile_text_is_stored_without_nul() -> None:
    run, claim = launched()
    stream = Stream()
    stream.started()
    stream.add("trajectory_started", ref=ref(0, "a", 0))
    stream.step(
        ref(0, "a", 0), 0, tool="execute_bash", observation="a\0b\u2028<script>", thought="\\u0000",
        arguments={"cmd": "printf '\0'", "big": "x" * 3_000_000},
    )  # fmt: skip
    post(claim, stream)
    step = Step.objects.get(trajectory__run=run)
    assert step.observation == "a\ufffdb\u2028<script>"
    assert step.thought == "\\u0000"
    assert step.arguments["cmd"] == "printf '\ufffd'"


def test_jumping_seq_is_malformed() -> None:
    _, claim = launched()
    stream = Stream()
    stream.started()
    jump = Stream(first_seq=3)
    jump.started()
    with pytest.raises(ingest.MalformedError, match="does not follow"):
        ingest.ingest(run_id=claim.run_id, token=claim.token, body=stream.body() + jump.body())


@pytest.mark.parametrize("nul", [False, True])
def test_too_deeply_nested_events_are_refused(nul: bool) -> None:
    run, claim = launched()
    stream = Stream()
    stream.started()
    stream.add("trajectory_started", ref=ref(0, "a", 0))
    stream.step(ref(0, "a", 0), 0, arguments={"deep": "HERE"})
    deep = b"[" * 100_000 + b"]" * 100_000
    body = stream.body().replace(b'"HERE"', deep + (b', "x": "\\u0000"' if nul else b""))
    with pytest.raises(ingest.MalformedError):
        ingest.ingest(run_id=run.pk, token=claim.token, body=body)
    assert not Event.objects.filter(run=run).exists()


def test_a_repeated_step_of_a_live_trajectory_is_one_step() -> None:
    run, claim = launched()
    stream = Stream()
    stream.started()
    stream.trajectory(ref(0, "a", 0), steps=2, finish=False)
    post(claim, stream)
    repeated = Stream(first_seq=stream.next_seq)
    repeated.step(ref(0, "a", 0), 1, thought="again")
    post(claim, repeated)
    assert [step.thought for step in Step.objects.filter(trajectory__run=run)] == ["look at line 0", "again"]


def test_steps_of_running_trajectories_are_counted() -> None:
    run, claim = launched()
    stream = Stream()
    stream.started()
    stream.trajectory(ref(0, "a", 0), steps=1, finish=False)
    post(claim, stream)
    more = Stream(first_seq=stream.next_seq)
    more.step(ref(0, "a", 0), 1)
    more.step(ref(0, "a", 0), 2)
    post(claim, more)
    trajectory = Trajectory.objects.get(run=run)
    assert (trajectory.state, trajectory.num_steps, trajectory.thinking_tokens) == ("running", 3, 12)


def test_chat_policy_trajectories_may_lack_tokens_and_thinking_counts() -> None:
    run, claim = launched()
    stream = Stream()
    stream.started()
    stream.trajectory(ref(0, "a", 0), steps=1, finish=False)
    stream.step(ref(0, "a", 0), 1, thinking_tokens=None, cached_tokens=8, cost=0.25)
    stream.add(
        "trajectory_finished", ref=ref(0, "a", 0), termination="submitted", verdict=None, reward=None,
        num_steps=2, generated_tokens=14, thinking_tokens=None, cached_tokens=8, cost=0.25,
    )  # fmt: skip
    post(claim, stream)
    trajectory = Trajectory.objects.get(run=run)
    assert (trajectory.state, trajectory.generated_tokens) == ("finished", 14)
    assert not hasattr(trajectory, "token_blob")


def test_reward_without_verdict_is_ungraded_and_nan_reward_is_malformed() -> None:
    """Other trainers may post rewards without verdicts, which leaves open whether a task was solved."""
    run, claim = launched()
    stream = Stream()
    stream.started()
    end: dict[str, Any] = {"termination": "submitted", "num_steps": 1}
    for index, verdict in enumerate(("passed", None)):
        key = ref(0, "a", index)
        stream.trajectory(key, steps=1, finish=False)
        stream.add("trajectory_finished", ref=key, verdict=verdict, reward=1.0, **end)
    post(claim, stream)
    group = Group.objects.get(run=run)
    assert (group.num_finished, group.num_graded, group.num_solved) == (2, 1, 1)
    stored = Trajectory.objects.order_by("index").values_list("termination", "reward", "verdict")
    assert [
        is_solved(TerminationReason(reason), reward, Verdict(verdict) if verdict else None)
        for reason, reward, verdict in stored
    ] == [True, None]
    odd = Stream(first_seq=stream.next_seq)
    odd.add("trajectory_finished", ref=ref(0, "a", 2), verdict=None, reward=1.0, **end)
    odd.lines[-1] = json.dumps(json.loads(odd.lines[-1]) | {"reward": float("nan")}).encode()
    with pytest.raises(ingest.MalformedError, match="NaN is no number"):
        post(claim, odd)


def test_gzip_bodies_are_accepted_and_gzip_bombs_refused() -> None:
    run, claim = launched()
    stream = history()
    bomb = gzip.compress(b" " * (ingest.MAX_BYTES + 1))
    with pytest.raises(ingest.TooLargeError):
        ingest.ingest(run_id=run.pk, token=claim.token, body=bomb, encoding="gzip")
    with pytest.raises(ingest.MalformedError):
        ingest.ingest(run_id=run.pk, token=claim.token, body=b"nonsense", encoding="gzip")
    with pytest.raises(ingest.MalformedError):
        ingest.ingest(run_id=run.pk, token=claim.token, body=b"", encoding="br")
    ingest.ingest(run_id=run.pk, token=claim.token, body=gzip.compress(stream.body()), encoding="gzip")
    assert Event.objects.filter(run=run).count() == len(stream.lines)


def test_lines_and_unpacked_logs_of_a_batch_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    run, claim = launched()
    with pytest.raises(ingest.TooLargeError, match="lines"):
        ingest.ingest(run_id=run.pk, token=claim.token, body=b"\n" * (ingest.MAX_LINES + 1))
    log = base64.b64encode(zlib.compress(b"." * 600_000)).decode()

    def with_logs(count: int) -> Stream:
        stream = Stream()
        stream.started()
        for index in range(count):
            stream.add("trajectory_started", ref=ref(0, "a", index))
            stream.finished(ref(0, "a", index), steps=0)
            stream.lines[-1] = json.dumps(json.loads(stream.lines[-1]) | {"whole_test_log": log}).encode()
        return stream

    monkeypatch.setattr(ingest, "MAX_BYTES", 1_000_000)
    with pytest.raises(ingest.TooLargeError, match="logs"):
        post(claim, with_logs(2))
    assert post(claim, with_logs(1)).accepted == 3


@pytest.mark.parametrize(
    ("type_", "path", "value"),
    [
        ("step_finished", ("exit_code",), 2**40),
        ("step_finished", ("prompt_tokens",), 2**31),
        ("step_finished", ("ref", "iteration"), 2**31),
        ("step_finished", ("ref", "iteration"), -1),
        ("step_finished", ("time",), 1e18),
        ("step_finished", ("time",), -1e18),
        ("trajectory_finished", ("prompt_tokens",), 2**63),
        ("trajectory_finished", ("num_steps",), -(2**31) - 1),
        ("run_progress", ("done",), 2**63),
        ("engines_reported", ("queued",), 2**31),
    ],
)
def test_numbers_beyond_their_columns_are_malformed(type_: str, path: tuple[str, ...], value: float) -> None:
    run, claim = launched()
    stream = history()
    events = [json.loads(line) for line in stream.lines]
    index = next(i for i, event in enumerate(events) if event["type"] == type_)
    *parents, name = path
    record = events[index]
    for parent in parents:
        record = record[parent]
    record[name] = value
    stream.lines[index] = json.dumps(events[index]).encode()
    with pytest.raises(ingest.MalformedError, match=f"line {index + 1}: .*{name}"):
        post(claim, stream)
    assert not Event.objects.filter(run=run).exists()


@pytest.mark.parametrize("number", ["1e400", "-1E+999", "9" * 400])
def test_floats_beyond_double_precision_are_malformed(number: str) -> None:
    run, claim = launched()
    stream = history()
    index = next(i for i, line in enumerate(stream.lines) if b'"step_finished"' in line)
    line = stream.lines[index]
    stream.lines[index] = line.removesuffix(b"}") + f', "tool_seconds": {number}}}'.encode()
    with pytest.raises(ingest.MalformedError, match=f"line {index + 1}: "):
        post(claim, stream)
    stream.lines[index] = line.removesuffix(b"}") + f', "error": "{number}"}}'.encode()
    post(claim, stream)
    assert Step.objects.filter(trajectory__run=run, error=number).exists()


def test_queries_do_not_grow_with_the_batch() -> None:
    counts = []
    for tasks in (10, 20):
        _, claim = launched()
        stream = Stream()
        stream.started()  # clears rows of earlier attempts, with a query for each table
        post(claim, stream)
        started = len(stream.lines)
        for task in range(tasks):
            stream.trajectory(ref(0, f"task-{task}", 0), steps=3)
        with CaptureQueriesContext(connection) as queries:
            post(claim, stream, started)
        counts.append(len(queries))
    assert counts[0] == counts[1]
    assert counts[0] <= 20


def test_spool_is_ingested_offline_without_its_incomplete_line(tmp_path: Any) -> None:
    run, claim = launched()
    stream = history()
    post(claim, stream, 0, 10)
    path = tmp_path / "events.jsonl"
    path.write_bytes(stream.body() + b'{"type": "run_pau')
    receipt = ingest.ingest_spool(run_id=run.pk, path=path)
    assert receipt == ingest.Receipt(len(stream.lines), len(stream.lines) - 10, 0)
    assert ingest.ingest_spool(run_id=run.pk, path=path).accepted == 0
    assert set(Event.objects.filter(run=run).values_list("epoch", flat=True)) == {1}
    run.refresh_from_db()
    assert run.state == "succeeded"
