"""VllmPolicy over fake servers: routing, admission and failover."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from engine.errors import EngineError, ModelError
from engine.inference import waits
from engine.inference.vllm.clients.client import VllmClient
from engine.inference.vllm.replicas import ReplicaState
from tests.builders.vllm_policies import attached, make_request, until, whole
from tests.builders.web.endpoint_builders import Clock
from tests.fakes.vllm_server import Fault


async def test_trajectories_stay_on_their_replica_and_are_spread_evenly() -> None:
    async with attached(2) as rig:
        for turn in range(4):
            prompts = [[100 + index, *range(4 * turn + 3)] for index in range(6)]
            requests = [make_request(i, prompt, turn=turn) for i, prompt in enumerate(prompts)]
            generations = await asyncio.gather(*map(rig.policy.generate, requests))
            assert [generation.ids for generation in generations] == [whole(request) for request in requests]
            assert all(set(generation.versions) == {0} for generation in generations)
    homes = [{prompt[0] for prompt in fake.prompts} for fake in rig.fakes]
    assert (len(homes[0]), len(homes[1])) == (3, 3)
    assert not homes[0] & homes[1]


async def test_new_trajectories_start_on_the_least_loaded_replica() -> None:
    async with attached(2) as rig:
        await rig.policy.generate(make_request(0, range(500)))
        for index in range(1, 5):
            await rig.policy.generate(make_request(index, (index,)))
        assert [len(fake.prompts) for fake in rig.fakes] == [1, 4]
        rig.policy.release(make_request(0).context.key)
        for index in range(5, 8):
            await rig.policy.generate(make_request(index, (index,)))
        assert [len(fake.prompts) for fake in rig.fakes] == [4, 4]


async def test_new_trajectories_wait_in_order_and_started_ones_never_wait() -> None:
    # Each reserves 3 + 40 tokens; 90 % of 100 tokens suffice for two.
    async with attached(1, cache_tokens=100) as rig:
        began: list[int] = []

        async def first(index: int) -> None:
            await rig.policy.generate(make_request(index))
            began.append(index)

        tasks = [asyncio.create_task(first(index)) for index in range(5)]
        await until(lambda: len(began) == 2)
        await asyncio.sleep(0)
        assert (began, rig.policy._admission.num_waiting) == ([0, 1], 3)
        await rig.policy.generate(make_request(0, range(60), turn=1))  # exceeds the capacity and continues
        await rig.policy.generate(make_request(9, range(60), turn=3))  # unknown here, but past its first turn
        assert began == [0, 1]
        rig.policy.release(make_request(9).context.key)
        rig.policy.release(make_request(0).context.key)
        await until(lambda: len(began) == 3)
        rig.policy.release(make_request(1).context.key)
        await until(lambda: len(began) == 4)
        for index in (2, 3):
            rig.policy.release(make_request(index).context.key)
        await asyncio.gather(*tasks)
        assert began == [0, 1, 2, 3, 4]
        assert rig.fakes[0].max_running <= 2


async def test_conversations_larger_than_the_cache_get_an_exclusive_replica() -> None:
    async with attached(1, cache_tokens=20) as rig:
        small = make_request(0, (1,), max_tokens=4)
        await rig.policy.generate(small)
        large = asyncio.create_task(rig.policy.generate(make_request(1, range(50))))
        await until(lambda: rig.policy._admission.num_waiting)
        assert not large.done()
        rig.policy.release(small.context.key)
        assert (await large).ids == whole(make_request(1, range(50)))


async def test_cancelled_requests_leave_the_queue_and_are_aborted_on_the_server() -> None:
    async with attached(1, cache_tokens=100, token_s=0.05) as rig:
        running = [asyncio.create_task(rig.policy.generate(make_request(i, max_tokens=41))) for i in range(2)]
        await until(lambda: len(rig.fakes[0].running) == 2)
        waiting = [asyncio.create_task(rig.policy.generate(make_request(i))) for i in (2, 3)]
        await until(lambda: rig.policy._admission.num_waiting == 2)
        waiting[0].cancel()
        running[0].cancel()
        await asyncio.gather(waiting[0], running[0], return_exceptions=True)
        await until(lambda: rig.fakes[0].aborted)
        assert rig.policy._admission.num_waiting == 1
        rig.policy.release(make_request(0).context.key)
        rig.fakes[0].token_s = 0.0
        assert (await waiting[1]).ids == whole(make_request(3))
        assert rig.replicas[0].reserved == 44 + 43
        await running[1]
    assert rig.replicas[0].requests == set()


async def test_unreleased_conversations_expire_and_free_their_capacity(monkeypatch: Any) -> None:
    monkeypatch.setattr("engine.inference.vllm.admission.FORGET_S", 0.0)
    monkeypatch.setattr("engine.inference.vllm.monitor.POLL_S", 0.01)
    async with attached(1, cache_tokens=100) as rig:
        for index in range(2):
            await rig.policy.generate(make_request(index))
        later = asyncio.create_task(rig.policy.generate(make_request(2)))
        assert (await later).ids == whole(make_request(2))


@pytest.mark.parametrize(
    ("kind", "after"),
    [("error", 0), ("nan", 8), ("short", 0), ("beyond", 8), ("oom", 0), ("oom", 8), ("version", 0)],
)
async def test_failed_requests_are_sampled_on_another_engine(kind: Any, after: int) -> None:
    async with attached(2) as rig:
        request = make_request(max_tokens=60, seed=3)
        assert len(whole(request)) > 8
        rig.fakes[0].faults.append(Fault(kind=kind, after=after, requests=-1))
        generation = await rig.policy.generate(request)
        assert len(generation.ids) == len(generation.logprobs) == len(generation.versions)
        assert generation.ids[-1] == 7 or len(generation.ids) == 60
        assert all(logprob <= 0 for logprob in generation.logprobs)
        assert set(generation.versions) == {0}
        kept = 8 if kind == "oom" and after else 0
        assert generation.ids[:kept] == whole(request)[:kept]
        if not kept:
            assert generation.ids == whole(request)
        assert rig.fakes[1].prompts[-1] == [1, 2, 3, *whole(request)[:kept]]
        assert not rig.replicas[0].is_ready
        assert "engine_left_out" in rig.sink.alerts()


async def test_an_engine_that_cuts_every_connection_is_left_out_though_healthy() -> None:
    async with attached(2) as rig:
        request = make_request(max_tokens=60, seed=3)
        rig.fakes[0].faults.append(Fault(kind="cut", after=4, requests=-1))
        generation = await rig.policy.generate(request)
        assert generation.ids[:4] == whole(request)[:4]
        assert [len(prompt) for prompt in rig.fakes[0].prompts] == [3, 7, 11]
        assert [len(prompt) for prompt in rig.fakes[1].prompts] == [15]
        assert rig.sink.alerts() == ["engine_left_out"]


async def test_responses_that_lost_only_their_end_are_complete() -> None:
    async with attached(2) as rig:
        request = make_request(seed=3)
        length = len(whole(request))
        rig.fakes[0].faults.append(Fault(kind="oom", after=length))
        generation = await rig.policy.generate(request)
        assert generation.ids == whole(request)
        assert generation.stopped is (generation.ids[-1] == 7)
        assert rig.fakes[1].prompts == []


async def test_hung_engines_are_abandoned_but_tokens_are_kept(skip_time: Callable[[float], None]) -> None:
    async with attached(2, stall_timeout_s=5.0) as rig:
        request = make_request(max_tokens=60, seed=3)
        rig.fakes[0].faults.append(Fault(kind="hang", after=8))
        generating = asyncio.create_task(rig.policy.generate(request))
        await until(lambda: rig.fakes[0].counters["generation_tokens"] == 8)
        skip_time(6.0)
        generation = await generating
        assert generation.ids[:8] == whole(request)[:8]
        assert rig.fakes[1].prompts == [[1, 2, 3, *whole(request)[:8]]]


async def test_a_single_broken_connection_does_not_leave_out_a_healthy_engine() -> None:
    async with attached(1) as rig:
        rig.fakes[0].faults.append(Fault(kind="cut", after=4))
        generation = await rig.policy.generate(make_request(max_tokens=60, seed=3))
        assert generation.ids[:4] == whole(make_request(max_tokens=60, seed=3))[:4]
        assert rig.replicas[0].is_ready
        assert rig.sink.alerts() == []


async def test_attached_engines_return_once_healthy_and_proven() -> None:
    async with attached(2) as rig:
        rig.publisher.unproven[rig.addresses[0]] = 2
        rig.fakes[0].faults.append(Fault(kind="oom"))
        await rig.policy.generate(make_request())
        assert rig.replicas[0].state is ReplicaState.LEFT_OUT
        rig.fakes[0].is_dead = False
        rig.fakes[0].version = "stale"
        await until(lambda: rig.replicas[0].is_ready)
        assert (rig.publisher.restored, rig.fakes[0].version) == (3, "0")
        assert rig.replicas[0].version == 0


async def test_refused_requests_do_not_leave_out_the_engine() -> None:
    async with attached(2) as rig:
        rig.fakes[0].faults.append(Fault(kind="refuse"))
        with pytest.raises(EngineError, match="400"):
            await rig.policy.generate(make_request())
        assert all(replica.is_ready for replica in rig.replicas)


async def test_impossible_requests_reach_no_engine() -> None:
    async with attached(1) as rig:
        for request in (
            make_request(prompt=()),
            make_request(prompt=range(2040)),
            make_request(max_tokens=0),
        ):
            with pytest.raises(ModelError):
                await rig.policy.generate(request)
        assert rig.fakes[0].prompts == []


async def test_requests_fail_without_engines_and_succeed_once_one_returns(
    skip_time: Callable[[float], None],
) -> None:
    async with attached(2, stall_timeout_s=600.0) as rig:
        for fake in rig.fakes:
            fake.is_dead = True
        lost = asyncio.create_task(rig.policy.generate(make_request()))
        await until(lambda: "engines_lost" in rig.sink.alerts())
        assert not lost.done()
        skip_time(601.0)
        with pytest.raises(ModelError, match="no engine is left.*engine-0.*engine-1"):
            await lost
        with pytest.raises(ModelError, match="no engine is left"):
            await rig.policy.generate(make_request(1))
        assert rig.sink.alerts().count("engines_lost") == 1
        rig.fakes[1].is_dead = False
        await until(lambda: rig.replicas[1].is_ready)
        assert (await rig.policy.generate(make_request())).ids == whole(make_request())


async def test_servers_left_paused_by_an_earlier_run_are_resumed() -> None:
    async with attached(1, publish=False) as rig:
        rig.fakes[0]._resumed.clear()
        await until(lambda: rig.replicas[0].is_up)
        assert rig.fakes[0]._resumed.is_set()


async def test_restarted_servers_are_detected_by_the_version_of_their_tokens() -> None:
    async with attached(2) as rig:
        rig.fakes[0].version = "default"
        assert (await rig.policy.generate(make_request())).ids == whole(make_request())
        assert rig.fakes[1].prompts == [[1, 2, 3]]
        assert rig.sink.alerts() == ["engine_left_out"]
        await until(lambda: rig.replicas[0].is_ready)
        assert rig.fakes[0].version == "0"


async def test_an_unexpected_error_does_not_end_the_supervision_of_an_engine(monkeypatch: Any) -> None:
    async with attached(2) as rig:
        restore, errors = rig.publisher.restore, [ValueError("unexpected")]

        async def broken(client: VllmClient) -> bool:
            if errors:
                raise errors.pop()
            return await restore(client)

        monkeypatch.setattr(rig.publisher, "restore", broken)
        rig.fakes[0].faults.append(Fault(kind="nan"))
        await rig.policy.generate(make_request(seed=3))
        await until(lambda: rig.replicas[0].is_ready)
        assert not errors


async def test_iterations_report_engine_metrics_and_events() -> None:
    async with attached(2) as rig:
        await rig.policy.take_metrics()
        tokens = 0
        for turn in range(3):
            for index in range(4):
                request = make_request(
                    index, range(100 * index, 100 * index + 40 * (turn + 1)), turn=turn, iteration=2
                )
                tokens += len((await rig.policy.generate(request)).ids)
        metrics = await rig.policy.take_metrics()
        always_reported = {f"engine/{name}" for name in ("prefix_hit_rate", "tokens_per_s", "restarts")}
        always_reported.add("time/engine_busy")
        polled = {f"engine/{name}" for name in ("kv_use", "running", "waiting")}
        assert set(metrics) - polled == always_reported
        assert metrics["engine/prefix_hit_rate"] == pytest.approx((40 + 80) / (40 + 80 + 120))
        assert metrics["engine/tokens_per_s"] > 0
        assert (await rig.policy.take_metrics())["engine/tokens_per_s"] == 0.0
        rig.fakes[0].is_dead = True
        await rig.policy.generate(make_request(0, turn=9))
        await until(lambda: rig.sink.events[-1]["type"] == "engines_reported")
        last = rig.sink.events[-1]
        assert last["iteration"] in (0, 2)
        states = {replica["name"]: replica["state"] for replica in last["replicas"]}
        assert "ready" in states.values()


async def test_waits_for_engines_do_not_count_as_rollout_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(waits, "time", clock)
    async with attached(1, cache_tokens=100) as rig:
        first, second, third = (make_request(i, seed=3, max_tokens=40) for i in range(3))
        key = third.context.key
        await asyncio.gather(rig.policy.generate(first), rig.policy.generate(second))
        waiting = asyncio.create_task(rig.policy.generate(third))
        await until(lambda: rig.policy._admission.num_waiting)
        clock.now += 5.0
        assert rig.policy.waited_seconds(key) == 5.0
        count = rig.fakes[0]._count_prefix

        def count_slowly(prompt: Sequence[int]) -> None:
            clock.now += 3.0
            count(prompt)

        monkeypatch.setattr(rig.fakes[0], "_count_prefix", count_slowly)
        rig.fakes[0].faults.append(Fault(kind="cut", after=20))
        rig.policy.release(first.context.key)
        await waiting
        assert rig.policy.waited_seconds(key) == 8.0, "the attempt that failed, and not the other"
        rig.policy.release(key)
        assert rig.policy.waited_seconds(key) == 0.0


async def test_engine_load_is_sampled_during_a_long_iteration(monkeypatch: Any) -> None:
    monkeypatch.setattr("engine.inference.vllm.monitor.POLL_S", 0.01)
    async with attached(2, token_s=0.01) as rig:
        requests = (make_request(i, seed=3, max_tokens=40) for i in range(4))
        await asyncio.gather(*map(rig.policy.generate, requests))
        metrics = await rig.policy.take_metrics()
        assert 0 < metrics["engine/running"] <= 4
        assert 0 < metrics["engine/kv_use"] < 0.5
        assert metrics["engine/waiting"] == 0.0
        assert not {"engine/running", "engine/kv_use"} & set(await rig.policy.take_metrics())
