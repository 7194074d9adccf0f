"""VllmPolicy on real vLLM servers: rollouts during the kill of an engine, and a training run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import psutil
import pytest
import torch

from engine.config.recipes import resolve
from engine.config.run import EvaluateRun
from engine.events.delivery.control import Control
from engine.events.delivery.spool import SpoolSink
from engine.inference.vllm.policy import VllmPolicy
from engine.orchestrator.context import RunContext
from engine.orchestrator.policies.policies import open_run_policy
from engine.orchestrator.setup import build_scheduler, load_rows, open_environments
from engine.rollout.scheduler import GroupRequest
from engine.types import Group, TerminationReason
from tests.builders.vllm_policies import pid_of
from tests.drills.vllm.servers import PARITY
from tests.unit.environments.lake_builders import SMALL, of_type, perform, small_run

pytestmark = pytest.mark.usefixtures("vllm_python")
ENGINES = {"policy.engine": "vllm"}


def evaluation() -> EvaluateRun:
    """Configure an evaluation of a random policy on two engines; most rollouts have eight turns."""
    lake = {name: value for name, value in SMALL.items() if name.startswith("environment.")}
    settings = {
        "policy.checkpoint": "fresh:frozenlake",
        "policy.vllm.replicas": 2,
        "rollout.max_concurrent": 64,
    }
    config = resolve("frozenlake-evaluate", {**lake, **ENGINES, **settings})
    assert isinstance(config, EvaluateRun)
    return config


async def kill_an_engine_in_mid_rollout(policy: VllmPolicy, run_dir: Path) -> None:
    """Kill all processes of an engine except its guard, once it has requests and a turn is finished."""
    replica = policy._fleet.replicas[0]
    while not (replica.requests and b"step_finished" in (run_dir / "events.jsonl").read_bytes()):
        await asyncio.sleep(0.01)
    assert replica.server is not None
    for process in psutil.Process(pid_of(replica.server)).children(recursive=True):
        os.kill(process.pid, signal.SIGKILL)


async def rollouts(config: EvaluateRun, run: RunContext) -> list[Group]:
    """Roll out every held-out map 24 times, while an engine is killed and restarted."""
    policy = await open_run_policy(config.policy, config.agent, run)
    assert isinstance(policy, VllmPolicy)
    try:
        scheduler = build_scheduler(config, run, await open_environments(config, run), policy)
        rows = load_rows(config, run.home, config.dataset.name, "heldout")
        requests = [GroupRequest(row=row, iteration=0, phase="eval:heldout", size=24) for row in rows]
        killing = asyncio.create_task(kill_an_engine_in_mid_rollout(policy, run.run_dir))
        groups = await scheduler.collect(requests)
        await killing
        killed = policy._fleet.replicas[0]
        while not (killed.restarts and killed.is_ready):  # the last rollout may not need it
            await asyncio.sleep(0.1)
        assert killed.version == 0
    finally:
        await policy.close()
    await run.closing.aclose()
    return groups


async def test_engine_killed_during_rollouts_loses_no_trajectory(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    run_dir = tmp_path / "runs" / "killed"
    run_dir.mkdir(parents=True)
    before = psutil_children_of_vllm()
    sink = SpoolSink(run_dir, epoch=1)
    run = RunContext(run_id="killed", epoch=1, run_dir=run_dir, home=tmp_path, sink=sink, control=Control())
    groups = await rollouts(evaluation(), run)
    sink.close()
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    assert len(trajectories) == 72
    lost = (TerminationReason.MODEL_ERROR, TerminationReason.ENV_ERROR, TerminationReason.CANCELLED)
    assert not [item.error for item in trajectories if item.termination in lost]
    assert all(item.reward is not None for item in trajectories)
    events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    assert [event["code"] for event in of_type(events, "alert")] == ["engine_restarted"]
    states = {(e["name"], e["state"]) for row in of_type(events, "engines_reported") for e in row["replicas"]}
    assert ("engine-0", "restarting") in states
    assert psutil_children_of_vllm() <= before


def psutil_children_of_vllm() -> set[int]:
    """Return the IDs of vLLM's processes below this process, with those of a shared server."""
    children = psutil.Process().children(recursive=True)
    return {child.pid for child in children if child.is_running() and "vllm" in " ".join(child.cmdline())}


def test_run_trains_on_an_engine_with_the_weights_of_each_version(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    settings = {
        "rollout.max_concurrent": 16,
        "algorithm.entropy_coefficient": 0.01,
        "trainer.learning_rate": 3e-3,
    }
    events = perform(tmp_path, "trained", small_run(**ENGINES, **settings))
    finished = of_type(events, "iteration_finished")
    assert [event["policy_version"] for event in finished] == [1, 2]
    for event in finished:
        assert event["metrics"]["mismatch/max"] <= PARITY
        assert event["metrics"]["publish/parity"] <= PARITY
        assert event["metrics"]["publish/replicas"] == 1.0
        assert event["metrics"]["infra/rate"] == 0.0
    sampled = {
        (event["ref"]["iteration"], event["policy_version_min"], event["policy_version_max"])
        for event in of_type(events, "trajectory_finished")
        if event["ref"]["phase"] == "train"
    }
    assert sampled == {(0, 0, 0), (1, 1, 1)}
