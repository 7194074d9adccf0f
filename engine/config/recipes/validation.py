"""Validation of a dataset's rows."""

from __future__ import annotations

from engine.config.run import ValidateRun
from engine.config.validation import ValidatedDatasetConfig


def validate() -> ValidateRun:
    """Grade every row of a dataset without changes and with its gold patch; quarantine faulty rows."""
    return ValidateRun(name="validation", dataset=ValidatedDatasetConfig(name="quickstart"))
