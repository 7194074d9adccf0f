"""Seeds that depend only on the sampled item, never on time, batch or schedule."""

from __future__ import annotations

import hashlib

from engine.types import RolloutKey


def step_seed(run_seed: int, key: RolloutKey, step: int, repetition: int = 0) -> int:
    """Return a 63-bit seed for one step of one rollout; the same over processes, machines and schedules.

    A rollout repeated after an infrastructure failure samples the same tokens again; one repeated because
    the model did not submit has another ``repetition`` and samples others.
    """
    return _seed(run_seed, key, f"{repetition}/{step}" if repetition else step)


def environment_seed(run_seed: int, key: RolloutKey) -> int:
    """Return a 63-bit seed for one rollout's environment, distinct from those of its steps."""
    return _seed(run_seed, key, "environment")


def _seed(run_seed: int, key: RolloutKey, what: int | str) -> int:
    parts = (run_seed, key.iteration, key.phase, key.task_id, key.index, what)
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
