"""Plans of overlapping schedules compared with the schedules themselves in simulated time."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from bench import schedule as bench
from engine.config.recipes import resolve
from engine.config.rollout import AgentConfig, GradingConfig
from engine.planning import RunPlan, parse_hardware, plan_run
from engine.planning.rollouts import Limits, flow, simulate
from engine.planning.schedules import Remedies, Work, overlapped, synchronous
from engine.planning.workload import sample_rollouts

NUM = 512
REMEDIES = Remedies(room="room", sampling="sampling")
STALENESS = {"sync": 0, "one_step_off": 1, "async": 4}
TOLERANCE = 0.15


def simulated(mode: str) -> dict[str, float]:
    """Measure iterations of the bench's stubs, in simulated time."""
    with closing(bench.VirtualLoop()) as loop:
        times: dict[str, float] = loop.run_until_complete(bench.simulate(mode, NUM, warm_up=2, iterations=2))
    return times


def planned_s(staleness: int, update_s: float) -> float:
    """Return the planned time of an iteration of the same work."""
    peak = bench.ENGINE_GPUS[NUM] * bench.GPU_TOKENS_PER_S
    agent = AgentConfig(
        max_steps=10_000,
        max_context=bench.MAX_CONTEXT,
        command_timeout_s=bench.ROLLOUT_TIMEOUT_S,
        rollout_timeout_s=bench.ROLLOUT_TIMEOUT_S,
    )
    grading = GradingConfig(timeout_s=bench.GRADING_TIMEOUT_S, counterfactual="off")
    rollouts = sample_rollouts(NUM, agent, grading, bench.ASSUME)
    limits = Limits(
        concurrent=round(bench.OVERBOOKING * peak / bench.TOKENS_PER_S),
        starting=1e9,
        start_s=bench.ASSUME.sandbox_start_s,
        timeout_s=bench.ROLLOUT_TIMEOUT_S,
        grading=1e9,
    )

    def latency(sequences: float, context: float, prefill: float) -> float:  # noqa: ARG001
        return max(1 / bench.TOKENS_PER_S, sequences / peak)

    phase = simulate(rollouts, NUM, limits, latency)
    work = Work(update_s=update_s, publication_s=0.0, is_shared=False)
    if not staleness:
        return sum(part.seconds for part in synchronous(phase, work, REMEDIES))
    steady = flow(rollouts, limits, latency)
    parts = overlapped(phase, steady, NUM, limits, work, REMEDIES, staleness=staleness)
    return sum(part.seconds for part in parts)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_planned_iteration_time_matches_the_simulated_schedule(mode: str) -> None:
    measured = simulated(mode)
    seconds = planned_s(STALENESS[mode], measured["update_s"])
    assert seconds == pytest.approx(3600 / measured["iterations_per_hour"], rel=TOLERANCE)


def planned(mode: str, **settings: Any) -> RunPlan:
    overrides = {name.replace("__", "."): value for name, value in settings.items()}
    config = resolve("deepswe-32b", {"schedule.mode": mode, **overrides})
    return plan_run(config, hardware=parse_hardware("64xH100"))


def test_work_beside_rollouts_is_listed_and_costs_only_its_excess_time() -> None:
    sync, asynchronous = planned("sync"), planned("async")
    assert sync.hidden == ()
    assert dict(asynchronous.hidden) == {"update": sync.update_s, "publication": sync.publication_s}
    assert asynchronous.iteration_s < sync.iteration_s - sync.update_s
    slow = planned("async", trainer__data_parallel=1)
    assert slow.bottleneck.name == "update beyond the rollouts"
    assert slow.iteration_s - slow.iteration[-1].seconds == pytest.approx(slow.update_s + slow.publication_s)


def test_low_staleness_bound_makes_the_slowest_rollouts_the_bottleneck() -> None:
    wide = {"rollout__max_concurrent": 4096, "sandbox__max_live": 4096, "policy__vllm__replicas": 64}
    waiting = planned("one_step_off", **wide)
    assert waiting.bottleneck.name == "slowest rollouts"
    assert planned("async", **wide).iteration_s < waiting.iteration_s


def test_rollouts_in_flight_increase_with_the_staleness_bound() -> None:
    few = {"trainer__tasks_per_iteration": 2, "trainer__minibatches": 1}
    assert [planned(mode, **few).concurrent for mode in STALENESS] == [16, 32, 80]


def test_devices_that_alternate_training_and_sampling_hide_no_update() -> None:
    plan = plan_run(resolve("quickstart", {"schedule.mode": "async"}))
    assert plan.hidden == ()
    seconds = {part.name: part.seconds for part in plan.iteration}
    assert seconds["update"] == plan.update_s
    assert seconds["update beyond the rollouts"] == 0
