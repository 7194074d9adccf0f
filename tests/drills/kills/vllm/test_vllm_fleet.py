"""Server processes of a vLLM policy that are killed, or closed while they start."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from engine.inference.vllm.replicas import Replica
from tests.builders.vllm_policies import NoWeights, Stamps, make_request, pid_of, started, until


def server_pids(replica: Replica) -> list[int]:
    """Return the IDs of the server processes under the guard."""
    assert replica.server is not None
    pid = pid_of(replica.server)
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(pid) for pid in children.split()]


async def test_killed_server_loses_no_request_and_restarts_with_current_weights(tmp_path: Path) -> None:
    publisher = Stamps()
    slow = ("--token-s", "0.02")
    async with started(tmp_path, slow, slow, publisher=publisher) as (policy, replicas, sink):
        await policy.publish(4, NoWeights())
        requests = [make_request(i, seed=3, max_tokens=60) for i in range(6)]
        running = [asyncio.create_task(policy.generate(request)) for request in requests]
        await until(lambda: all(len(replica.requests) == 3 for replica in replicas))
        for pid in server_pids(replicas[0]):
            os.kill(pid, signal.SIGKILL)
        generations = await asyncio.gather(*running)
        assert all(item.ids[-1] == 7 or len(item.ids) == 60 for item in generations)
        assert all(set(item.versions) == {4} for item in generations)
        await until(lambda: replicas[0].is_ready)
        assert (replicas[0].restarts, replicas[0].version, publisher.restored) == (1, 4, 1)
        assert sink.alerts() == ["engine_restarted"]
        (alert,) = [event for event in sink.events if event["type"] == "alert"]
        assert alert["message"].endswith(f"; its log is {tmp_path / '0.log'}")
        assert (await policy.take_metrics())["engine/restarts"] == 1.0
        assert set((await policy.generate(make_request(7))).versions) == {4}
    assert all(replica.server is not None and not replica.server.is_alive() for replica in replicas)


async def test_closing_during_server_start_leaves_no_process(tmp_path: Path) -> None:
    async with started(tmp_path, (), ()) as (_, replicas, _sink):
        await until(lambda: all(item.server is not None and item.server.is_alive() for item in replicas))
    assert all(replica.server is not None and not replica.server.is_alive() for replica in replicas)
