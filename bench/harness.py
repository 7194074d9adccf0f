"""Environment, tasks and storage of measurements."""

from __future__ import annotations

import json
import os
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

from engine.datasets.store import load_dataset
from engine.types import TaskRow

RESULTS = Path(__file__).parent / "results"
os.environ.setdefault("TRAINYARD_RUNS_AT_ONCE", "1000")  # benches with a web application start many


def store(name: str, found: object, *, quick: bool) -> None:
    """Write ``bench/results/NAME.json``; a quick run does not replace a measurement."""
    if quick:
        return
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=2) + "\n")


def machine() -> dict[str, Any]:
    """Return the number of cores and the load average of the last minute."""
    return {"cores": os.cpu_count(), "load_at_start": round(os.getloadavg()[0], 1)}


def tasks_in_turn(home: Path, datasets: list[str], limit: int) -> list[TaskRow]:
    """Return the first tasks of datasets, one of each in turn."""
    turns = zip_longest(*(load_dataset(home, name).rows for name in datasets))
    return list(islice((row for row in chain.from_iterable(turns) if row is not None), limit))
