"""Import of a published set."""

from __future__ import annotations

from engine.config.importing import DecontaminationConfig, ImportConfig
from engine.config.run import ImportRun


def import_set() -> ImportRun:
    """A published set becomes a dataset: R2E-Gym's Subset from the hub, apart from SWE-bench Verified."""
    return ImportRun(
        name="import",
        importing=ImportConfig(
            format="r2e-gym",
            source="hf:R2E-Gym/R2E-Gym-Subset",
            output="r2e-gym-subset",
            decontamination=DecontaminationConfig(verified_repositories=True),
        ),
    )
