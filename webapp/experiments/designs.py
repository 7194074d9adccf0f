"""Design of an experiment: arms × seeds over a recipe or over the configuration of a run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from engine.config.base import config_error, parse_settings
from engine.errors import ConfigError, Problem
from webapp.experiments.models import Experiment

MAX_ARMS = 20
MAX_SEEDS = 50
MAX_RUNS = 100
MAX_SETTINGS = 100
RESERVED = ("name", "seed")
"""Settings of a run that follow from experiment, arm and seed."""
ArmName = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=60, pattern=r"^[^=\x00-\x1f]+$")
]


class Arm(BaseModel):
    """Runs that differ from those of other arms by some settings, and from each other by the seed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ArmName
    settings: dict[str, Any] = Field(default_factory=dict, max_length=MAX_SETTINGS)
    """Settings that differ from the base, by dotted name."""


class Design(BaseModel):
    """Arms and seeds, one run for each pair. The first arm is the baseline of comparisons."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    recipe: str = Field(default="", max_length=100)
    """Recipe that all arms start from; empty with ``base_run``."""
    base_run: int | None = Field(default=None, ge=1, lt=2**63)
    """Run whose configuration all arms start from."""
    arms: tuple[Arm, ...] = Field(min_length=1, max_length=MAX_ARMS)
    seeds: tuple[Annotated[int, Field(ge=0, lt=2**31)], ...] = Field(min_length=1, max_length=MAX_SEEDS)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.recipe) == (self.base_run is not None):
            raise ValueError("name either a recipe or a run to start from")
        for values, what in (([arm.name for arm in self.arms], "arms"), (self.seeds, "seeds")):
            if len(set(values)) < len(values):
                raise ValueError(f"two {what} are equal: give each its own name or number")
        if reserved := [name for arm in self.arms for name in RESERVED if name in arm.settings]:
            raise ValueError(f"an arm cannot set '{reserved[0]}': it follows from experiment, arm and seed")
        if len(self.arms) * len(self.seeds) > MAX_RUNS:
            runs = len(self.arms) * len(self.seeds)
            raise ValueError(f"{runs} runs are more than {MAX_RUNS}: use fewer arms or seeds")
        return self


def make_design(
    *, recipe: str, base_run: int | None, arms: Iterable[tuple[str, Sequence[str]]], seeds: str
) -> Design:
    """Return the design of a form or command.

    Args:
        recipe: recipe to start from; empty with ``base_run``.
        base_run: number of a run to start from.
        arms: names with ``KEY=VALUE`` settings; equal names are one arm.
        seeds: a number of seeds, or seeds separated by commas.

    Raises:
        ConfigError: all problems; those of an arm have a setting that begins with ``arms.NAME``.
    """
    problems: list[Problem] = []
    settings: dict[str, dict[str, Any]] = {}
    for name, lines in arms:
        arm = settings.setdefault(name.strip(), {})
        for line in lines:
            if not line.strip().partition("=")[2]:
                problems.append(Problem(f"'{line[:100]}' is no KEY=VALUE", f"arms.{name.strip()}"))
                continue
            arm |= parse_settings([line.strip()])
    numbers: list[int] = []
    try:
        numbers = parse_seeds(seeds)
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(*problems)
    listed = [{"name": name, "settings": arm} for name, arm in settings.items()]
    return checked_design({"recipe": recipe, "base_run": base_run, "arms": listed, "seeds": numbers})


def checked_design(design: Mapping[str, Any]) -> Design:
    """Return a design from its JSON. Raises ConfigError."""
    try:
        return Design.model_validate(design)
    except ValidationError as error:
        raise config_error(error, what="field") from None


def parse_seeds(text: str) -> list[int]:
    """Return the seeds of ``3`` (three seeds: 0, 1, 2) or ``5,7`` (these seeds). Raises ConfigError."""
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        numbers = []
    if not numbers or ("," not in text and not 1 <= numbers[0] <= MAX_SEEDS):
        message = f"expected a number of seeds from 1 to {MAX_SEEDS}, or seeds separated by commas"
        raise ConfigError(Problem(f"{message}, not '{text[:100]}'", "seeds"))
    return numbers if "," in text else list(range(numbers[0]))


def seeds_text(seeds: Sequence[int]) -> str:
    """Return seeds as ``parse_seeds`` reads them."""
    if list(seeds) == list(range(len(seeds))):
        return str(len(seeds))
    return ",".join(map(str, seeds)) + ("," if len(seeds) == 1 else "")


def setting_line(key: str, value: Any) -> str:
    """Return a setting as ``KEY=VALUE`` in one line, which ``parse_settings`` reads."""
    plain = f"{key}={value}"
    one_line = isinstance(value, str) and value.split() and value.strip().splitlines() == [value]
    return plain if one_line and parse_settings([plain])[key] == value else f"{key}={json.dumps(value)}"


def stored_design(experiment: Experiment) -> Design | None:
    """Return the design of an experiment's last launch; None without one."""
    return Design.model_validate(experiment.design) if experiment.design else None
