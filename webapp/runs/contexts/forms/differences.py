"""Origins of the values on the new-run form: a person, what follows from other settings, the recipe.

A setting counts once, for the last of them that changed it: recipe against the defaults, preset or type of
policy against the recipe, settings that follow from the dataset or the model, a person.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from engine.config.base import Section
from engine.config.run import parse_run_config
from webapp.runs.contexts.forms.bases import as_text


class Origin(StrEnum):
    """Reason why a setting has another value than the default, or none."""

    HAND = "hand"
    FOLLOWS = "follows"
    PRESET = "preset"
    POLICY = "policy"
    BASE = "base"
    """The recipe, or the run that is cloned."""
    NONE = ""


@dataclass(frozen=True, slots=True)
class Reference:
    """Values that a form's settings are compared with, as texts by dotted setting."""

    originals: Mapping[str, str] = field(default_factory=dict)
    """Of the recipe or of the cloned run, whatever preset and policy were chosen."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """Of the configuration's classes; settings without default are left out."""
    derived: Mapping[str, str] = field(default_factory=dict)
    """Values that follow from other settings."""

    def of_base(self, key: str, base: str) -> Origin:
        """Return the origin of the value that a setting has until a person changes it."""
        if key in self.originals and base != self.originals[key]:
            return Origin.PRESET if key.startswith("algorithm.") else Origin.POLICY
        if key in self.defaults and base != self.defaults[key]:
            return Origin.BASE
        return Origin.NONE

    def of(self, key: str, value: str, base: str) -> Origin:
        """Return the origin of a setting's value."""
        if value == base:
            return self.of_base(key, base)
        return Origin.FOLLOWS if value == self.derived.get(key) else Origin.HAND


def reference(original: Mapping[str, Any], shown: Mapping[str, Any], derived: Mapping[str, str]) -> Reference:
    """Return what a form's settings are compared with.

    Args:
        original: configuration of the recipe or of the cloned run.
        shown: the same under the chosen preset and type of policy.
        derived: values that follow from other settings.
    """
    return Reference(
        originals=dict(setting_texts(parse_run_config(original))),
        defaults=dict(_defaults(parse_run_config(shown))),
        derived=derived,
    )


def setting_texts(model: BaseModel, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield every setting of a configuration by its dotted name, as its input holds it."""
    dumped = model.model_dump(mode="json")
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, Section):
            yield from setting_texts(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", as_text(dumped[name])


def _defaults(model: BaseModel, default: object = None, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the default of every setting of a model.

    Args:
        model: decides which settings there are.
        default: the section's default where the section that contains it sets one.
        prefix: of the names.
    """
    known = default.model_dump(mode="json") if isinstance(default, type(model)) else {}
    for name, info in type(model).model_fields.items():
        value = getattr(model, name)
        own = getattr(default, name) if known else info.get_default(call_default_factory=True)
        if isinstance(value, Section):
            yield from _defaults(value, own, f"{prefix}{name}.")
        elif known or not info.is_required():
            yield f"{prefix}{name}", as_text(known[name] if known else to_jsonable_python(own))


@dataclass(frozen=True, slots=True)
class Difference:
    """Settings of one origin."""

    origin: str
    label: str
    """Words after the number, such as ``by preset dapo``."""
    against: str
    count: int


def count_differences(
    origins: Iterable[Origin], *, base: str, preset: str, policy: str
) -> tuple[Difference, ...]:
    """Return the number of settings by origin, also where there are none.

    Args:
        origins: of all settings.
        base: name of the recipe or of the cloned run.
        preset: the chosen one; empty for kinds without an objective.
        policy: the chosen type; empty for kinds without a policy.
    """
    counts = Counter(origins)
    words = (
        (Origin.HAND, "by hand", base),
        (Origin.FOLLOWS, "because of dataset or model", base),
        (Origin.PRESET, f"by preset {preset}", base),
        (Origin.POLICY, f"by policy type {policy}", base),
        (Origin.BASE, f"by {base}", "the defaults"),
    )
    return tuple(Difference(origin, label, against, counts[origin]) for origin, label, against in words)
