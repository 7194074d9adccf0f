"""Datasets with additional tests."""

from __future__ import annotations

from engine.config.hardening import HardeningConfig
from engine.config.run import HardenRun


def harden() -> HardenRun:
    """Add tests to the tasks of a dataset whose tests let wrong patches pass."""
    return HardenRun(
        name="additional tests", curation=HardeningConfig(dataset="commits", output="commits-hardened")
    )
