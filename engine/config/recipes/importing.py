"""Import of a published dataset."""

from __future__ import annotations

from engine.config.importing import DecontaminationConfig, ImportConfig
from engine.config.run import ImportRun


def import_set() -> ImportRun:
    """Import a published dataset: R2E-Gym Subset from the Hub, decontaminated against SWE-bench Verified."""
    return ImportRun(
        name="import",
        importing=ImportConfig(
            format="r2e-gym",
            source="hf:R2E-Gym/R2E-Gym-Subset",
            output="r2e-gym-subset",
            decontamination=DecontaminationConfig(verified_repositories=True),
        ),
    )
