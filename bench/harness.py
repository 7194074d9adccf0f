"""Environment and storage of measurements."""

from __future__ import annotations

import json
import os
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
os.environ.setdefault("TRAINYARD_RUNS_AT_ONCE", "1000")  # benches with a web application start many


def store(name: str, found: object, *, quick: bool) -> None:
    """Write ``bench/results/NAME.json``; a quick run does not replace a measurement."""
    if quick:
        return
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=2) + "\n")
