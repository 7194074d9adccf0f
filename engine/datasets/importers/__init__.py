"""Importers: published sets of software-engineering tasks become datasets of this yard.

from engine.config.importing import ImportConfig
from engine.datasets.importers import import_dataset
import_dataset(ImportConfig(format="r2e-gym", source="hf:R2E-Gym/R2E-Gym-Subset", output="r2e"), home=home)
"""

from __future__ import annotations

from engine.datasets.importers.formats import FORMATS, find_format
from engine.datasets.importers.run import ImportResult, import_dataset

__all__ = ["FORMATS", "ImportResult", "find_format", "import_dataset"]
