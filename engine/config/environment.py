"""Settings of environments: ``environment.type`` selects one, the other settings belong to it.

To add one: a section here with its own ``type``, a member of ``EnvironmentConfig``, the environment in
``engine.environments``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from engine.config.base import Section

_LAKE_FIELDS = (
    "size",
    "frozen_probability",
    "slip_probability",
    "max_path",
    "train_maps",
    "heldout_maps",
    "map_seed",
)
_LAKE_RULES = 1
"""Version of the map rules; raise it whenever the same settings would produce other maps or texts."""
_LAKE_NAME = re.compile(r"frozenlake-\d+x\d+-[0-9a-f]{8}")


class SweEnvironmentConfig(Section):
    """Software engineering: a sandbox of the task's image, four tools and hidden tests."""

    type: Literal["swe"] = "swe"
    """Kind of environment."""


class ReproductionConfig(Section):
    """Reproduction tests: a sandbox and four tools; rewards a test that fails on the untouched repository."""

    type: Literal["reproduction"] = "reproduction"
    """Kind of environment."""


class FrozenLakeConfig(Section):
    """FrozenLake: cross a lake drawn as text without falling into a hole; for quick experiments."""

    type: Literal["frozenlake"] = "frozenlake"
    """Kind of environment."""
    size: int = Field(default=4, ge=2, le=9)
    """Number of rows and columns of a map."""
    frozen_probability: float = Field(default=0.75, gt=0, le=1)
    """Probability that a square is ice and not a hole."""
    slip_probability: float = Field(default=0.0, ge=0, le=1)
    """Probability that a move slips at a right angle, half to each side; 2/3 is Gymnasium's slippery lake."""
    min_path: int = Field(default=2, ge=1)
    """Minimum length of the shortest path from start to goal, moves."""
    max_path: int = Field(default=8, ge=1)
    """Maximum length of the shortest path from start to goal, moves; at most ``agent.max_steps``."""
    train_maps: int = Field(default=1024, ge=1)
    """Number of different training maps."""
    heldout_maps: int = Field(default=64, ge=1)
    """Number of different evaluation maps; none of them is a training map."""
    map_seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of the maps."""
    expert_noise: float = Field(default=0.3, ge=0, le=1)
    """Warm start: probability that the imitated expert moves at random."""
    warm_start_steps: int = Field(default=160, ge=1)
    """Warm start: number of optimizer steps."""
    warm_start_trajectories: int = Field(default=24, ge=1)
    """Warm start: trajectories per optimizer step."""
    warm_start_seed: int = Field(default=0, ge=0, lt=2**31)
    """Warm start: seed of the initial weights, the maps and the expert's noise."""

    @property
    def dataset_name(self) -> str:
        """Return the dataset name of these maps, which depends on all settings that affect the tasks."""
        settings = self.model_dump(include=set(_LAKE_FIELDS))
        # Left out at its default, which names of existing datasets do not contain.
        settings |= self.model_dump(include={"min_path"}, exclude_defaults=True)
        content = json.dumps([_LAKE_RULES, settings], sort_keys=True)
        digest = hashlib.sha256(content.encode()).hexdigest()[:8]
        return f"frozenlake-{self.size}x{self.size}-{digest}"


EnvironmentConfig = Annotated[
    SweEnvironmentConfig | ReproductionConfig | FrozenLakeConfig, Field(discriminator="type")
]
REPRODUCTION_PROMPTS = frozenset({"reproduction_v1", "reproduction_compact_v1"})
"""Prompts that ask for a test of the issue, not for its solution."""


def generates_tasks(config: Mapping[str, Any]) -> bool:
    """Return whether the engine generates the run's tasks when it starts (resolved configuration)."""
    section = config.get("environment")
    return isinstance(section, Mapping) and section.get("type") == "frozenlake"


def with_generated_dataset(data: Any) -> Any:
    """Fill in ``dataset.name`` in unvalidated settings where the environment generates its tasks.

    Raises:
        ValueError: a dataset of another kind is named.
    """
    lake = _lake(data)
    if lake is None:
        return data
    given = data.get("dataset") or {}
    if not isinstance(given, (Section, Mapping)):
        return data  # the field's own validation reports the problem
    dataset = given.model_dump() if isinstance(given, Section) else dict(given)
    name = dataset.get("name", lake.dataset_name)
    if not _LAKE_NAME.fullmatch(str(name)):
        raise ValueError(
            f"dataset.name is '{name}', but environment 'frozenlake' makes its own tasks: leave it out"
        )
    return {**data, "dataset": {**dataset, "name": lake.dataset_name}}


def _lake(data: Any) -> FrozenLakeConfig | None:
    """Return the FrozenLake section of unvalidated run settings; None when absent or invalid."""
    section = data.get("environment") if isinstance(data, Mapping) else None
    if isinstance(section, FrozenLakeConfig):
        return section
    if not isinstance(section, Mapping) or section.get("type") != "frozenlake":
        return None
    try:
        return FrozenLakeConfig.model_validate(dict(section))
    except ValidationError:
        return None  # the field's own validation reports the problem
