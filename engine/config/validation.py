"""Settings of the validation of datasets."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from engine.config.access.places import Text
from engine.config.base import Section


class ValidatedDatasetConfig(Section):
    """Rows to validate."""

    name: Text = Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of a dataset in the data folder's ``datasets/``."""
    splits: tuple[Text, ...] = ()
    """Splits to validate; empty validates all."""
    limit: int | None = Field(default=None, ge=1)
    """Maximum number of rows to validate, from the first on."""


class ValidationConfig(Section):
    """Validation of rows: each must fail without changes and pass with its gold patch."""

    repeats: int = Field(default=3, ge=1, le=1000)
    """Number of gradings per side (unchanged, gold patch); differing outcomes mark a row as flaky."""
    rows: Literal["all", "unvalidated", "suspect"] = "all"
    """Rows to validate: ``unvalidated`` takes only rows without a finding about their current content;
    ``suspect`` also takes rows whose last finding was a fault or an infrastructure failure."""
    infra_retries: int = Field(default=2, ge=0)
    """Additional gradings after one lost to infrastructure, besides the grader's own retries."""
    retry_wait_s: float = Field(default=2.0, ge=0)
    """Wait before the first retry, seconds; doubled each time, up to a minute."""
    quarantine: bool = True
    """Exclude faulty rows from training and evaluation until a person releases them."""
