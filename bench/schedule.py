"""Engine utilisation and iterations per hour of ``sync``, ``one_step_off`` and ``async`` in simulated time.

The schedule is the engine's own (``RolloutFeed``: admission, batches, staleness); sandboxes, engines and
trainer are stubs on an event loop whose clock jumps to the next timer, so that hours take seconds and the
machine's load has no effect. Lengths, tool times, starts and gradings are drawn from the planner's
published numbers (``engine.planning.assumptions``, each with its source), log-normal with long tails; a
rollout ends after DeepSWE's 20 minutes, a grading after its 5. Engines and trainer have separate GPUs in all
three schedules: engines that saturate at the rollouts of one iteration, and a trainer that needs about as
long for an update as saturated engines for its tokens. Not simulated: KV caches, prefill, publication of
weights, failures.

Run: ``python -m bench.schedule [--quick]``; writes ``bench/results/schedule.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import itertools
import math
import random
import selectors
import tempfile
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal

from bench.harness import store
from engine.config.learning.algorithm import AlgorithmConfig
from engine.config.learning.training import ScheduleConfig
from engine.orchestrator.training.curriculum import TaskCursor
from engine.orchestrator.training.feed import RolloutFeed
from engine.orchestrator.training.record import TrainingRecord
from engine.planning.assumptions import Assumptions
from engine.rollout.scheduler import RolloutRequest
from engine.types import Grade, TerminationReason, Trajectory, Verdict
from tests.builders.rollout_builders import make_row

ASSUME = Assumptions()
SIBLINGS = 8
ROLLOUT_TIMEOUT_S = 1200.0
"""DeepSWE's limit of a rollout (blog, compact filtering)."""
GRADING_TIMEOUT_S = 300.0
"""DeepSWE's limit of the tests (blog)."""
MAX_CONTEXT = 36_864
"""DeepSWE's prompt of 4,096 and response of 32,768 tokens (train_deepswe_32b.sh)."""
TOKENS_PER_S = 1 / 0.043
"""Speed of one sequence of Qwen3-32B on an H100 below saturation (gpustack: at least 43 ms a token)."""
GPU_TOKENS_PER_S = 2100.0
"""Throughput of a saturated H100 with Qwen3-32B (gpustack: 2.1 to 4.0 thousand tokens per second)."""
PARAMETERS, PEAK_FLOPS = 32.8e9, 989e12
ENGINE_GPUS = {512: 6, 4096: 48}
TRAINER_GPUS = {512: 24, 4096: 192}
OVERBOOKING = 1.2
"""Rollouts in flight, as a multiple of those at which the engines saturate: some are at their tools."""
TURNS_AT_ONCE = {512: 4, 4096: 12}
"""Turns simulated as a single one, with the sum of their tokens and times."""
MODES: tuple[Literal["sync", "one_step_off", "async"], ...] = ("sync", "one_step_off", "async")


class VirtualLoop(asyncio.SelectorEventLoop):
    """Event loop whose clock jumps to the next timer as soon as nothing is ready."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        """Return the simulated time, seconds."""
        return self.now


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("the simulation waits for nothing: the schedule is stuck")
        if not ready and timeout:
            self._loop.now += timeout
        return ready


class StubEngine:
    """Engines that share a maximum throughput evenly, each sequence at most at its own speed."""

    def __init__(self, *, peak: float) -> None:
        self.peak = peak
        self.sampled = 0.0
        self._service = 0.0
        """Tokens sampled so far by a sequence present since the start."""
        self._at = 0.0
        self._ends: list[tuple[float, int, asyncio.Future[None]]] = []
        self._running = 0
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None

    async def sample(self, tokens: float) -> None:
        """Wait until a sequence has sampled its tokens."""
        self._advance()
        done = asyncio.get_running_loop().create_future()
        heapq.heappush(self._ends, (self._service + tokens, next(self._numbers), done))
        self._running += 1
        self._set_timer()
        try:
            await done
        except asyncio.CancelledError:
            if not done.done() or done.cancelled():
                self._advance()
                self._running -= 1
                self._set_timer()
            raise

    def advance(self) -> float:
        """Return the tokens sampled so far by all sequences."""
        self._advance()
        return self.sampled

    def _speed(self) -> float:
        return min(TOKENS_PER_S, self.peak / self._running) if self._running else 0.0

    def _advance(self) -> None:
        now = asyncio.get_running_loop().time()
        got = (now - self._at) * self._speed()
        self._service += got
        self.sampled += got * self._running
        self._at = now

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._ends and self._ends[0][2].done():
            heapq.heappop(self._ends)
        if self._ends:
            missing = max(0.0, self._ends[0][0] - self._service)
            self._timer = asyncio.get_running_loop().call_later(missing / self._speed(), self._finish)

    def _finish(self) -> None:
        self._advance()
        while self._ends and (self._ends[0][2].done() or self._ends[0][0] <= self._service + 1e-6):
            done = heapq.heappop(self._ends)[2]
            if not done.done():
                done.set_result(None)
                self._running -= 1
        self._set_timer()


class StubScheduler:
    """Rollouts with the interface of ``RolloutScheduler``; lengths depend on a rollout's key alone."""

    def __init__(self, engine: StubEngine, *, concurrent: int, turns_at_once: int) -> None:
        self._engine = engine
        self._turns_at_once = turns_at_once
        self._places = asyncio.Semaphore(concurrent)
        self.tokens = 0.0
        """Tokens of finished conversations, prompts included."""
        self.timed_out = self.finished = 0

    async def roll_out(self, request: RolloutRequest) -> Trajectory:
        """Simulate a rollout and its grading."""
        rng = random.Random(f"{request.key}")
        context = min(MAX_CONTEXT, _draw(rng, ASSUME.context_tokens, ASSUME.context_spread))
        added = max(1.0, context - ASSUME.prompt_tokens)
        turns = max(1, round(added / ASSUME.tokens_per_step / self._turns_at_once))
        tool_s = _draw(rng, ASSUME.tool_s * added / ASSUME.tokens_per_step, ASSUME.tool_spread) / turns
        async with self._places:
            await asyncio.sleep(ASSUME.sandbox_start_s)
            try:
                async with asyncio.timeout(ROLLOUT_TIMEOUT_S):
                    for _ in range(turns):
                        await self._engine.sample(ASSUME.sampled_share * added / turns)
                        await asyncio.sleep(tool_s)
            except TimeoutError:
                self.timed_out += 1
        tests_s = min(GRADING_TIMEOUT_S, _draw(rng, ASSUME.grading_s, ASSUME.grading_spread))
        await asyncio.sleep(ASSUME.sandbox_start_s + tests_s)
        self.finished += 1
        self.tokens += context
        grade = Grade(verdict=Verdict.PASSED, reward=1.0)
        return Trajectory(key=request.key, steps=(), termination=TerminationReason.SUBMITTED, grade=grade)

    async def wait_for_room(self) -> None:
        """Wait until a rollout could start at once."""
        async with self._places:
            pass

    def restarted(self) -> AbstractContextManager[None]:
        """Return a context without effect: rollouts continue across updates."""
        return nullcontext()


class _Lags:
    """Sink that records the staleness of the batches."""

    def __init__(self) -> None:
        self.lags: list[int] = []

    def emit(self, event_type: type[Any], /, **fields: Any) -> int:  # noqa: ARG002
        """Record the staleness of a batch's groups."""
        self.lags += [fields["iteration"] - group.updates for group in fields.get("groups", ())]
        return 0


async def simulate(mode: str, rollouts: int, *, warm_up: int, iterations: int) -> dict[str, float]:
    """Simulate a run and measure its iterations after the first ``warm_up``."""
    loop, batch = asyncio.get_running_loop(), rollouts // SIBLINGS
    engine = StubEngine(peak=ENGINE_GPUS[rollouts] * GPU_TOKENS_PER_S)
    concurrent = round(OVERBOOKING * engine.peak / TOKENS_PER_S)
    scheduler = StubScheduler(engine, concurrent=concurrent, turns_at_once=TURNS_AT_ONCE[rollouts])
    rows = [make_row(f"{number:016x}") for number in range(8 * batch)]
    sink = _Lags()
    feed = RolloutFeed(
        ScheduleConfig.model_validate({"mode": mode}),
        AlgorithmConfig(),
        scheduler,
        TaskCursor(rows, per_iteration=batch, seed=0),
        TrainingRecord(Path(tempfile.gettempdir()) / "none"),
        sink,
        iterations=10**6,
        batch=batch,
        group_size=SIBLINGS,
    )
    flops = TRAINER_GPUS[rollouts] * PEAK_FLOPS * ASSUME.mfu
    update_s = 6 * PARAMETERS * rollouts * _mean_context() / flops
    began = sampled = idle = 0.0
    for iteration in range(warm_up + iterations):
        if iteration == warm_up:
            began, sampled, idle = loop.time(), engine.advance(), 0.0
            sink.lags.clear()
        asked = loop.time()
        await feed.next_batch(policy_version=iteration)
        idle += loop.time() - asked
        await asyncio.sleep(update_s)
        feed.updated()
    seconds, tokens = loop.time() - began, engine.advance() - sampled
    await feed.close()
    return {
        "iterations_per_hour": 3600 * iterations / seconds,
        "engine_utilisation": tokens / (engine.peak * seconds),
        "trainer_idle_share": idle / seconds,
        "update_s": update_s,
        "staleness_mean": sum(sink.lags) / len(sink.lags),
        "staleness_max": max(sink.lags),
        "timed_out_share": scheduler.timed_out / max(1, scheduler.finished),
        "in_flight_max": concurrent,
    }


def measure(rollouts: int, *, warm_up: int, iterations: int) -> dict[str, Any]:
    """Simulate the three schedules."""
    results: dict[str, Any] = {}
    for mode in MODES:
        started, loop = time.monotonic(), VirtualLoop()
        try:
            result = loop.run_until_complete(simulate(mode, rollouts, warm_up=warm_up, iterations=iterations))
        finally:
            loop.close()
        results[mode] = {name: round(value, 4) for name, value in result.items()}
        print(
            f"{rollouts:5} {mode:13} {result['iterations_per_hour']:6.2f} iterations/h, engines "
            f"{result['engine_utilisation']:5.1%}, trainer idle {result['trainer_idle_share']:5.1%}, "
            f"staleness {result['staleness_mean']:.2f} (max {result['staleness_max']:.0f}), timed out "
            f"{result['timed_out_share']:.1%}; took {time.monotonic() - started:.0f} s"
        )
    base = results["sync"]["iterations_per_hour"]
    results["async_over_sync"] = round(results["async"]["iterations_per_hour"] / base, 3)
    results["one_step_off_over_sync"] = round(results["one_step_off"]["iterations_per_hour"] / base, 3)
    print(f"{rollouts:5} async / sync {results['async_over_sync']:.2f} ×")
    return results


def _draw(rng: random.Random, mean: float, spread: float) -> float:
    """Draw from the log-normal distribution with this mean and log-scale spread."""
    return mean * math.exp(rng.gauss(0.0, spread) - spread**2 / 2)


def _mean_context() -> float:
    rng = random.Random(0)
    draws = [
        min(MAX_CONTEXT, _draw(rng, ASSUME.context_tokens, ASSUME.context_spread)) for _ in range(20_000)
    ]
    return sum(draws) / len(draws)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="512 rollouts only, fewer iterations")
    quick = parser.parse_args().quick
    results = {"512": measure(512, warm_up=3, iterations=4 if quick else 12)}
    if not quick:
        results["4096"] = measure(4096, warm_up=2, iterations=4)
    store("schedule", {"goals": {"async_over_sync": 2.5, "engine_utilisation": 0.9}, **results}, quick=quick)


if __name__ == "__main__":
    main()
