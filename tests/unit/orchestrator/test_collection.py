"""Collections: resumption, repetition of lost rollouts, progress, plans and metrics."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.config.recipes import resolve
from engine.config.rollout import CollectionConfig, DatasetConfig, RolloutConfig
from engine.config.run import RolloutRun, TrainRun
from engine.config.sandbox import SandboxConfig
from engine.errors import ConfigError, EarlyStopError, ModelError, RolloutsLostError
from engine.evaluation.attempts import is_solved
from engine.evaluation.metrics import EvaluationTally
from engine.events.delivery.control import Control
from engine.events.delivery.spool import SPOOL_NAME, SpoolSink
from engine.events.types import RunProgress, RunStarted, TrajectoryFinished
from engine.inference.base import GenerationContext
from engine.inference.scripted.policies import OraclePolicy
from engine.orchestrator import context as run_context
from engine.orchestrator.collection import collector as collecting
from engine.orchestrator.collection import plan
from engine.orchestrator.collection.collector import Collector
from engine.orchestrator.collection.first_rollouts import FirstRollouts
from engine.orchestrator.collection.ledger import Ledger
from engine.orchestrator.context import RunContext, RunStopped
from engine.orchestrator.setup import RunEnvironments, build_scheduler
from engine.orchestrator.watch.event_observer import EventObserver, trajectory_fields
from engine.orchestrator.watch.metrics import RolloutMetrics
from engine.rollout import GroupRequest
from engine.rollout.environments import FrozenLakeEnvironments
from engine.rollout.summary import RolloutSummary
from engine.tools.schemas import SWE_TOOLS
from engine.types import Grade, RolloutKey, Step, TaskRow, TerminationReason, Trajectory, Verdict
from tests.builders.rollout_builders import (
    SOURCE,
    SUBMIT,
    TextPolicy,
    make_row,
    quick_agent,
    respond,
    swe_scheduler,
)
from tests.builders.web.event_builders import spooled
from tests.fakes.memory_sandbox import MemoryBackend, start_fault

FILES = {"/testbed/pkg/m.py": SOURCE.encode()}
LOOK = respond("file_editor", command="view", path="pkg/m.py")
FIX = respond("file_editor", command="str_replace", path="pkg/m.py", old_str="a - 1", new_str="a + 1")


def solver(context: GenerationContext) -> str:
    """Solve two of three rollouts, with a varying number of turns."""
    number = context.key.index + int(context.key.task_id[:2], 16)
    turns = [LOOK] * (number % 4) + ([FIX] if number % 3 else []) + [SUBMIT]
    return turns[len(context.steps)]


def groups(tasks: int = 5, size: int = 8) -> list[GroupRequest]:
    rows = [make_row(f"{n:02x}" * 8) for n in range(tasks)]
    return [GroupRequest(row=row, iteration=0, phase="train", size=size) for row in rows]


class Attempt:
    """One attempt of a run in a folder, with in-memory sandboxes."""

    def __init__(self, folder: Path, epoch: int, stack: AsyncExitStack) -> None:
        self.sink = stack.enter_context(closing(SpoolSink(folder, epoch=epoch)))
        self.control = Control()
        self.run = RunContext(
            run_id="r", epoch=epoch, run_dir=folder, home=folder, sink=self.sink, control=self.control
        )
        self.ledger = Ledger.read(folder / SPOOL_NAME)
        self.sink.emit(RunStarted, host="h", pid=1, rollouts_kept=self.ledger.count)
        self.observer = EventObserver(self.sink, counts=self.run.rollouts)
        stack.callback(self.observer.close)

    def collector(
        self,
        backend: MemoryBackend,
        policy: TextPolicy | None = None,
        *,
        requests: Sequence[GroupRequest] = (),
        retries: int = 0,
        max_concurrent: int = 4,
        early_stop: int = 0,
    ) -> Collector:
        rollout = RolloutConfig(max_concurrent=max_concurrent)
        scheduler = swe_scheduler(
            backend, policy or TextPolicy(solver), rollout=rollout, observer=self.observer,
            sandbox=SandboxConfig(start_retries=0),
        )  # fmt: skip
        return Collector(
            self.run, scheduler, requests or groups(), self.ledger, infra_retries=retries,
            max_concurrent=rollout.max_concurrent,
            first=FirstRollouts(early_stop, quick_agent(), SWE_TOOLS),
        )  # fmt: skip


def finished_keys(folder: Path) -> Counter[tuple[str, int]]:
    return Counter(
        (event["ref"]["task_id"], event["ref"]["index"])
        for event in spooled(folder, "trajectory_finished")
        if event["termination"] != "cancelled"
    )


def untimed(metrics: RolloutMetrics) -> dict[str, float]:
    values = metrics.metrics()
    return {name: value for name, value in values.items() if not name.startswith(("time/", "sandbox/"))}


def make(
    key: RolloutKey, reward: float | None = 1.0, steps: Sequence[Step] = (), **changes: Any
) -> Trajectory:
    verdict = Verdict.INFRA_ERROR if reward is None else Verdict.PASSED if reward else Verdict.FAILED
    defaults = {"termination": TerminationReason.SUBMITTED, "grade": Grade(verdict=verdict, reward=reward)}
    return Trajectory(key=key, steps=tuple(steps), **{**defaults, **changes})


def key(index: int = 0, task_id: str = "t") -> RolloutKey:
    return RolloutKey(iteration=0, phase="train", task_id=task_id, index=index)


def test_summaries_of_a_trajectory_and_of_its_event_are_equal() -> None:
    call: dict[str, Any] = {"thought": "", "response": "", "call": None, "observation": ""}
    usage: dict[str, Any] = {"prompt_tokens": 10, "generated_tokens": 4, "thinking_tokens": 1, "cost": 0.1}
    steps = [Step(index=index, cached_tokens=9 * index, **usage, **call) for index in range(2)]
    for trajectory in (
        make(key(), steps=steps, failure="died", attempts=3),
        make(key(), None),
        make(key(), grade=None, termination=TerminationReason.ENV_ERROR),
    ):
        event = TrajectoryFinished(seq=1, epoch=1, time=0.0, **trajectory_fields(trajectory))
        assert RolloutSummary.from_event(event.model_dump_json().encode()) == RolloutSummary.of(trajectory)
    assert RolloutSummary.of(make(key(), steps=steps)).cost == pytest.approx(0.2)


def test_metrics_do_not_depend_on_the_order_of_rollouts() -> None:
    rng = random.Random(1)
    summaries = [
        RolloutSummary.of(make(key(n % 4, f"t{n % 7}"), rng.choice([rng.random(), 1.0, 0.0, None])))
        for n in range(400)
    ]
    expected, shuffled = RolloutMetrics(), RolloutMetrics()
    for rollout in summaries:
        expected.add(rollout)
    for rollout in rng.sample(summaries, len(summaries)):
        shuffled.add(rollout)
    assert shuffled.metrics() == expected.metrics()
    assert shuffled.tally.summary() == expected.tally.summary()
    assert expected.tally.summary().num_infrastructure == sum(rollout.is_lost for rollout in summaries)


async def test_a_collection_killed_at_any_byte_ends_with_the_metrics_of_one_attempt(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, cut):
        folder.mkdir()
    async with AsyncExitStack() as stack:
        expected = await Attempt(whole, 1, stack).collector(MemoryBackend(FILES)).collect()
    rng, size, epoch = random.Random(4), 0, 0
    spool = cut / SPOOL_NAME
    while not spool.exists() or sum(finished_keys(cut).values()) < 40:
        epoch += 1
        async with AsyncExitStack() as stack:
            metrics = await Attempt(cut, epoch, stack).collector(MemoryBackend(FILES)).collect()
        if epoch <= 6:  # simulate a kill at a random byte of the spool
            end = rng.randrange(size, max(size + 1, spool.stat().st_size * epoch // 8))
            with spool.open("rb+") as file:
                file.truncate(max(end, size))
            size = spool.stat().st_size
    assert epoch >= 4
    assert set(finished_keys(cut).values()) == {1}
    assert finished_keys(cut) == finished_keys(whole)
    assert untimed(metrics) == untimed(expected)
    assert metrics.tally.summary() == expected.tally.summary()
    assert spooled(cut, "run_started")[-1]["rollouts_kept"] > 0


async def test_a_collection_without_readable_calls_stops_early_and_can_be_resumed(tmp_path: Path) -> None:
    def bare(_context: GenerationContext) -> str:
        return 'Let me see. {"name": "execute_bash", "arguments": {"cmd": "ls"}}'

    async with AsyncExitStack() as stack:
        attempt = Attempt(tmp_path, 1, stack)
        with pytest.raises(
            EarlyStopError, match="the first 8 rollouts all ended by .*agent.tool_format is 'xml'"
        ):
            await attempt.collector(MemoryBackend(FILES), TextPolicy(bare), early_stop=8).collect()
        assert 8 <= attempt.ledger.count < 40, "others may have finished at the same time"
    async with AsyncExitStack() as stack:
        metrics = (
            await Attempt(tmp_path, 2, stack)
            .collector(MemoryBackend(FILES), TextPolicy(bare), early_stop=8)
            .collect()
        )
    assert metrics.count == 40


async def test_a_short_collection_without_a_readable_call_warns(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        attempt = Attempt(tmp_path, 1, stack)
        prose = TextPolicy(lambda _context: "I would rather talk.")
        await attempt.collector(
            MemoryBackend(FILES), prose, requests=groups(tasks=1, size=2), early_stop=8
        ).collect()
    (alert,) = [alert for alert in spooled(tmp_path, "alert") if alert["code"] == "unreadable_calls"]
    assert alert["message"].startswith("no response had a readable tool call")


async def test_a_resumed_collection_repeats_the_rollouts_cancelled_by_a_stop(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        attempt = Attempt(tmp_path, 1, stack)

        def stopping(context: GenerationContext) -> str:
            if attempt.ledger.count >= 10:
                attempt.control.stop("a person stopped it")
            return solver(context)

        class Slow(TextPolicy):
            async def generate(self, request: Any) -> Any:
                generation = await super().generate(request)
                while attempt.control.stop_reason:
                    await asyncio.sleep(0.01)
                return generation

        with pytest.raises(RunStopped):
            await attempt.collector(MemoryBackend(FILES), Slow(stopping)).collect()
    cancelled = [e for e in spooled(tmp_path, "trajectory_finished") if e["termination"] == "cancelled"]
    assert cancelled
    async with AsyncExitStack() as stack:
        metrics = await Attempt(tmp_path, 2, stack).collector(MemoryBackend(FILES)).collect()
    assert (metrics.count, metrics.lost) == (40, 0)
    assert set(finished_keys(tmp_path).values()) == {1}


async def test_a_pause_waits_for_rollouts_in_flight_and_can_be_resumed(tmp_path: Path) -> None:
    pauses: list[str] = []
    async with AsyncExitStack() as stack:
        attempt = Attempt(tmp_path, 1, stack)

        def pausing(context: GenerationContext) -> str:
            if attempt.ledger.count >= 10 and not pauses:
                pauses.append("pause")
                attempt.control.set_desired("pause")
            return solver(context)

        work = asyncio.create_task(attempt.collector(MemoryBackend(FILES), TextPolicy(pausing)).collect())
        while not spooled(tmp_path, "run_paused"):
            assert not work.done()
            await asyncio.sleep(0.01)
        started, ended = spooled(tmp_path, "trajectory_started"), spooled(tmp_path, "trajectory_finished")
        assert len(started) == len(ended) < 40
        attempt.control.set_desired("run")
        assert (await work).count == 40
    assert set(finished_keys(tmp_path).values()) == {1}


async def test_lost_rollouts_are_repeated_after_all_others(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        attempt = Attempt(tmp_path, 1, stack)
        backend = MemoryBackend(FILES, faults=[start_fault(f"fault {n}") for n in range(5)])
        metrics = await attempt.collector(backend, retries=1).collect()
    assert (metrics.count, metrics.lost, attempt.ledger.lost) == (40, 0, {})
    order = [(e["ref"]["task_id"], e["ref"]["index"]) for e in spooled(tmp_path, "trajectory_finished")]
    lost = [pair for pair, count in finished_keys(tmp_path).items() if count == 2]
    assert len(lost) == 5
    assert set(order[-5:]) == set(lost)


async def test_rollouts_that_stay_lost_are_reported_and_repeated_by_the_next_attempt(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        attempt = Attempt(tmp_path, 1, stack)
        backend = MemoryBackend(FILES, faults=[start_fault("no room") for _ in range(5)])
        metrics = await attempt.collector(backend).collect()
    assert (metrics.count, metrics.lost) == (40, 5)
    assert metrics.metrics()["infra/rate"] == 5 / 40
    (alert,) = spooled(tmp_path, "alert")
    assert "lost 12.5% of the rollouts" in alert["message"]
    assert alert["task_ids"]
    last = spooled(tmp_path, "run_progress")[-1]
    assert (last["done"], last["total"]) == (40, 40)
    assert last["collection"]["lost"] == 5
    async with AsyncExitStack() as stack:
        second = Attempt(tmp_path, 2, stack)
        assert second.ledger.count == 35
        assert (await second.collector(MemoryBackend(FILES)).collect()).lost == 0


async def test_a_collection_fails_if_every_rollout_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(_context: GenerationContext) -> str:
        raise ModelError("no engine")

    monkeypatch.setattr(collecting, "MIN_LOST_IN_A_ROW", 6)
    for retries, tasks, most in ((0, 1, 4), (2, 1, 12), (0, 5, 24)):
        folder = tmp_path / f"{retries}-{tasks}"
        folder.mkdir()
        async with AsyncExitStack() as stack:
            collector = Attempt(folder, 1, stack).collector(
                MemoryBackend(FILES),
                TextPolicy(refusing),
                requests=groups(tasks, 4 if tasks == 1 else 8),
                retries=retries,
                max_concurrent=2,
            )
            with pytest.raises(RolloutsLostError, match="no engine"):
                await collector.collect()
        assert len(spooled(folder, "trajectory_finished")) <= most


async def test_one_broken_task_does_not_end_a_collection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting, "MIN_LOST_IN_A_ROW", 6)
    requests = groups(4, 12)
    broken = requests[0].row.task.id

    def refusing(context: GenerationContext) -> str:
        if context.key.task_id == broken:
            raise ModelError("refused")
        return solver(context)

    async with AsyncExitStack() as stack:
        attempt = Attempt(tmp_path, 1, stack)
        collector = attempt.collector(
            MemoryBackend(FILES), TextPolicy(refusing), requests=requests, max_concurrent=2
        )
        metrics = await collector.collect()
    assert (metrics.count, metrics.lost) == (48, 12)
    assert {key.task_id for key in attempt.ledger.lost} == {broken}


async def test_progress_has_rate_time_left_and_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "REPORT_EVERY_S", 0.0)
    async with AsyncExitStack() as stack:
        await Attempt(tmp_path, 1, stack).collector(MemoryBackend(FILES)).collect()
    reports = [RunProgress.model_validate(event) for event in spooled(tmp_path, "run_progress")]
    states = [report.collection for report in reports if report.collection is not None]
    assert states[0].per_hour is None
    assert states[0].seconds_left is None
    middle, last = states[20], states[-1]
    assert middle.per_hour is not None
    assert middle.seconds_left == pytest.approx(3600 * (40 - reports[20].done) / middle.per_hour)
    assert (last.graded, last.running, last.seconds_left, last.cost) == (40, 0, 0.0, None)
    assert last.solved == sum((task + index) % 3 > 0 for task in range(5) for index in range(8))
    assert [report.done for report in reports] == sorted(report.done for report in reports)


async def test_steps_are_reported_before_the_first_rollout_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (collecting, run_context):
        monkeypatch.setattr(module, "REPORT_EVERY_S", 0.0)
    policy = TextPolicy(lambda context: [*[LOOK] * 4, SUBMIT][len(context.steps)])
    async with AsyncExitStack() as stack:
        requests = groups(tasks=1, size=2)
        await Attempt(tmp_path, 1, stack).collector(MemoryBackend(FILES), policy, requests=requests).collect()
    reports = [RunProgress.model_validate(event) for event in spooled(tmp_path, "run_progress")]
    states = [(report.done, report.collection) for report in reports if report.collection is not None]
    assert any(state.steps and state.running for done, state in states if done == 0)
    assert states[-1][1].steps == 10
    assert states[-1][1].endings == {"submitted": 2}


def collection(**changes: Any) -> RolloutRun:
    settings = {"limit": changes.pop("limit", None)}
    return RolloutRun(
        name="c", dataset=DatasetConfig(name="d", **settings), rollout=RolloutConfig(group_size=4), seed=3,
        collection=CollectionConfig(**changes),
    )  # fmt: skip


def requested(config: RolloutRun, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[GroupRequest]:
    rows: list[TaskRow] = [make_row(f"{n:02x}" * 8) for n in range(6)]
    monkeypatch.setattr(plan, "selected_rows", lambda _config, _run: rows)
    folder.mkdir(exist_ok=True, parents=True)
    run: Any = type("Run", (), {"run_dir": folder, "home": folder.parents[1]})
    return plan.planned_groups(config, run, "train")


def planned(config: RolloutRun, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    requests = requested(config, folder, monkeypatch)
    return [(int(group.row.task.id[:2], 16), group.size) for group in requests]


def record(folder: Path, *events: RunStarted | Trajectory, seed: int = 3) -> None:
    """Write the folder of an earlier run."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"kind": "rollout", "seed": seed}))
    with closing(SpoolSink(folder, epoch=1)) as sink:
        for event in events:
            if isinstance(event, Trajectory):
                sink.emit(TrajectoryFinished, **trajectory_fields(event))
            else:
                sink.emit(RunStarted, **event.model_dump(exclude={"seq", "epoch", "time", "type"}))


def started(**changes: Any) -> RunStarted:
    return RunStarted(seq=1, epoch=1, time=0.0, host="h", pid=1, **changes)


def test_tasks_are_shuffled_then_sliced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def tasks(**changes: Any) -> list[int]:
        return [task for task, _ in planned(collection(**changes), tmp_path / "runs" / "r", monkeypatch)]

    assert tasks() == [0, 1, 2, 3, 4, 5]
    assert tasks(start_index=2, limit=3) == [2, 3, 4]
    shuffled = tasks(shuffle=True)
    assert sorted(shuffled) == [0, 1, 2, 3, 4, 5] != shuffled
    assert tasks(shuffle=True, start_index=2, limit=3) == shuffled[2:5]
    with pytest.raises(ConfigError, match="6 is beyond the last of 6 tasks"):
        tasks(start_index=6)
    assert tasks(tasks=("03" * 8, "pkg__0101")) == [1, 3], "by ID and by instance ID"
    with pytest.raises(ConfigError, match="the split has no selected task absent"):
        tasks(tasks=("03" * 8, "absent"))


def test_plan_skips_finished_rollouts_or_solved_tasks_of_earlier_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewards: dict[int, list[float | None]] = {0: [1.0, 0.0], 1: [0.0] * 4, 2: [None, 0.0]}
    for name, tasks in (("one", [0, 1]), ("two", [2])):
        trajectories = [
            make(key(index, f"{task:02x}" * 8), reward)
            for task in tasks
            for index, reward in enumerate(rewards[task])
        ]
        record(tmp_path / "runs" / name, *trajectories)
    earlier = ("one", "two")
    finished = collection(skip="finished", skip_runs=earlier)
    assert planned(finished, tmp_path / "runs" / "a", monkeypatch) == [(0, 2), (2, 3), (3, 4), (4, 4), (5, 4)]
    solved = collection(skip="solved", skip_runs=earlier)
    assert planned(solved, tmp_path / "runs" / "b", monkeypatch) == [(n, 4) for n in range(1, 6)]
    (tmp_path / "runs" / "one" / SPOOL_NAME).unlink()
    assert len(planned(solved, tmp_path / "runs" / "b", monkeypatch)) == 5, "decided by the first attempt"
    with pytest.raises(ConfigError, match="there is no run 'one' with events"):
        planned(solved, tmp_path / "runs" / "c", monkeypatch)


def sampled(requests: Sequence[GroupRequest]) -> dict[int, list[int]]:
    """Return the requested indices of each task."""
    return {
        int(group.row.task.id[:2], 16): [rollout.key.index for rollout in group.rollouts()]
        for group in requests
    }


@pytest.mark.parametrize("skip", ["finished", "solved"])
def test_additional_rollouts_of_a_task_avoid_existing_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skip: str
) -> None:
    half = [make(key(index, f"{task:02x}" * 8), 0.0) for task, index in ((0, 0), (0, 1), (1, 2))]
    record(tmp_path / "runs" / "same", *half)
    record(tmp_path / "runs" / "other", make(key(3, "02" * 8), 0.0), seed=4)
    config = collection(skip=skip, skip_runs=("same", "other"))
    by_task = sampled(requested(config, tmp_path / "runs" / "a", monkeypatch))
    wanted = {0: 2, 1: 3, 2: 3, 3: 4, 4: 4, 5: 4} if skip == "finished" else dict.fromkeys(range(6), 4)
    assert {task: len(indices) for task, indices in by_task.items()} == wanted
    assert not set(by_task[0]) & {0, 1}
    assert 2 not in by_task[1]
    assert by_task[2][0] == by_task[3][0] == 0, "another seed repeats nothing"
    repeated = sampled(requested(config, tmp_path / "runs" / "a", monkeypatch))
    assert repeated == by_task, "decided by the first attempt"


def test_plan_counts_distinct_samples_and_training_iterations_separately(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Include a resumed training run that repeated the iteration after its checkpoint."""
    task = "00" * 8
    keys = [replace(key(0, task), iteration=iteration) for iteration in range(3)]
    evaluated = replace(key(0, task), phase="eval:train", iteration=2)
    trained = [make(sample, 0.0) for sample in (*keys, evaluated)]
    record(tmp_path / "runs" / "trained", started(), *trained, started(resumed_from=2), trained[3], seed=9)
    record(tmp_path / "runs" / "one", make(key(0, "01" * 8), 0.0), make(key(1, "01" * 8), 1.0))
    record(tmp_path / "runs" / "same", make(key(1, "01" * 8), 1.0), make(key(2, "01" * 8), 1.0))
    config = collection(skip="finished", skip_runs=("trained", "one", "same"))
    by_task = sampled(requested(config, tmp_path / "runs" / "a", monkeypatch))
    assert by_task[0] == [0], "iterations 0 and 1, and the evaluation after two"
    assert by_task[1] == [3], "three that differ"


def test_rollouts_are_solved_in_collections_as_in_evaluations() -> None:
    metrics, evaluated = RolloutMetrics(), EvaluationTally()
    for number in range(40):
        trajectory = make(key(number % 4, f"t{number % 5}"), [1.0, 0.0, None][number % 3])
        metrics.add(RolloutSummary.of(trajectory))
        assert trajectory.grade is not None
        solved = is_solved(trajectory.termination, trajectory.reward, trajectory.grade.verdict)
        evaluated.add(trajectory.key.task_id, solved=solved)
    assert metrics.tally.summary() == evaluated.summary()


def test_evaluations_within_training_use_their_own_agent_and_temperature(tmp_path: Path) -> None:
    own = {"evaluation.max_steps": 9, "evaluation.rollout_timeout_s": 60.0, "evaluation.temperature": 0.25}
    config = resolve("frozenlake", own)
    assert isinstance(config, TrainRun)
    run: Any = type("Run", (), {"sink": None, "closing": AsyncExitStack(), "rollouts": None})
    lakes = RunEnvironments(factory=FrozenLakeEnvironments(agent=config.agent))
    training = build_scheduler(config, run, lakes, OraclePolicy())._parts
    evaluating = build_scheduler(config, run, lakes, OraclePolicy(), evaluation=config.evaluation)._parts
    assert training.agent == config.agent
    assert (evaluating.agent.max_steps, evaluating.agent.rollout_timeout_s) == (9, 60.0)
    assert evaluating.environments.agent == evaluating.agent  # type: ignore[attr-defined]
    assert (training.sampling.temperature, evaluating.sampling.temperature) == (1.0, 0.25)
    assert replace(evaluating.sampling, temperature=1.0) == training.sampling


def test_evaluation_context_must_exceed_the_response_limit() -> None:
    with pytest.raises(ConfigError, match=r"evaluation\.max_context: 192 must exceed agent\.max_response"):
        resolve("quickstart", {"evaluation.max_context": 192})
    resolve("quickstart", {"evaluation.max_context": 193})
