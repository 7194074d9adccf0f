"""VllmPolicy over fake servers across publications: requests in flight, replicas without proof."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest

from engine.errors import PublicationError, TrainerError
from engine.inference.vllm.replicas import ReplicaState
from tests.builders.vllm_policies import NoWeights, attached, make_request, until, whole
from tests.fakes.vllm_server import Fault


@pytest.mark.parametrize("mode", ["finish", "abort", "keep"])
async def test_requests_follow_the_mode_of_a_publication(mode: Literal["finish", "abort", "keep"]) -> None:
    async with attached(2, token_s=0.005, in_flight=mode) as rig:
        requests = [make_request(i, seed=3, max_tokens=60) for i in range(4)]
        early = [asyncio.create_task(rig.policy.generate(request)) for request in requests]
        await until(lambda: sum(fake.counters["prompt_tokens"] > 0 for fake in rig.fakes) == 2)
        await asyncio.sleep(0.05)
        num_running: list[int] = []

        async def during() -> None:
            num_running.append(sum(len(fake.running) for fake in rig.fakes))
            late.append(asyncio.create_task(rig.policy.generate(make_request(9, (5,)))))
            await asyncio.sleep(0.05)
            assert sum(prompt == [5] for fake in rig.fakes for prompt in fake.prompts) == 0

        late: list[asyncio.Task[Any]] = []
        for fake in rig.fakes:
            fake.pauses.clear()
        rig.publisher.during = during
        metrics = await rig.policy.publish(1, NoWeights())
        assert metrics["publish/replicas"] == 2.0
        generations = await asyncio.gather(*early)
        assert set((await late[0]).versions) == {1}
        versions = [set(generation.versions) for generation in generations]
        if mode == "finish":
            assert (num_running, versions) == ([0], [{0}] * 4)
        elif mode == "abort":
            assert (num_running, versions) == ([0], [{1}] * 4)
        else:
            assert num_running == [4]
            assert versions == [{0, 1}] * 4
            assert [fake.pauses[-1] for fake in rig.fakes] == ["keep", "keep"]
        assert [generation.ids for generation in generations] == [whole(request) for request in requests]


async def test_unproven_replicas_never_sample() -> None:
    async with attached(2) as rig:
        rig.publisher.unproven[rig.addresses[0]] = 1000
        metrics = await rig.policy.publish(1, NoWeights())
        assert metrics["publish/replicas"] == 1.0
        assert rig.sink.alerts() == ["publication_failed", "engine_left_out"]
        generations = await asyncio.gather(*(rig.policy.generate(make_request(i)) for i in range(4)))
        assert all(set(generation.versions) == {1} for generation in generations)
        assert rig.fakes[0].prompts == []
        rig.publisher.unproven[rig.addresses[0]] = 0
        await until(lambda: rig.replicas[0].is_ready)


@pytest.mark.parametrize("cut", [False, True])
async def test_tokens_sampled_during_a_proof_count_only_if_it_succeeds(cut: bool) -> None:
    async with attached(2, token_s=0.005, in_flight="keep") as rig:
        if cut:  # tokens of failed requests are kept otherwise
            rig.fakes[0].faults.append(Fault(kind="cut", after=48))
        requests = [make_request(i, seed=3, max_tokens=60) for i in range(2)]
        early = [asyncio.create_task(rig.policy.generate(request)) for request in requests]
        await until(lambda: all(fake.counters["prompt_tokens"] for fake in rig.fakes))

        async def ended() -> None:
            await until(lambda: not rig.fakes[0].running)

        rig.publisher.proving = ended
        rig.publisher.unproven[rig.addresses[0]] = 1000
        await rig.policy.publish(1, NoWeights())
        generations = await asyncio.gather(*early)
        assert [generation.ids for generation in generations] == [whole(request) for request in requests]
        assert rig.fakes[1].prompts == [[1, 2, 3]] * 2, "what engine-0 sampled is sampled anew"


async def test_interrupted_publications_discard_their_tokens() -> None:
    async with attached(1, token_s=0.005, in_flight="keep") as rig:
        request = make_request(seed=3, max_tokens=60)
        early = asyncio.create_task(rig.policy.generate(request))
        await until(lambda: rig.fakes[0].counters["prompt_tokens"])

        async def fail() -> None:
            await until(lambda: not rig.fakes[0].running)
            raise TrainerError("a rank ended")

        rig.publisher.proving = fail
        with pytest.raises(TrainerError, match="a rank ended"):
            await rig.policy.publish(1, NoWeights())
        rig.publisher.proving = None
        await rig.policy.publish(2, NoWeights())
        generation = await early
        assert (set(generation.versions), generation.ids) == ({2}, whole(request))


async def test_publications_without_any_proof_are_errors() -> None:
    async with attached(2) as rig:
        rig.publisher.unproven = dict.fromkeys(rig.addresses, 1000)
        with pytest.raises(PublicationError, match="version 1.*engine-0.*engine-1"):
            await rig.policy.publish(1, NoWeights())


async def test_a_failed_publication_blocks_sampling_until_the_next_succeeds() -> None:
    async with attached(2) as rig:

        async def fail() -> None:
            raise TrainerError("a rank ended")

        await rig.policy.generate(make_request())
        rig.publisher.during = fail
        with pytest.raises(TrainerError, match="a rank ended"):
            await rig.policy.publish(1, NoWeights())
        assert [(r.state, r.version) for r in rig.replicas] == [(ReplicaState.STARTING, None)] * 2
        later = asyncio.create_task(rig.policy.generate(make_request(turn=1)))
        await until(lambda: rig.policy._admission.num_waiting)
        rig.publisher.during = None
        await rig.policy.publish(2, NoWeights())
        assert set((await later).versions) == {2}


async def test_an_engine_that_fails_during_a_publication_is_left_out_once() -> None:
    async with attached(2, token_s=0.01) as rig:
        rig.fakes[1].faults.append(Fault(kind="oom", after=8))
        early = [asyncio.create_task(rig.policy.generate(make_request(i, seed=3))) for i in range(2)]
        await until(lambda: all(replica.requests for replica in rig.replicas))
        metrics = await rig.policy.publish(1, NoWeights())
        assert metrics["publish/replicas"] == 1.0
        assert rig.sink.alerts() == ["engine_left_out"]
        await asyncio.gather(*early)


async def test_sampling_waits_for_the_first_proof() -> None:
    async with attached(1, publish=False) as rig:
        early = asyncio.create_task(rig.policy.generate(make_request(0)))
        await until(lambda: rig.replicas[0].is_up)
        late = asyncio.create_task(rig.policy.generate(make_request(1)))
        await until(lambda: rig.policy._admission.num_waiting == 2)
        assert rig.fakes[0].prompts == []
        await rig.policy.publish(3, NoWeights())
        for generation in await asyncio.gather(early, late):
            assert set(generation.versions) == {3}
