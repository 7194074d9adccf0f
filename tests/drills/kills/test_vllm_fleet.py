"""Servers of a policy's own, in processes: started, killed, restarted within limits, and left out."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import aiohttp
import pytest

from engine.errors import ModelError, PublicationError
from engine.inference.vllm.replicas import Replica, ReplicaState
from tests.builders.vllm_policies import NoWeights, Stamps, make_request, pid_of, started, until
from tests.fakes.vllm_server import Fault


def server_pids(replica: Replica) -> list[int]:
    """Pids of the server under the guard."""
    assert replica.server is not None
    pid = pid_of(replica.server)
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(pid) for pid in children.split()]


async def add_fault(replica: Replica, fault: Fault) -> None:
    """Make a server in a process misbehave."""
    assert replica.server is not None
    headers = {"Authorization": f"Bearer {replica.server.api_key}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        await session.post(f"{replica.server.address}/faults", json=vars(fault))


async def test_a_killed_server_loses_no_request_and_is_restarted_and_proven(tmp_path: Path) -> None:
    publisher = Stamps()
    slow = ("--token-s", "0.02")
    async with started(tmp_path, slow, slow, publisher=publisher) as (policy, replicas, sink):
        await policy.publish(4, NoWeights())
        requests = [make_request(i, seed=3, max_tokens=60) for i in range(6)]
        running = [asyncio.create_task(policy.generate(one)) for one in requests]
        await until(lambda: all(len(one.requests) == 3 for one in replicas))
        for pid in server_pids(replicas[0]):
            os.kill(pid, signal.SIGKILL)
        generations = await asyncio.gather(*running)
        assert all(one.ids[-1] == 7 or len(one.ids) == 60 for one in generations)
        assert all(set(one.versions) == {4} for one in generations)
        await until(lambda: replicas[0].is_ready)
        assert (replicas[0].restarts, replicas[0].version, publisher.restored) == (1, 4, 1)
        assert sink.alerts() == ["engine_restarted"]
        (alert,) = [event for event in sink.events if event["type"] == "alert"]
        assert alert["message"].endswith(f"; its log is {tmp_path / '0.log'}")
        assert (await policy.take_metrics())["engine/restarts"] == 1.0
        assert set((await policy.generate(make_request(7))).versions) == {4}
    assert all(one.server is not None and not one.server.is_alive() for one in replicas)


async def test_a_server_that_ends_unnoticed_is_restarted(tmp_path: Path) -> None:
    async with started(tmp_path, ()) as (policy, replicas, _):
        await policy.publish(0, NoWeights())
        for pid in server_pids(replicas[0]):
            os.kill(pid, signal.SIGKILL)
        await until(lambda: replicas[0].restarts)
        await until(lambda: replicas[0].is_ready)


async def test_a_server_that_fails_too_often_is_left_out(tmp_path: Path) -> None:
    async with started(tmp_path, (), (), max_restarts=1) as (policy, replicas, sink):
        await policy.publish(0, NoWeights())
        for _ in range(2):
            await add_fault(replicas[0], Fault(kind="nan"))
            while not (await policy.generate(make_request())).ids or replicas[0].is_ready:
                policy.release(make_request().context.key)
            await until(lambda: replicas[0].is_ready or replicas[0].is_out)
        assert replicas[0].is_out
        assert "restarted 1 times" in replicas[0].detail
        assert sink.alerts() == ["engine_restarted", "engine_left_out"]
        assert replicas[0].server is not None
        assert not replicas[0].server.is_alive()
        assert (await policy.generate(make_request(1))).ids


async def test_servers_that_cannot_start_end_the_publication(tmp_path: Path) -> None:
    async with started(tmp_path, ("--broken",), max_restarts=1) as (policy, replicas, sink):
        with pytest.raises(PublicationError, match="(?s)engine-0.*out of memory"):
            await policy.publish(0, NoWeights())
        assert replicas[0].state is ReplicaState.LEFT_OUT
        assert sink.alerts() == ["engine_restarted", "engine_left_out", "engines_lost"]


async def test_a_restarted_server_that_proves_nothing_does_not_serve(tmp_path: Path) -> None:
    publisher = Stamps()
    async with started(tmp_path, (), publisher=publisher, max_restarts=2, stall_timeout_s=5.0) as (
        policy,
        replicas,
        _,
    ):
        await policy.publish(0, NoWeights())
        publisher.never = True
        await add_fault(replicas[0], Fault(kind="oom"))
        with pytest.raises(ModelError, match="does not prove that it serves version 0"):
            await policy.generate(make_request())
        assert replicas[0].is_out


async def test_closing_while_servers_start_leaves_none(tmp_path: Path) -> None:
    async with started(tmp_path, (), ()) as (_, replicas, _sink):
        await until(lambda: all(one.server is not None and one.server.is_alive() for one in replicas))
    assert all(one.server is not None and not one.server.is_alive() for one in replicas)
