"""Samples of a collection's tasks in earlier runs, read from their spools.

A sample is identified by the seed of its random streams: the run's seed, iteration, phase, task and index.
Samples with the same identity count once, even if several runs recorded them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

from engine.errors import ConfigError, Problem
from engine.events.delivery.spool import SPOOL_NAME, read_lines
from engine.orchestrator.collection.ledger import Part, is_kept, type_of
from engine.rollout.summary import RolloutSummary

_CONFIG = "config.json"


class EarlierSamples:
    """Distinct graded samples of earlier runs, and the tasks that they solved."""

    def __init__(self) -> None:
        self.solved: set[str] = set()
        """Tasks that any sample solved."""
        self._indices: dict[tuple[int, int, str], dict[str, int]] = {}
        """(seed, iteration, phase) → task → bit mask of the indices of its samples."""

    def add(self, run_dir: Path) -> None:
        """Add the samples of a run. Raises ConfigError for a run without events or configuration."""
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
        """Return the first index above those of all samples with this seed, iteration and phase."""
        return self._indices.get((seed, iteration, phase), {}).get(task_id, 0).bit_length()


class _Record:
    """Samples of one iteration and phase of a run."""

    def __init__(self) -> None:
        self.indices: defaultdict[str, int] = defaultdict(int)
        """Task → bit mask of the indices of graded rollouts."""
        self.solved: set[str] = set()


def _read(spool: Path) -> dict[Part, _Record]:
    """Return a run's samples, without those that an attempt repeated after resuming from a checkpoint."""
    records: dict[Part, _Record] = {}
    for line in read_lines(spool):
        match type_of(line.data):
            case "trajectory_finished":
                rollout = RolloutSummary.from_event(line.data)
                if not rollout.is_lost:
                    record = records.setdefault((rollout.key.iteration, rollout.key.phase), _Record())
                    record.indices[rollout.key.task_id] |= 1 << rollout.key.index
                    if rollout.is_solved:
                        record.solved.add(rollout.key.task_id)
            case "run_started":
                event = json.loads(line.data)
                records = {part: record for part, record in records.items() if is_kept(part, event)}
    return records


def _missing(run_dir: Path, what: str) -> ConfigError:
    return ConfigError(Problem(f"there is no run '{run_dir.name}' with {what}", "collection.skip_runs"))
