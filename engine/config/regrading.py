"""Settings of regrading, which grades the patches of finished runs again."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from engine.config.access.places import Text
from engine.config.base import Section
from engine.config.learning.verifier import RunNames


class RegradeConfig(Section):
    """Patches to grade again, and the rows under which they are graded."""

    runs: RunNames = ()
    """Runs whose patches are graded, by the names of their folders under the data folder's ``runs/``."""
    phases: tuple[Text, ...] = ()
    """Phases whose patches are graded: ``train``, ``eval:heldout``, …; empty grades all."""
    dataset: Annotated[Text, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*)?$")] = ""
    """Dataset with the rows under which patches are graded; empty uses the current rows of each run's own
    datasets. A patch belongs to the row with its task's id, else with its task's instance id."""
    infra_retries: int = Field(default=2, ge=0)
    """Additional gradings after one lost to infrastructure, besides the grader's own retries."""
    retry_wait_s: float = Field(default=2.0, ge=0)
    """Wait before the first retry, seconds; doubled each time, up to a minute."""
