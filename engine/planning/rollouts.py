"""Time of rollouts, alone in a phase or in a steady flow.

A phase is a simulation of one sample at the speed that the sampler has at each moment. Rollouts wait for
room, then for a sandbox, then alternate between the sampler and their tools. Between two events (a start, an
end, a timeout) all of them advance evenly; the time per token follows from the number of rollouts that sample
at once. Gradings follow in the order of the ends. In a flow every end is a start: the number at once never
changes, and with it the time per token.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from engine.planning.workload import Rollout

Latency = Callable[[float, float, float], float]
"""Seconds per token of each sequence, by sequences sampled at once, mean context and tokens of prefill per
sampled token."""
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
    """From the mean end of a rollout to the last one's."""
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
    """Mean times of a rollout while as many as the limits allow are at work all the time, seconds."""

    start_s: float
    """Wait for a sandbox."""
    sampling_s: float
    """In the sampler."""
    tools_s: float
    """In tools."""
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
        for one in active:
            tokens = step / (per_token + one.tool_s)
            one.done += tokens
            one.sampling += tokens * per_token
        while starting and starting[0].ready <= now + _NOW_S:
            active.append(starting.popleft())
        late = now + _NOW_S - limits.timeout_s
        for one in [one for one in active if one.left < _DONE or one.ready <= late]:
            active.remove(one)
            one.end = now
            ended.append(one)
    return _phase(ended, weight, limits)


def flow(rollouts: Sequence[Rollout], limits: Limits, latency: Latency) -> Flow:
    """Return the times of rollouts that a sample represents, at full concurrency."""
    per_token, sampling_s, tools_s = 0.0, 1.0, 0.0
    for _ in range(_ROUNDS):
        times = [min(limits.timeout_s, one.sampled * per_token + one.tool_s) or 1.0 for one in rollouts]
        context = _weighted([(one.prompt + one.context) / 2 for one in rollouts], times)
        prefill = _weighted([(one.context - one.sampled) / one.sampled for one in rollouts], times)
        share = sampling_s / (sampling_s + tools_s)
        per_token = latency(limits.concurrent * share, context, prefill)
        wanted = [one.sampled * per_token + one.tool_s for one in rollouts]
        done = [min(1.0, limits.timeout_s / one) for one in wanted]
        sampling_s = _weighted([one.sampled * per_token for one in rollouts], done) * fmean(done)
        tools_s = _weighted([one.tool_s for one in rollouts], done) * fmean(done)
    queue_s = limits.concurrent * limits.start_s / limits.starting
    return Flow(
        start_s=max(limits.start_s, queue_s - sampling_s - tools_s),
        sampling_s=sampling_s,
        tools_s=tools_s,
        grading_s=limits.start_s + fmean(one.grading_s for one in rollouts),
    )


def _weighted(values: Sequence[float], weights: Sequence[float]) -> float:
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)


def _time_per_token(active: Sequence[_Running], weight: float, latency: Latency) -> float:
    """Return the time per token at which as many rollouts sample as that time implies."""
    if not active:
        return 0.0
    context = sum((one.rollout.prompt + one.rollout.context) / 2 for one in active) / len(active)
    prefill = sum((one.rollout.context - one.rollout.sampled) / one.rollout.sampled for one in active)
    sequences = len(active) * weight
    for _ in range(_ROUNDS):
        found = latency(sequences, context, prefill / len(active))
        sequences = weight * sum(found / (found + one.tool_s) for one in active)
    return found


def _next_event(
    active: Sequence[_Running], starting: Sequence[_Running], now: float, per_token: float, timeout: float
) -> float:
    times = [one.left * (per_token + one.tool_s) for one in active]
    times += [one.ready + timeout - now for one in active]
    times += [one.ready - now for one in list(starting)[:1]]
    return max(0.0, min(times))


def _phase(ended: Sequence[_Running], weight: float, limits: Limits) -> Phase:
    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(ended)

    last = max(one.end for one in ended)
    running = [one.end - one.ready for one in ended]
    sampling = mean([one.sampling for one in ended])
    return Phase(
        room_s=mean([one.admitted for one in ended]),
        start_s=mean([one.ready - one.admitted for one in ended]),
        sampling_s=sampling,
        tools_s=mean(running) - sampling,
        slowest_s=last - mean([one.end for one in ended]),
        grading_s=_last_grading(ended, weight, limits) - last,
        timed_out=mean([float(one.left >= _DONE) for one in ended]),
        contexts=tuple(one.context for one in ended),
        sampled=mean([one.done for one in ended]),
    )


def _last_grading(ended: Sequence[_Running], weight: float, limits: Limits) -> float:
    """Return the end of the last grading; each has a sandbox of its own."""
    servers = min(len(ended), max(1, int(limits.grading / weight)))
    slower = max(1.0, weight * servers / limits.grading)
    free = [0.0] * servers
    for one in ended:
        begin = max(one.end, heapq.heappop(free))
        heapq.heappush(free, begin + slower * (limits.start_s + one.rollout.grading_s))
    return max(max(free), max(one.end for one in ended))
