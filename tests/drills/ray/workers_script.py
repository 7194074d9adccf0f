"""Rollouts in four workers on a Ray cluster: ``python -m tests.drills.ray.workers_script``.

The script prints ``acting`` once every rollout waits in its second turn, continues at the next line of its
input, and then prints the rewards and the number of starts of each rollout.
"""

from __future__ import annotations

import asyncio
import json
import sys

from engine.config.placement import worker_bundles
from engine.config.rollout import RolloutConfig
from engine.config.sandbox import SandboxConfig
from engine.inference.base import ChatRequest, ChatResponse
from engine.ray.launcher import RayProcesses
from engine.ray.placement import ignore
from engine.rollout import GroupRequest
from engine.sandbox.pool.pool import SandboxPool
from tests.builders.rollout_builders import SUBMIT, PatchGrader, Recorder, make_row, respond, swe_scheduler
from tests.builders.worker_builders import TurnsPolicy, opened_workers
from tests.fakes.memory_sandbox import MemoryBackend

FIX = respond("file_editor", command="str_replace", path="pkg/m.py", old_str="a - 1\n", new_str="a + 1\n")
WORKERS = 4
"""The CPUs of two nodes, so that no node has room for all workers."""
SIBLINGS = 8
CONFIG = RolloutConfig(workers=WORKERS, launcher="ray")


class Held(TurnsPolicy):
    """Policy that delays second turns until ``may_go_on`` is set."""

    def __init__(self) -> None:
        super().__init__((FIX, SUBMIT))
        self.may_go_on, self.held = asyncio.Event(), 0

    async def respond(self, request: ChatRequest) -> ChatResponse:
        response = await super().respond(request)
        if self.turns[request.context.key] == 2:
            self.held += 1
            if self.held == SIBLINGS:
                print("acting", flush=True)
            await self.may_go_on.wait()
        return response


async def main() -> None:
    pool, recorder, policy = SandboxPool(MemoryBackend(), SandboxConfig()), Recorder(), Held()
    launcher = RayProcesses(worker_bundles(CONFIG), name="rollout workers", notice=ignore)
    async with opened_workers(pool, PatchGrader(), count=WORKERS, launcher=launcher) as workers:
        scheduler = swe_scheduler(pool, policy, workers=workers, observer=recorder)
        request = GroupRequest(row=make_row(), iteration=0, phase="train", size=SIBLINGS)
        collecting = asyncio.create_task(scheduler.collect([request]))
        await asyncio.to_thread(sys.stdin.readline)
        policy.may_go_on.set()
        (group,) = await collecting
        starts = [recorder.of(rollout.key).count("started") for rollout in recorder.finished]
        print(json.dumps([[item.reward for item in group.trajectories], sorted(starts)]), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
