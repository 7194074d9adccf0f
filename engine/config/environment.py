"""What agents act in: ``environment.type`` chooses, the other settings belong to the chosen one.

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
"""Raised whenever the same settings would give other maps or other texts."""
_LAKE_NAME = re.compile(r"frozenlake-\d+x\d+-[0-9a-f]{8}")


class SweEnvironmentConfig(Section):
    """Software engineering: a sandbox of the task's image, four tools, hidden tests."""

    type: Literal["swe"] = "swe"
    """Environment."""


class FrozenLakeConfig(Section):
    """FrozenLake: cross a lake drawn as text without falling into a hole; made for experiments."""

    type: Literal["frozenlake"] = "frozenlake"
    """Environment."""
    size: int = Field(default=4, ge=2, le=9)
    """Rows and columns of a map."""
    frozen_probability: float = Field(default=0.75, gt=0, le=1)
    """Chance that a square is ice and not a hole."""
    slip_probability: float = Field(default=0.0, ge=0, le=1)
    """Chance that a move goes off at a right angle, half to each side; 2/3 is Gymnasium's slippery lake."""
    min_path: int = Field(default=2, ge=1)
    """Shortest path from start to goal at least, moves."""
    max_path: int = Field(default=8, ge=1)
    """Shortest path from start to goal at most, moves; not more than ``agent.max_steps``."""
    train_maps: int = Field(default=1024, ge=1)
    """Different maps to train on."""
    heldout_maps: int = Field(default=64, ge=1)
    """Different maps to evaluate on; none of them is a training map."""
    map_seed: int = Field(default=0, ge=0, lt=2**31)
    """Seeds the maps."""
    expert_noise: float = Field(default=0.3, ge=0, le=1)
    """Warm start: chance that the imitated expert moves at random."""
    warm_start_steps: int = Field(default=160, ge=1)
    """Warm start: optimizer steps."""
    warm_start_trajectories: int = Field(default=24, ge=1)
    """Warm start: trajectories per step."""
    warm_start_seed: int = Field(default=0, ge=0, lt=2**31)
    """Warm start: seeds fresh weights, maps and the expert's noise."""

    @property
    def dataset_name(self) -> str:
        """Name of the dataset of these maps: settings that give other tasks give another name."""
        content = json.dumps([_LAKE_RULES, self.model_dump(include=set(_LAKE_FIELDS))], sort_keys=True)
        digest = hashlib.sha256(content.encode()).hexdigest()[:8]
        return f"frozenlake-{self.size}x{self.size}-{digest}"


EnvironmentConfig = Annotated[SweEnvironmentConfig | FrozenLakeConfig, Field(discriminator="type")]


def makes_own_tasks(config: Mapping[str, Any]) -> bool:
    """Return whether a run's resolved configuration has its tasks made by the engine when it starts."""
    section = config.get("environment")
    return isinstance(section, Mapping) and section.get("type") == "frozenlake"


def with_generated_dataset(data: Any) -> Any:
    """Fill in ``dataset.name`` of unvalidated settings where the environment generates its tasks.

    Raises:
        ValueError: a dataset of another kind is named.
    """
    lake = _lake(data)
    if lake is None:
        return data
    given = data.get("dataset") or {}
    dataset = given.model_dump() if isinstance(given, Section) else dict(given)
    name = dataset.get("name", lake.dataset_name)
    if not _LAKE_NAME.fullmatch(str(name)):
        raise ValueError(
            f"dataset.name is '{name}', but environment 'frozenlake' makes its own tasks: leave it out"
        )
    return {**data, "dataset": {**dataset, "name": lake.dataset_name}}


def _lake(data: Any) -> FrozenLakeConfig | None:
    """Return the FrozenLake section of unvalidated run settings; None for others and for wrong ones."""
    section = data.get("environment") if isinstance(data, Mapping) else None
    if isinstance(section, FrozenLakeConfig):
        return section
    if not isinstance(section, Mapping) or section.get("type") != "frozenlake":
        return None
    try:
        return FrozenLakeConfig.model_validate(dict(section))
    except ValidationError:
        return None  # the field's own validation says what is wrong
