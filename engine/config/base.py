"""Base of every configuration section: frozen, and unknown settings are an error."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from engine.errors import ConfigError


class Section(BaseModel):
    """A group of settings; a string literal under each field says what it does."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True
    )


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """``KEY=VALUE`` arguments of a command; a value is JSON, or text where it is not. Raises ConfigError."""
    parsed: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ConfigError(f"--set {setting}: expected KEY=VALUE")
        try:
            parsed[key] = json.loads(value)
        except ValueError:
            parsed[key] = value
    return parsed


def explain_errors(error: ValidationError, *, what: str = "setting", skip: int = 0) -> str:
    """Everything a validation found, as ``place: what is wrong``, joined by semicolons.

    Args:
        error: of a section or document.
        what: the word for a field.
        skip: leading parts of a place that say nothing, such as a discriminator.
    """
    lines = []
    for item in error.errors():
        place = ".".join(str(part) for part in item["loc"][skip:])
        if item["type"] == "extra_forbidden":
            lines.append(f"unknown {what} '{place}'")
        elif item["type"] == "missing":
            lines.append(f"{place}: missing {what}")
        else:
            message = item["msg"].removeprefix("Value error, ")
            lines.append(f"{place}: {message}" if place else message)
    return "; ".join(lines)
