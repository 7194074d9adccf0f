"""Samples that earlier runs have of a collection's tasks, read from their spools.

A sample is identified by what its random streams are seeded with: the run's seed, iteration, phase, task and
index. Runs that share all of them have one sample, however often it is on record.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

from engine.errors import ConfigError, Problem
from engine.events.spool import SPOOL_NAME, read_lines
from engine.orchestrator.collection.ledger import Part, is_kept, type_of
from engine.rollout.summary import RolloutSummary

_CONFIG = "config.json"


class EarlierSamples:
    """Distinct graded samples of earlier runs, and the tasks that one of them solved."""

    def __init__(self) -> None:
        self.solved: set[str] = set()
        """Tasks."""
        self._indices: dict[tuple[int, int, str], dict[str, int]] = {}
        """(seed, iteration, phase) → task → bit mask of the indices of its samples."""

    def add(self, run_dir: Path) -> None:
        """Add the samples of a run. Raises ConfigError: it has no events or no configuration."""
        spool = run_dir / SPOOL_NAME
        try:
            seed: int = json.loads((run_dir / _CONFIG).read_text())["seed"]
        except (OSError, ValueError, KeyError) as error:
            raise _missing(run_dir, f"readable {_CONFIG}") from error
        if not spool.exists():
            raise _missing(run_dir, "events")
        for part, record in _read(spool).items():
            self.solved |= record.solved
            known = self._indices.setdefault((seed, *part), {})
            for task_id, mask in record.indices.items():
                known[task_id] = known.get(task_id, 0) | mask

    def count(self, task_id: str) -> int:
        """Return the number of a task's samples."""
        return sum(masks.get(task_id, 0).bit_count() for masks in self._indices.values())

    def next_index(self, task_id: str, *, seed: int, iteration: int, phase: str) -> int:
        """Return the first index from which on there is no sample of these random streams."""
        return self._indices.get((seed, iteration, phase), {}).get(task_id, 0).bit_length()


class _Record:
    """Samples that one run has of one iteration and phase."""

    def __init__(self) -> None:
        self.indices: defaultdict[str, int] = defaultdict(int)
        """Task → bit mask of the indices of graded rollouts."""
        self.solved: set[str] = set()


def _read(spool: Path) -> dict[Part, _Record]:
    """Return what counts of a run: an attempt that resumed from a checkpoint made what followed it again."""
    found: dict[Part, _Record] = {}
    for line in read_lines(spool):
        match type_of(line.data):
            case "trajectory_finished":
                rollout = RolloutSummary.from_event(line.data)
                if not rollout.is_lost:
                    record = found.setdefault((rollout.key.iteration, rollout.key.phase), _Record())
                    record.indices[rollout.key.task_id] |= 1 << rollout.key.index
                    if rollout.is_solved:
                        record.solved.add(rollout.key.task_id)
            case "run_started":
                event = json.loads(line.data)
                found = {part: record for part, record in found.items() if is_kept(part, event)}
    return found


def _missing(run_dir: Path, what: str) -> ConfigError:
    return ConfigError(Problem(f"there is no run '{run_dir.name}' with {what}", "collection.skip_runs"))
