"""Settings of the validation of datasets."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from engine.config.access.places import Text
from engine.config.base import ImpossibleSettingsError, Section
from engine.config.learning.verifier import RunNames
from engine.errors import Problem


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
    wrong_patches: int = Field(default=0, ge=0, le=200)
    """Maximum number of plausible wrong patches of each valid row, graded to measure the strength of its
    tests: parts of the solution, the solution with a fault, and patches of failed rollouts; 0 for none."""
    wrong_patches_of: RunNames = ()
    """Runs with failed rollouts whose patches are among the wrong ones, by the names of their folders under
    the data folder's ``runs/``; tasks are found by instance id."""

    @model_validator(mode="after")
    def _measured(self) -> Self:
        if self.wrong_patches_of and not self.wrong_patches:
            raise ImpossibleSettingsError(
                [Problem("has no effect without validation.wrong_patches", "wrong_patches_of")]
            )
        return self
