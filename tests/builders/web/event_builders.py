"""Builders for event streams as engines write them: consecutive ``seq``, valid by construction."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.events.delivery.spool import SPOOL_NAME, read_lines
from engine.events.types import EVENT_ADAPTER

T0 = 1_790_000_000.0
TOKENS: dict[str, list[float]] = {
    "ids": [1, 2, 3],
    "mask": [0, 1, 1],
    "logprobs": [0.0, -0.5, -0.25],
    "versions": [-1, 0, 0],
    "steps": [-1, 0, 1],
}


GB = 1_000_000_000


def machine_use(**changes: Any) -> dict[str, Any]:
    """Return the fields of a ``system_sampled`` event."""
    return {
        "seconds": 10.0, "cores": 8, "cpu_engine": 1.5, "cpu_children": 2.0, "cpu_machine": 4.0,
        "memory_engine": 3 * GB, "memory_children": 2 * GB, "memory_machine": 9 * GB,
        "memory_total": 64 * GB, "processes": 12, "folder": GB, "disk_free": 100 * GB,
        "gpus": [
            {"index": index, "use": 0.25 * (1 + index), "memory": 40 * GB, "memory_total": 80 * GB}
            for index in range(2)
        ],
        **changes,
    }  # fmt: skip


def spooled(run_dir: Path, kind: str = "") -> list[dict[str, Any]]:
    """Return the complete events of a run folder, or those of a type."""
    events = [json.loads(line.data) for line in read_lines(run_dir / SPOOL_NAME)]
    return [event for event in events if event["type"] == kind or not kind]


class Stream:
    """Events of one run; ``lines`` contains them as NDJSON."""

    def __init__(self, *, epoch: int = 1, first_seq: int = 1) -> None:
        self.epoch = epoch
        self.next_seq = first_seq
        self.lines: list[bytes] = []

    def add(self, type_: str, **fields: Any) -> int:
        """Append an event; return its ``seq``."""
        seq = self.next_seq
        record = {"type": type_, "seq": seq, "epoch": self.epoch, "time": T0 + seq, **fields}
        EVENT_ADAPTER.validate_python(record)
        self.lines.append(json.dumps(record).encode())
        self.next_seq += 1
        return seq

    def started(self, resumed_from: int | None = None, total: int = 3) -> int:
        return self.add("run_started", host="h", pid=1, resumed_from=resumed_from, total_iterations=total)

    def trajectory(
        self,
        ref: dict[str, Any],
        *,
        steps: int = 2,
        reward: float | None = 1.0,
        termination: str = "submitted",
        finish: bool = True,
    ) -> None:
        """Add a whole rollout: start, steps, end."""
        self.add("trajectory_started", ref=ref, sandbox_id="s-1")
        for index in range(steps):
            self.step(ref, index)
        if finish:
            self.finished(ref, steps=steps, reward=reward, termination=termination)

    def step(self, ref: dict[str, Any], index: int, **fields: Any) -> int:
        defaults: dict[str, Any] = {
            "thought": f"look at line {index}",
            "response": "<think>…</think>",
            "tool": "file_editor",
            "arguments": {"command": "view", "path": "/testbed/a.py"},
            "observation": "    1  x = 1",
            "prompt_tokens": 10,
            "generated_tokens": 7,
            "thinking_tokens": 3 + index,
        }
        return self.add("step_finished", ref=ref, index=index, **(defaults | fields))

    def finished(
        self,
        ref: dict[str, Any],
        *,
        steps: int,
        reward: float | None = 1.0,
        termination: str = "submitted",
        tokens: Any = TOKENS,
        replay: dict[str, Any] | None = None,
    ) -> int:
        verdict = None if reward is None else "passed" if reward else "failed"
        return self.add(
            "trajectory_finished",
            ref=ref,
            termination=termination,
            verdict=verdict,
            reward=reward,
            num_steps=steps,
            patch="diff --git a/a.py b/a.py\n",
            prompt="deepswe_v1",
            prompt_hash="0123456789abcdef",
            tests=[
                {"test_id": "t::a", "kind": "fail_to_pass", "outcome": "passed" if reward else "failed"},
                {"test_id": "t::b", "kind": "pass_to_pass", "outcome": "passed", "seconds": 0.5},
            ],
            prompt_tokens=20,
            generated_tokens=14,
            thinking_tokens=7,
            tokens=tokens,
            replay=replay,
        )

    def iteration(self, index: int, *, tasks: tuple[str, ...] = ("a", "b"), size: int = 2) -> None:
        """Add a complete iteration: groups of rollouts, advantages, update, checkpoint."""
        self.add("iteration_started", iteration=index, policy_version=index, task_ids=list(tasks))
        for task in tasks:
            for number in range(size):
                self.trajectory(ref(index, task, number), reward=float(number % 2))
            members = [
                {"index": n, "advantage": n - 0.5, "baseline": 0.5, "loss_mask": n % 2 == 0,
                 "mask_reason": "" if n % 2 == 0 else "max_steps"}
                for n in range(size)
            ]  # fmt: skip
            self.add("group_finished", iteration=index, phase="train", task_id=task, members=members)
        self.add(
            "iteration_finished", iteration=index, policy_version=index + 1, metrics={"reward/mean": 0.5}
        )

    def evaluation(self, at: int, *, tasks: tuple[str, ...] = ("c",)) -> None:
        for task in tasks:
            self.trajectory(ref(at, task, 0, phase="eval:heldout"))
        self.add(
            "evaluation_finished", iteration=at, name="heldout", policy_version=at, num_samples=1,
            num_tasks=1, num_solved=1, solve_rate=1.0, interval_low=0.2, interval_high=1.0,
        )  # fmt: skip

    def checkpoint(self, at: int) -> int:
        return self.add(
            "checkpoint_saved", iteration=at, policy_version=at, path=f"checkpoints/{at:05d}", checksum="c0"
        )

    def body(self, start: int = 0, stop: int | None = None) -> bytes:
        """Return lines ``start … stop-1`` as a request body."""
        return b"\n".join(self.lines[start:stop]) + b"\n"


def ref(iteration: int, task: str, index: int, phase: str = "train") -> dict[str, Any]:
    """Return the key of a trajectory."""
    return {"iteration": iteration, "phase": phase, "task_id": task, "index": index}
