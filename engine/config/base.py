"""Base class of every configuration section: immutable, and unknown settings are errors."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, ValidationError, field_validator

from engine.errors import ConfigError, Problem
from engine.reading import parse_json

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


_TOO_LARGE = 2**53
"""Smallest size at which integers lose precision as floats, which plans, browsers and databases use."""


class Section(BaseModel):
    """A group of settings; the string literal under each field is its description."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        validate_default=True,
        allow_inf_nan=False,
    )

    @field_validator("*")
    @classmethod
    def _is_of_a_possible_size(cls, value: Any) -> Any:
        if isinstance(value, int) and abs(value) >= _TOO_LARGE:
            raise ValueError(f"expected a number between ±{_TOO_LARGE:,}")
        return value


def _as_json(bound: float) -> float | str:
    return "inf" if bound == math.inf else bound


UpperBound = Annotated[float, Field(gt=0, allow_inf_nan=True), PlainSerializer(_as_json, when_used="json")]
"""Positive number, or infinity for no bound, which JSON writes as ``"inf"``."""


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """Parse the ``KEY=VALUE`` arguments of a command; values are JSON, else text. Raises ConfigError."""
    parsed: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not (key and equals):
            raise ConfigError(f"--set {setting}: expected KEY=VALUE")
        try:
            parsed[key] = parse_json(value, parse_constant=str)
        except ValueError:
            parsed[key] = value
    return parsed


class ImpossibleSettingsError(ValueError):
    """Raised by a validator that finds several settings wrong at once.

    Args:
        problems: settings are named relative to the section that is validated.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(map(str, self.problems)))


def config_error(
    error: ValidationError,
    *,
    what: str = "setting",
    skip: int = 0,
    unions: Collection[tuple[str, ...]] = (),
) -> ConfigError:
    """Return all findings of a validation as one ConfigError.

    Args:
        error: the validation error of a section or document.
        what: the word for a field in the message.
        skip: number of leading location parts that name no setting, such as a discriminator.
        unions: locations of sections with a discriminator; the part after one is a type, not a setting.
    """
    return ConfigError(
        *(
            problem
            for item in error.errors()
            for problem in _problems(item, what, _place(item["loc"], skip, unions))
        )
    )


def _place(parts: tuple[int | str, ...], skip: int, unions: Collection[tuple[int | str, ...]]) -> str:
    """Return the dotted name of a setting."""
    kept = (part for i, part in enumerate(parts) if i >= skip and parts[:i] not in unions)
    return ".".join(str(part) for part in kept)


def _problems(item: ErrorDetails, what: str, place: str) -> Iterator[Problem]:
    cause = item.get("ctx", {}).get("error")
    if item["type"] == "extra_forbidden":
        yield Problem(f"unknown {what}", place)
    elif item["type"] in ("union_tag_invalid", "union_tag_not_found"):
        context = item["ctx"]
        name = context["discriminator"].strip("'")
        known = (
            f"must be one of {context['expected_tags']}" if "expected_tags" in context else f"missing {what}"
        )
        yield Problem(known, ".".join(filter(None, (place, name))))
    elif item["type"] == "missing":
        yield Problem(f"missing {what}", place)
    elif isinstance(cause, ImpossibleSettingsError):
        for problem in cause.problems:
            yield Problem(problem.message, ".".join(filter(None, (place, problem.setting))))
    else:
        yield Problem(str(cause) if isinstance(cause, ValueError) else item["msg"], place)
