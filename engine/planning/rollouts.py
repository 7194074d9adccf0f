"""Time of rollouts, alone in a phase or in a steady flow.

A phase is a simulation of one sample at the sampler's speed at each moment. Rollouts wait for room, then for
a sandbox, then alternate between the sampler and their tools. Between two events (a start, an end, a timeout)
all of them advance evenly; the time per token depends on the number of rollouts that sample at once. Gradings
follow in the order of the ends. In a flow a new rollout starts at every end, so that the number at once and
the time per token are constant.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from engine.planning.workload import Rollout

Latency = Callable[[float, float, float], float]
"""Seconds per token of each sequence, given the sequences sampled at once, their mean context, and the tokens
of prefill per sampled token."""
_ROUNDS = 8
"""Iterations of the fixed point between the time per token and the share of rollouts that sample."""
_NOW_S, _DONE = 1e-6, 1e-6
"""Times and tokens below which an event has happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a phase."""

    concurrent: float
    """Maximum number of rollouts at once."""
    starting: float
    """Maximum number of sandboxes that start at once."""
    start_s: float
    """Time of a sandbox's start, seconds; 0 without sandboxes."""
    timeout_s: float
    """Maximum time of a rollout after its sandbox started, seconds."""
    grading: float
    """Maximum number of gradings at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Times of a phase, seconds; the first five add up to the end of the last rollout."""

    room_s: float
    """Mean wait for room among the rollouts at once."""
    start_s: float
    """Mean wait for a sandbox."""
    sampling_s: float
    """Mean time in the sampler."""
    tools_s: float
    """Mean time in tools."""
    slowest_s: float
    """From the mean end of a rollout to the end of the last one."""
    grading_s: float
    """From the end of the last rollout to the end of the last grading."""
    timed_out: float
    """Share of rollouts that the timeout ended."""
    contexts: Sequence[int]
    """Length of each conversation of the sample at its end, tokens."""
    sampled: float
    """Mean tokens sampled per rollout."""

    @property
    def total_s(self) -> float:
        """Return the time of the whole phase."""
        return self.room_s + self.start_s + self.sampling_s + self.tools_s + self.slowest_s + self.grading_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Mean times of a rollout at full concurrency, seconds."""

    start_s: float
    """Wait for a sandbox."""
    sampling_s: float
    """Time in the sampler."""
    tools_s: float
    """Time in tools."""
    grading_s: float
    """Grading, with the start of its sandbox."""


@dataclass(slots=True, eq=False)
class _Running:
    rollout: Rollout
    admitted: float
    ready: float
    done: float = 0.0
    """Tokens sampled so far."""
    sampling: float = 0.0
    end: float = 0.0

    @property
    def tool_s(self) -> float:
        """Return the time of tools per sampled token."""
        return self.rollout.tool_s / self.rollout.sampled

    @property
    def left(self) -> float:
        return self.rollout.sampled - self.done

    @property
    def context(self) -> int:
        added = self.rollout.context - self.rollout.prompt
        return round(self.rollout.prompt + added * self.done / self.rollout.sampled)


def simulate(rollouts: Sequence[Rollout], num: int, limits: Limits, latency: Latency) -> Phase:
    """Return the times of ``num`` rollouts that a sample represents."""
    weight = num / len(rollouts)
    waiting, starting = deque(rollouts), deque[_Running]()
    active: list[_Running] = []
    ended: list[_Running] = []
    slots = max(1, int(limits.concurrent / weight))
    now = free_at = 0.0
    while waiting or starting or active:
        while waiting and len(active) + len(starting) < slots:
            ready = max(now, free_at) + limits.start_s
            free_at = max(now, free_at) + limits.start_s * weight / limits.starting
            starting.append(_Running(waiting.popleft(), now, ready))
        per_token = _time_per_token(active, weight, latency)
        step = _next_event(active, starting, now, per_token, limits.timeout_s)
        now += step
        for running in active:
            tokens = step / (per_token + running.tool_s)
            running.done += tokens
            running.sampling += tokens * per_token
        while starting and starting[0].ready <= now + _NOW_S:
            active.append(starting.popleft())
        late = now + _NOW_S - limits.timeout_s
        for running in [r for r in active if r.left < _DONE or r.ready <= late]:
            active.remove(running)
            running.end = now
            ended.append(running)
    return _phase(ended, weight, limits)


def flow(rollouts: Sequence[Rollout], limits: Limits, latency: Latency) -> Flow:
    """Return the times of rollouts that a sample represents, at full concurrency."""
    per_token, sampling_s, tools_s = 0.0, 1.0, 0.0
    for _ in range(_ROUNDS):
        times = [min(limits.timeout_s, r.sampled * per_token + r.tool_s) or 1.0 for r in rollouts]
        context = _weighted([(r.prompt + r.context) / 2 for r in rollouts], times)
        prefill = _weighted([(r.context - r.sampled) / r.sampled for r in rollouts], times)
        share = sampling_s / (sampling_s + tools_s)
        per_token = latency(limits.concurrent * share, context, prefill)
        needed = [r.sampled * per_token + r.tool_s for r in rollouts]
        done = [min(1.0, limits.timeout_s / seconds) for seconds in needed]
        sampling_s = _weighted([r.sampled * per_token for r in rollouts], done) * fmean(done)
        tools_s = _weighted([r.tool_s for r in rollouts], done) * fmean(done)
    queue_s = limits.concurrent * limits.start_s / limits.starting
    return Flow(
        start_s=max(limits.start_s, queue_s - sampling_s - tools_s),
        sampling_s=sampling_s,
        tools_s=tools_s,
        grading_s=limits.start_s + fmean(r.grading_s for r in rollouts),
    )


def _weighted(values: Sequence[float], weights: Sequence[float]) -> float:
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)


def _time_per_token(active: Sequence[_Running], weight: float, latency: Latency) -> float:
    """Return the time per token at which as many rollouts sample as that time implies."""
    if not active:
        return 0.0
    context = sum((r.rollout.prompt + r.rollout.context) / 2 for r in active) / len(active)
    prefill = sum((r.rollout.context - r.rollout.sampled) / r.rollout.sampled for r in active)
    sequences = len(active) * weight
    for _ in range(_ROUNDS):
        per_token = latency(sequences, context, prefill / len(active))
        sequences = weight * sum(per_token / (per_token + r.tool_s) for r in active)
    return per_token


def _next_event(
    active: Sequence[_Running], starting: Sequence[_Running], now: float, per_token: float, timeout: float
) -> float:
    times = [r.left * (per_token + r.tool_s) for r in active]
    times += [r.ready + timeout - now for r in active]
    times += [r.ready - now for r in list(starting)[:1]]
    return max(0.0, min(times))


def _phase(ended: Sequence[_Running], weight: float, limits: Limits) -> Phase:
    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(ended)

    last = max(rollout.end for rollout in ended)
    durations = [rollout.end - rollout.ready for rollout in ended]
    sampling = mean([rollout.sampling for rollout in ended])
    return Phase(
        room_s=mean([rollout.admitted for rollout in ended]),
        start_s=mean([rollout.ready - rollout.admitted for rollout in ended]),
        sampling_s=sampling,
        tools_s=mean(durations) - sampling,
        slowest_s=last - mean([rollout.end for rollout in ended]),
        grading_s=_last_grading(ended, weight, limits) - last,
        timed_out=mean([float(rollout.left >= _DONE) for rollout in ended]),
        contexts=tuple(rollout.context for rollout in ended),
        sampled=mean([rollout.done for rollout in ended]),
    )


def _last_grading(ended: Sequence[_Running], weight: float, limits: Limits) -> float:
    """Return the end of the last grading; each has a sandbox of its own."""
    servers = min(len(ended), max(1, int(limits.grading / weight)))
    slower = max(1.0, weight * servers / limits.grading)
    free = [0.0] * servers
    for running in ended:
        begin = max(running.end, heapq.heappop(free))
        heapq.heappush(free, begin + slower * (limits.start_s + running.rollout.grading_s))
    return max(max(free), max(running.end for running in ended))
