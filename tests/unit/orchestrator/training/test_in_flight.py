"""Recovery of rollouts in flight and of feed buffers from the spool of a killed attempt."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, AsyncExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from engine.agent.replay import FinishedTurn
from engine.config.learning.algorithm import AlgorithmConfig
from engine.config.learning.training import ScheduleConfig
from engine.config.recipes import resolve
from engine.config.rollout import RolloutConfig
from engine.errors import ConfigError
from engine.events.delivery.spool import SPOOL_NAME, SpoolSink
from engine.events.types import IterationFinished
from engine.inference.base import Generation, GenerationContext
from engine.orchestrator.collection.collector import Collector
from engine.orchestrator.collection.rollout_lines import RecordedRollouts, in_flight
from engine.orchestrator.training.curriculum import TaskCursor
from engine.orchestrator.training.feed import RolloutFeed
from engine.orchestrator.training.record import GroupKey, TrainingRecord
from engine.orchestrator.training.stragglers import LATE
from engine.orchestrator.watch.event_observer import EventObserver
from engine.orchestrator.watch.metrics import RolloutMetrics
from engine.rollout import RolloutRequest
from engine.types import Grade, RolloutKey, Step, TerminationReason, Trajectory, Verdict
from tests.builders.rollout_builders import TextPolicy, make_key, make_row, swe_scheduler
from tests.builders.web.event_builders import spooled
from tests.fakes.memory_sandbox import MemoryBackend
from tests.unit.orchestrator.test_collection import FILES, finished_keys, groups, solver, untimed
from tests.unit.orchestrator.test_collection import Attempt as CollectionAttempt

KEY = make_key()


def turn(index: int, *, output: str = "ok", version: int = 1, is_replayed: bool = False) -> FinishedTurn:
    response = Generation(ids=(index, 7), logprobs=(-0.5, -0.25), versions=(version, version))
    step = Step(index=index, thought="t", response="r", call=None, observation=output, policy_version=version)
    return FinishedTurn(step=step, response=response, waited_seconds=0.5, is_replayed=is_replayed)


def ended(key: Any = KEY, steps: int = 0, **changes: Any) -> Trajectory:
    grade = Grade(verdict=Verdict.PASSED, reward=1.0)
    finished = tuple(turn(index).step for index in range(steps))
    defaults = {"termination": TerminationReason.SUBMITTED, "grade": grade}
    return Trajectory(key=key, steps=finished, **{**defaults, **changes})


class Attempt:
    """Events of one attempt, which survive a kill."""

    def __init__(self, sink: SpoolSink, *, with_responses: bool = True) -> None:
        self.sink = sink
        self.observer = EventObserver(sink, with_responses=with_responses)

    def steps(self, *turns: FinishedTurn) -> None:
        self.observer.trajectory_started(KEY, "sb")
        for finished in turns:
            self.observer.step_finished(KEY, finished)


@contextmanager
def attempt(folder: Path, epoch: int, **settings: Any) -> Iterator[Attempt]:
    with closing(SpoolSink(folder, epoch=epoch)) as sink:
        opened = Attempt(sink, **settings)
        yield opened
        opened.observer.close()


def recorded(folder: Path) -> list[FinishedTurn]:
    """Return the recorded turns, on which both readers must agree."""
    spool = folder / SPOOL_NAME
    collection = RecordedRollouts.read(spool).turns(KEY)
    training = TrainingRecord.read(spool, trained=0).turns(KEY)
    turns = list(collection()) if collection is not None else []
    assert turns == (list(training()) if training is not None else [])
    return turns


def test_finished_steps_of_a_killed_attempt_are_read_exactly(tmp_path: Path) -> None:
    assert recorded(tmp_path) == []
    with attempt(tmp_path, 1) as first:
        first.steps(turn(0), turn(1))
    assert recorded(tmp_path) == [turn(0), turn(1)]


def test_steps_not_yet_replayed_survive_another_kill(tmp_path: Path) -> None:
    with attempt(tmp_path, 1) as first:
        first.steps(*map(turn, range(5)))
    with attempt(tmp_path, 2) as second:
        second.steps()
    assert recorded(tmp_path) == [turn(index) for index in range(5)]
    with attempt(tmp_path, 3) as third:
        third.steps(turn(0, is_replayed=True), turn(1, is_replayed=True))
    assert recorded(tmp_path) == [turn(index) for index in range(5)]


def test_recorded_steps_after_a_diverging_step_are_dropped(tmp_path: Path) -> None:
    with attempt(tmp_path, 1) as first:
        first.steps(*map(turn, range(5)))
    with attempt(tmp_path, 2) as second:
        second.steps(turn(0, is_replayed=True), turn(1, output="other"))
    assert [finished.step.observation for finished in recorded(tmp_path)] == ["ok", "other"]


async def test_only_rollouts_in_flight_are_recorded(tmp_path: Path) -> None:
    with attempt(tmp_path, 1) as first:
        first.steps(turn(0))
        await first.observer.trajectory_finished(ended(termination=TerminationReason.CANCELLED, grade=None))
        assert len(recorded(tmp_path)) == 1, "its attempt was stopped"
        first.steps(turn(0))
        await first.observer.trajectory_finished(ended(termination=TerminationReason.ENV_ERROR, grade=None))
        assert recorded(tmp_path) == [], "what infrastructure lost begins anew"
        first.steps(turn(0), turn(1))
        await first.observer.trajectory_finished(ended(steps=2))
        assert recorded(tmp_path) == []
    kept = TrainingRecord.read(tmp_path / SPOOL_NAME, trained=0)
    assert kept.num_finished == 1
    assert [len(rollout.steps) for rollout in kept.kept(GroupKey(KEY.iteration, KEY.task_id)).values()] == [2]
    assert TrainingRecord.read(tmp_path / SPOOL_NAME, trained=1, is_sync=True).num_finished == 0


async def test_a_repeated_update_excludes_the_rollout_lost_in_the_original(
    tmp_path: Path,
) -> None:
    """Later rollouts were sampled from its weights, so the resumed attempt must reproduce them."""
    lost, group = make_key(index=1), GroupKey(KEY.iteration, KEY.task_id)
    with attempt(tmp_path, 1) as first:
        first.steps(turn(0))
        await first.observer.trajectory_finished(ended(steps=1))
        first.observer.trajectory_started(lost, "sb")
        first.observer.step_finished(lost, turn(0))
        await first.observer.trajectory_finished(
            ended(lost, steps=1, termination=TerminationReason.ENV_ERROR, grade=None)
        )

        def kept() -> dict[int, int]:
            record = TrainingRecord.read(tmp_path / SPOOL_NAME, trained=0, is_sync=True)
            assert record.turns(lost) is None
            return {index: len(rollout.steps) for index, rollout in record.kept(group).items()}

        assert kept() == {0: 1}, "it is made again"
        first.sink.emit(IterationFinished, iteration=KEY.iteration, policy_version=1, metrics={})
        assert kept() == {0: 1, 1: 1}


async def test_rollouts_in_flight_are_read_only_with_the_replay_setting(tmp_path: Path) -> None:
    assert await in_flight(RolloutConfig(), tmp_path / SPOOL_NAME) is None
    assert await in_flight(RolloutConfig(resume_in_flight="replay"), tmp_path / SPOOL_NAME) is not None
    with pytest.raises(ConfigError, match="retry_temperatures"):
        resolve(
            "quickstart-oracle",
            {"rollout.resume_in_flight": "replay", "collection.retry_temperatures": [0.5]},
        )


@pytest.mark.parametrize("lines", [25, 60, 110])
async def test_a_resumed_collection_samples_no_recorded_turn_again(tmp_path: Path, lines: int) -> None:
    sampled: list[tuple[RolloutKey, int]] = []

    def counted(context: GenerationContext) -> str:
        sampled.append((context.key, len(context.steps)))
        return solver(context)

    async def collect(epoch: int) -> RolloutMetrics:
        sampled.clear()
        async with AsyncExitStack() as stack:
            new = CollectionAttempt(tmp_path, epoch, stack)
            observer = EventObserver(new.sink, with_responses=True)
            stack.callback(observer.close)
            rollout = RolloutConfig(max_concurrent=4, resume_in_flight="replay")
            scheduler = swe_scheduler(
                MemoryBackend(FILES), TextPolicy(counted), rollout=rollout, observer=observer
            )
            recorded = await in_flight(rollout, tmp_path / SPOOL_NAME)
            return await Collector(
                new.run, scheduler, groups(), new.ledger, infra_retries=0, max_concurrent=4, recorded=recorded
            ).collect()

    expected = await collect(1)
    all_turns = Counter(sampled)
    spool = tmp_path / SPOOL_NAME
    spool.write_bytes(b"".join(spool.read_bytes().splitlines(keepends=True)[:lines]))  # killed here
    known = Counter(
        (RolloutKey(**event["ref"]), event["index"]) for event in spooled(tmp_path, "step_finished")
    )
    metrics = await collect(2)
    assert set(all_turns.values()) == {1}
    assert Counter(sampled) == all_turns - known
    assert untimed(metrics) == untimed(expected)
    assert set(finished_keys(tmp_path).values()) == {1}


class FakeRolloutSource:
    """Scheduler double that finishes the given rollouts and records them."""

    def __init__(self, attempt: Attempt, *, ending: frozenset[tuple[int, int]]) -> None:
        self.attempt = attempt
        self.requests: list[RolloutRequest] = []
        self._ending = ending
        """Rollouts that end: iteration and index."""

    async def roll_out(self, request: RolloutRequest) -> Trajectory:
        self.requests.append(request)
        key, observer = request.key, self.attempt.observer
        observer.trajectory_started(key, "sb")
        observer.step_finished(key, turn(0, version=0))
        if (key.iteration, key.index) not in self._ending:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError as error:
                if str(error) == LATE:  # a killed process records nothing
                    late = ended(key, termination=TerminationReason.CANCELLED, grade=None, error=LATE)
                    await observer.trajectory_finished(late)
                raise
        finished = ended(key, steps=1)
        await observer.trajectory_finished(finished)
        return finished

    async def wait_for_room(self) -> None:
        await asyncio.sleep(0)

    def restarted(self) -> AbstractContextManager[None]:
        return nullcontext()

    @property
    def begun(self) -> set[tuple[int, int]]:
        return {(request.key.iteration, request.key.index) for request in self.requests}


def feed_of(
    folder: Path, source: FakeRolloutSource, *, is_sync: bool = False, **schedule: Any
) -> RolloutFeed:
    """Return a feed of one group of three siblings per iteration, synchronous or up to two updates stale."""
    record = TrainingRecord.read(folder / SPOOL_NAME, trained=0, is_sync=is_sync)
    rows = [make_row(f"{number:02x}" * 8) for number in range(8)]
    return RolloutFeed(
        ScheduleConfig() if is_sync else ScheduleConfig(mode="async", max_staleness=2, **schedule),
        AlgorithmConfig(),
        source,
        TaskCursor(rows, per_iteration=1, seed=0),
        record,
        None if is_sync else source.attempt.sink,
        iterations=5,
        batch=1,
        group_size=3,
        replays=True,
    )


async def until(condition: Any) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.01)


def ends(folder: Path) -> set[tuple[int, int]]:
    """Return iteration and index of every rollout whose end is on record."""
    refs = [event["ref"] for event in spooled(folder, "trajectory_finished")]
    return {(ref["iteration"], ref["index"]) for ref in refs}


@pytest.mark.parametrize("with_checkpoint", [True, False])
async def test_a_killed_feed_resumes_with_its_buffers(tmp_path: Path, with_checkpoint: bool) -> None:
    """Kill the feed with one group trained, one waiting for training and one with siblings in flight."""
    everything = frozenset((iteration, index) for iteration in range(5) for index in range(3))
    with attempt(tmp_path, 1) as first:
        source = FakeRolloutSource(first, ending=everything - {(2, 1), (2, 2)})
        feed = feed_of(tmp_path, source)
        (trained,) = (await feed.next_batch(policy_version=0)).trained
        feed.updated()
        state, tasks = feed.buffer.state_dict(), feed.buffer._cursor.state_dict()
        await until(lambda: {(2, 0), (2, 1), (2, 2)} <= source.begun)
        await until(lambda: {(1, 0), (1, 1), (1, 2), (2, 0)} <= ends(tmp_path))
        await feed.close()
    admitted = list(TrainingRecord.read(tmp_path / SPOOL_NAME, trained=0).admitted)
    with attempt(tmp_path, 2) as second:
        later = FakeRolloutSource(second, ending=everything)
        feed = feed_of(tmp_path, later)
        if with_checkpoint:
            feed.buffer._cursor.load_state_dict(tasks)
            feed.buffer.load_state_dict(state)
        feed.buffer.follow_record()
        batches = [trained.task.id] if with_checkpoint else []
        while len(batches) < 5:
            (group,) = (await feed.next_batch(policy_version=len(batches))).trained
            assert [r.key.index for r in group.trajectories] == [0, 1, 2]
            batches.append(group.task.id)
            feed.updated()
        await feed.close()
    assert batches[:2] == [key.task_id for key in admitted[:2]], "the oldest that are complete come first"
    assert batches[0] == trained.task.id
    assert len(set(batches)) == 5
    assert {key for key in later.begun if key[0] < 3} == {(2, 1), (2, 2)}, "nothing finished is made twice"
    resumed = {r.key.index: r.recorded for r in later.requests if r.key.iteration == 2}
    assert set(resumed) == {1, 2}
    for recorded in resumed.values():
        assert recorded is not None
        assert [r.step.index for r in recorded()] == [0]
    fresh = [r.recorded for r in later.requests if r.key.iteration == 4]
    assert fresh == [None] * 3


async def test_a_killed_synchronous_iteration_keeps_its_recorded_rollouts(tmp_path: Path) -> None:
    """Kill the feed in the second iteration, with one sibling finished and two in flight."""
    with attempt(tmp_path, 1) as first:
        source = FakeRolloutSource(first, ending=frozenset({(0, 0), (0, 1), (0, 2), (1, 0)}))
        feed = feed_of(tmp_path, source, is_sync=True)
        expected = (await feed.next_batch(policy_version=0)).trained
        feed.updated()
        pending = asyncio.create_task(feed.next_batch(policy_version=1))
        await until(lambda: (1, 0) in ends(tmp_path))
        pending.cancel()
        await feed.close()
    with attempt(tmp_path, 2) as second:
        later = FakeRolloutSource(second, ending=frozenset({(1, 1), (1, 2)}))
        feed = feed_of(tmp_path, later, is_sync=True)
        feed.buffer.follow_record()
        (kept,) = (await feed.next_batch(policy_version=0)).trained
        assert kept.task == expected[0].task
        assert [t.key.index for t in kept.trajectories] == [0, 1, 2]
        assert not later.requests
        feed.updated()
        (group,) = (await feed.next_batch(policy_version=1)).trained
        await feed.close()
    assert [t.key.index for t in group.trajectories] == [0, 1, 2]
    assert later.begun == {(1, 1), (1, 2)}
    for request in later.requests:
        assert request.recorded is not None
        assert [t.step.index for t in request.recorded()] == [0]


@pytest.mark.parametrize("is_sync", [True, False])
async def test_a_closed_feed_cancels_every_rollout_once(tmp_path: Path, is_sync: bool) -> None:
    """Another cancellation would interrupt the closing of its sandbox."""
    closed = []

    class Closing(FakeRolloutSource):
        async def roll_out(self, request: RolloutRequest) -> Trajectory:
            self.requests.append(request)
            try:
                await asyncio.sleep(3600)
            finally:
                await asyncio.sleep(0.01)
                closed.append(request.key)
            raise AssertionError

    with attempt(tmp_path, 1) as first:
        source = Closing(first, ending=frozenset())
        feed = feed_of(tmp_path, source, is_sync=is_sync)
        pending = asyncio.create_task(feed.next_batch(policy_version=0))
        await until(lambda: len(source.requests) == (3 if is_sync else 9))
        pending.cancel()
        await feed.close()
    assert closed == [request.key for request in source.requests]


async def test_groups_completed_by_a_deadline_stay_complete_after_a_kill(tmp_path: Path) -> None:
    with attempt(tmp_path, 1) as first:
        source = FakeRolloutSource(first, ending=frozenset({(0, 0), (0, 1), (1, 0), (1, 1)}))
        feed = feed_of(tmp_path, source, min_siblings=2, straggler_s=0.0)
        await feed.next_batch(policy_version=0)
        feed.updated()
        second = list(feed._record.admitted)[1]
        await until(lambda: TrainingRecord.read(tmp_path / SPOOL_NAME, trained=0).is_complete(second))
        await feed.close()
    with attempt(tmp_path, 2) as later:
        second_source = FakeRolloutSource(later, ending=frozenset())
        feed = feed_of(tmp_path, second_source, min_siblings=2, straggler_s=0.0)
        feed.buffer.follow_record()
        for version in range(2):
            (group,) = (await feed.next_batch(policy_version=version)).trained
            assert [t.key.index for t in group.trajectories] == [0, 1]
            feed.updated()
        await feed.close()
    assert not second_source.begun & {(0, 2), (1, 2)}


async def test_rollouts_restarted_by_an_update_repeat_no_older_steps(tmp_path: Path) -> None:
    with attempt(tmp_path, 1) as first:
        feed = feed_of(tmp_path, FakeRolloutSource(first, ending=frozenset()), on_update="restart")
        pending = asyncio.create_task(feed.next_batch(policy_version=0))
        await until(lambda: len(TrainingRecord.read(tmp_path / SPOOL_NAME, trained=0)._lines) == 3)
        pending.cancel()
        await feed.close()
    for version, steps in ((0, 1), (1, 0)):
        with attempt(tmp_path, 2 + version) as second:
            source = FakeRolloutSource(second, ending=frozenset())
            feed = feed_of(tmp_path, source, on_update="restart")
            feed.buffer.follow_record()
            pending = asyncio.create_task(feed.next_batch(policy_version=version))
            await until(lambda source=source: len(source.requests) >= 9)
            pending.cancel()
            await feed.close()
        for request in source.requests:
            assert request.recorded is not None
            assert len(request.recorded()) == steps
    assert spooled(tmp_path, "trajectory_started")
    assert not spooled(tmp_path, "batch_selected")
