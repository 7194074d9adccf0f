"""Schedule of the events of a training run like the quickstart's, and the tabs that are open meanwhile.

An iteration has 8 groups of 8 rollouts with 2 to 6 steps; the sizes of the events are those of a recorded
training run. The schedule is derived from a seed, so the process that plays the events and those with the
tabs need not exchange it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from engine.events import types as e
from engine.events.record import RunEvent
from engine.events.sandboxes import CLOCK_BOUNDS_S, PoolStatus, SandboxesChanged

GROUPS, SIZE = 8, 8
PERIOD_S = 12.0
"""Time from the start of one iteration to that of the next."""
WATCHED_FROM_S = 1.5
"""Time after an iteration's start at which tabs about it and its rollouts are opened."""
NUM_TABS = 50
THOUGHT = "The loop compares with the wrong operator, so the last chunk is lost. " * 2
OBSERVATION = "    312      while lo < hi: yield src[lo:hi]; lo, hi = hi, hi + size\n" * 6
METRICS = ("reward/mean", "solve/rate", "steps/mean", "tokens/response_mean", "loss/value", "entropy/mean")
SHOWN_BY_RUN = ("trajectory_started", "trajectory_finished", "iteration_finished", "run_paused")
"""Types of events that always change the run page."""


@dataclass(frozen=True, slots=True)
class Planned:
    """An event and its time, seconds from the start."""

    at: float
    type: type[RunEvent]
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Tab:
    """Page of a tab; ``group`` and ``index`` select the rollout of each iteration."""

    page: str
    role: str
    query: str = ""
    group: int = 0
    index: int = 0

    def target(self, iteration: int) -> list[str]:
        """Return the target of its subscription in an iteration."""
        parts = ["train", str(iteration), task_key(iteration, self.group), str(self.index)]
        return parts[: {"iteration": 2, "group": 3, "trajectory": 4}.get(self.page, 0)]

    def shows(self, event: dict[str, Any], iteration: int) -> bool:
        """Return whether a logged event changes the tab while it shows ``iteration``."""
        ref, name = event["ref"], event["type"]
        if self.page == "run":
            return name in SHOWN_BY_RUN
        if self.page in ("overview", "runs") or ref is None:
            return False
        depth = {"iteration": 1, "group": 2, "trajectory": 3}[self.page]
        same = bool(ref[:depth] == [iteration, self.group, self.index][:depth])
        return same and name != "trajectory_started"


def task_key(iteration: int, group: int) -> str:
    """Return a key of the same length as those of real tasks."""
    return f"{iteration:08x}{group:08x}"


def tabs(count: int) -> list[Tab]:
    """Return a number of tabs (a multiple of ``NUM_TABS``), the first three of which Chromium opens."""
    times = count // NUM_TABS
    roles = ("operator", "viewer")
    pages = [("run", "", 14), ("run", "?tab=trajectories", 5), ("run", "?tab=groups", 4), ("overview", "", 3)]
    pages += [("runs", "", 3), ("iteration", "", 7)]
    plan = [Tab("run", "operator"), Tab("group", "operator"), Tab("trajectory", "operator")]
    for page, query, number in pages:
        plan += [Tab(page, roles[n % 2], query) for n in range(number * times)]
    plan += [Tab("group", roles[n % 2], group=n % GROUPS) for n in range(3 * times)]
    rest = range(count - len(plan))
    return plan + [Tab("trajectory", roles[n % 2], group=n % GROUPS, index=n // GROUPS % SIZE) for n in rest]


def schedule(iterations: int, *, seed: int = 0, period_s: float = PERIOD_S) -> list[Planned]:
    """Return the events of a run in the order of time."""
    rng = random.Random(seed)
    events = [Planned(0.0, e.RunStarted, {"host": "bench", "pid": 1, "total_iterations": 48})]
    for iteration in range(iterations):
        events += _iteration(iteration, rng, period_s)
    return sorted(events, key=lambda planned: planned.at)


def _iteration(iteration: int, rng: random.Random, period_s: float) -> Iterator[Planned]:
    begin = iteration * period_s + 0.01
    keys = [task_key(iteration, group) for group in range(GROUPS)]
    start = {"iteration": iteration, "policy_version": iteration, "task_ids": keys}
    yield Planned(begin, e.IterationStarted, start)
    last = begin
    for group, key in enumerate(keys):
        ended = []
        for index in range(SIZE):
            ref = {"iteration": iteration, "phase": "train", "task_id": key, "index": index}
            events = list(_rollout(ref, begin + rng.uniform(0, 0.3) * period_s, rng, period_s))
            ended.append(events[-1].at)
            yield from events
            yield from _leases(iteration * 64 + group * SIZE + index, events[0].at, events[-1].at)
        members = [
            {"index": n, "advantage": 0.5 - n % 2, "baseline": 0.5, "loss_mask": True} for n in range(SIZE)
        ]
        judged = {"iteration": iteration, "phase": "train", "task_id": key, "members": members}
        yield Planned(max(ended) + 0.02, e.GroupFinished, judged)
        last = max(last, *ended)
    for tick in range(int(period_s // 2)):
        yield Planned(begin + 2 * tick, PoolStatus, _pool())
    metrics = dict.fromkeys((*METRICS, *(f"time/part_{n}" for n in range(60))), rng.random())
    done = {"iteration": iteration, "policy_version": iteration + 1, "metrics": metrics}
    yield Planned(last + 1.0, e.IterationFinished, done)
    saved = {"iteration": iteration + 1, "policy_version": iteration + 1, "path": "c", "checksum": "0" * 64}
    yield Planned(last + 1.05, e.CheckpointSaved, saved)


def _rollout(ref: dict[str, Any], at: float, rng: random.Random, period_s: float) -> Iterator[Planned]:
    yield Planned(at, e.TrajectoryStarted, {"ref": ref, "sandbox_id": "local"})
    steps = rng.choice((2, 3, 3, 3, 4, 4, 5, 6))
    for index in range(steps):
        at += rng.uniform(0.03, 0.09) * period_s
        yield Planned(
            at, e.StepFinished, {
                "ref": ref, "index": index, "thought": THOUGHT, "response": f"<think>\n{THOUGHT}\n</think>",
                "tool": "execute_bash", "arguments": {"command": f"sed -n '{index},+20p' src/module.py"},
                "observation": OBSERVATION, "exit_code": 0, "generated_tokens": 50, "thinking_tokens": 30,
            },
        )  # fmt: skip
    solved = rng.random() < 0.5
    yield Planned(
        at + 0.6, e.TrajectoryFinished, {
            "ref": ref, "termination": "submitted", "verdict": "passed" if solved else "failed",
            "reward": float(solved), "num_steps": steps, "patch": "diff --git a/a.py b/a.py\n" * 20,
            "tests": [{"test_id": f"t.py::test_{n}", "kind": "pass_to_pass", "outcome": "passed"}
                      for n in range(8)],
            "test_log": OBSERVATION, "model_seconds": 2.0, "total_seconds": 3.0,
            "generated_tokens": 50 * steps,
        },
    )  # fmt: skip


def _leases(number: int, begun: float, ended: float) -> Iterator[Planned]:
    record = {
        "lease": f"ls-{number:016x}", "name": f"train/{number}", "lane": "train", "image": "local:boltons",
        "backend": "local", "leased_at": 1_790_000_000.0 + number,
    }  # fmt: skip
    for at, state in ((begun, "leased"), (begun + 0.1, "started"), (ended, "closed")):
        yield Planned(at, SandboxesChanged, {"records": [{**record, "state": state}]})


def _pool() -> dict[str, Any]:
    clock = {"counts": [1] * (len(CLOCK_BOUNDS_S) + 1), "total": 1.0}
    return {
        "backend": "local", "wanted": 64, "waiting": 0, "starting": 0, "live": 40, "max_live": 64,
        "max_starting": 4, "opened": 64, "failures": {}, "images": [], "nodes": {"bench": 40},
        "clocks": dict.fromkeys(("queue", "start", "exec", "grade"), clock), "paused_reason": "",
    }  # fmt: skip
