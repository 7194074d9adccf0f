"""Settings of validation: is every row of a dataset true?"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from engine.config.base import Section
from engine.config.places import Text


class ValidatedDatasetConfig(Section):
    """Which rows."""

    name: Text = Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of a dataset under the data folder's ``datasets/``."""
    splits: tuple[Text, ...] = ()
    """Only these splits; empty is every split."""
    limit: int | None = Field(default=None, ge=1)
    """Only the first so many of those rows."""


class ValidationConfig(Section):
    """Each row is graded untouched, where it must fail, and with its gold patch, where it must pass."""

    repeats: int = Field(default=3, ge=1, le=1000)
    """How often each of the two is graded; outcomes that differ make a row flaky."""
    rows: Literal["all", "unvalidated", "suspect"] = "all"
    """``unvalidated``: only rows without a finding about what they are now; ``suspect``: only those, and rows
    whose last finding was a fault or a failure of infrastructure."""
    infra_retries: int = Field(default=2, ge=0)
    """Further gradings after one that infrastructure lost, besides the grader's own retries."""
    retry_wait_s: float = Field(default=2.0, ge=0)
    """Wait before the first of them; it doubles every time, up to a minute."""
    quarantine: bool = True
    """Keep rows with a fault of their own out of training and evaluation until somebody releases them."""
