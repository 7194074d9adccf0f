"""Settings of the hardening of a dataset: additional tests for tasks whose tests are weak."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from engine.config.access.places import Text
from engine.config.base import ImpossibleSettingsError, Section
from engine.config.learning.verifier import RunNames
from engine.errors import Problem

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


class HardeningConfig(Section):
    """New version of a dataset whose weak tasks have additional tests."""

    dataset: Text = Field(min_length=1, pattern=_NAME)
    """Name of a dataset in the data folder's ``datasets/``."""
    output: Text = Field(min_length=1, pattern=_NAME)
    """Name of the dataset to write."""
    wrong_patches: int = Field(default=24, ge=1, le=200)
    """Maximum number of plausible wrong patches of each task; a task is weak if its tests let one pass."""
    alternatives_of: RunNames = ()
    """Runs whose passed patches are honest alternatives, by the names of their folders under the data
    folder's ``runs/``: no additional test may fail one. Tasks are found by instance id."""
    max_tests: int = Field(default=12, ge=1, le=100)
    """Maximum number of additional tests of a task."""
    test_timeout_s: float = Field(default=120.0, gt=0)
    """Time limit of one run of a task's tests, seconds, where the task has none of its own."""
    workers: int = Field(default=2, ge=1)
    """Number of tasks hardened at once."""

    @model_validator(mode="after")
    def _keeps_the_original(self) -> Self:
        if self.output == self.dataset:
            message = f"must differ from the dataset '{self.dataset}', which is kept as it is"
            raise ImpossibleSettingsError([Problem(message, "output")])
        return self
