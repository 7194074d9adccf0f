"""Validation of a dataset: is every row true?"""

from __future__ import annotations

from engine.config.run import ValidateRun
from engine.config.validation import ValidatedDatasetConfig


def validate() -> ValidateRun:
    """Every row of a dataset graded untouched and with its gold patch; wrong rows are quarantined."""
    return ValidateRun(name="validation", dataset=ValidatedDatasetConfig(name="quickstart"))
