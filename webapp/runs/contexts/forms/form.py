"""The form of a new run: every setting of a recipe (or of a run to clone), grouped by section.

Fields come from the configuration's own classes, so a new setting appears here by itself with its
docstring as help. ``parse_overrides`` is the inverse: only settings that differ become overrides.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from engine.algorithms.lint import lint_data
from engine.config.base import Section
from engine.config.contradictions import LintFinding
from engine.config.places import Granted
from engine.config.run import POLICY_TYPE_KEY, PRESET_KEY, parse_run_config, policy_type, with_overrides
from engine.errors import ConfigError, Problem
from engine.reading import parse_json
from webapp.endpoints.services import places
from webapp.runs.contexts.forms.bases import UNSET, as_text, policy_types
from webapp.runs.contexts.forms.differences import Origin, Reference, reference

HIDDEN = ("kind", "data", "method", "recipe")
_REPLACING = frozenset(
    {
        PRESET_KEY, POLICY_TYPE_KEY, "dataset.name", "evaluation.dataset", "trajectories.dataset",
        "policy.endpoint", "collection.skip",
    }
)  # fmt: skip
"""Settings whose value decides which fields there are, or what they offer."""
_CLOSED = frozenset({POLICY_TYPE_KEY, "policy.endpoint"})
"""Settings that take no other value than those on offer."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A value to choose."""

    value: str
    label: str = ""
    """Facts about it."""


Offers = Mapping[str, tuple[Offer, ...]]
"""Values to choose from, by dotted setting."""


@dataclass(frozen=True, slots=True)
class FormField:
    """One setting as an input; values are texts as the form posts them."""

    key: str
    name: str
    widget: str
    """``text``, ``number``, ``choice``, ``check``, ``list`` (one item a line) or ``mapping`` (JSON);
    ``suggest`` is a text with values to choose from."""
    value: str
    base: str
    """The recipe's value."""
    choices: tuple[Offer, ...]
    help: str
    optional: bool
    error: str
    default: str | None = None
    """The default of the configuration; None where there is none."""
    original: str | None = None
    """The recipe's value under its own preset and type of policy; None where it has no such setting."""
    origin: Origin = Origin.NONE
    base_origin: Origin = Origin.NONE
    """Origin of the recipe's value."""
    derived: str | None = None
    """Value that follows from other settings."""

    @property
    def changed(self) -> bool:
        """Return whether the value differs from the recipe's."""
        return self.value != self.base

    @property
    def replaces(self) -> bool:
        """Return whether other fields depend on the value, so that the form is rendered anew."""
        return self.key in _REPLACING


@dataclass(frozen=True, slots=True)
class FormSection:
    """The settings of one section."""

    name: str
    help: str
    fields: tuple[FormField, ...]
    open: bool


@dataclass(frozen=True, slots=True)
class _Given:
    """Submitted values, problems, offers and reference values of the fields."""

    posted: Mapping[str, str]
    problems: Sequence[Problem]
    offers: Offers
    compared: Mapping[str, str]
    """Values to compare with where those of the configuration do not count."""
    reference: Reference


def _kind(annotation: object) -> tuple[str, tuple[Offer, ...], bool]:
    """Return the widget, the choices and whether the value is optional, from a field's type."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in (types.UnionType, typing.Union):
        inner = [arg for arg in args if arg is not type(None)]
        widget, choices, _ = _kind(inner[0])
        return widget, choices, len(inner) < len(args)
    if origin is typing.Annotated:
        return _kind(args[0])
    if origin is Literal:
        return "choice", tuple(Offer(str(arg)) for arg in args), False
    if annotation is bool:
        return "check", (), False
    if annotation in (int, float):
        return "number", (), False
    if origin in (tuple, list):
        item = args[0] if args else str
        known = tuple(item) if isinstance(item, type) and issubclass(item, StrEnum) else ()
        return "list", tuple(Offer(str(member)) for member in known), False
    return ("mapping" if origin in (dict, Mapping) else "text"), (), False


def _fields(prefix: str, model: BaseModel, base: Mapping[str, Any], given: _Given) -> tuple[FormField, ...]:
    result = []
    for name, info in type(model).model_fields.items():
        if isinstance(getattr(model, name), Section) or (not prefix and name in HIDDEN):
            continue
        key, value = f"{prefix}{name}", base.get(name)
        widget, choices, optional = _widget(key, info, given.offers)
        text = "" if value == UNSET else as_text(value)
        compared = given.compared.get(key, text)
        if value == UNSET and key in _CLOSED and choices:
            text = choices[0].value
        entered, beside = _posted(given.posted, key, text), given.reference
        result.append(
            FormField(
                key, name.replace("_", " "), widget, entered, compared, choices,
                _help(info) or _summary(model), optional, _error(key, given.problems),
                beside.defaults.get(key), beside.originals.get(key),
                beside.of(key, entered, compared), beside.of_base(key, compared), beside.derived.get(key),
            )
        )  # fmt: skip
    return tuple(result)


def _help(info: FieldInfo) -> str:
    """Return a setting's docstring; where an administrator has to grant values, it ends with that."""
    granted = " Other values than the default are granted by the administrator." * _is_granted(info)
    return f"{info.description or ''}{granted}"


def _summary(section: BaseModel) -> str:
    """Return the first line of a section's docstring, which describes the type that its ``type`` names."""
    return (type(section).__doc__ or "").strip().split("\n")[0]


def _is_granted(info: FieldInfo) -> bool:
    return any(isinstance(one, Granted) for one in info.metadata)


def _error(key: str, problems: Sequence[Problem]) -> str:
    """Return the message of the problem with a setting, or with one item of its list."""
    return next((one.message for one in problems if f"{one.setting}.".startswith(f"{key}.")), "")


def _widget(key: str, info: FieldInfo, offers: Offers) -> tuple[str, tuple[Offer, ...], bool]:
    widget, choices, optional = _kind(info.annotation)
    if not offers.get(key):
        return widget, choices, optional
    if widget in ("list", "mapping"):
        return widget, offers[key], optional
    choices = tuple(offer for offer in offers[key] if offer.value or not optional)
    return "choice" if key in _CLOSED or _is_granted(info) else "suggest", choices, optional


def _posted(posted: Mapping[str, str], key: str, fallback: str) -> str:
    return posted[key].replace("\r\n", "\n") if key in posted else fallback


def form_sections(
    base: Mapping[str, Any],
    *,
    posted: Mapping[str, str],
    problems: Sequence[Problem],
    offers: Offers,
    original: Mapping[str, Any] | None = None,
    derived: Mapping[str, str] | None = None,
) -> tuple[FormSection, ...]:
    """Return sections of a configuration with what was posted filled in.

    Args:
        base: what the fields are compared with.
        posted: texts by dotted setting.
        problems: what is wrong with what was posted, shown beside the fields.
        offers: values to choose from, by dotted setting.
        original: the configuration from which ``rebase`` made ``base``, where they differ.
        derived: values that follow from other settings, as texts.

    Raises ConfigError when ``base`` itself is not valid in this version.
    """
    model = parse_run_config(base)
    original = original or base
    compared = {
        PRESET_KEY: original.get("algorithm", {}).get("preset", ""),
        POLICY_TYPE_KEY: policy_type(original),
    }
    types_of_policy = tuple(map(Offer, policy_types(base)))
    given = _Given(
        posted, problems, {**offers, POLICY_TYPE_KEY: types_of_policy}, compared,
        reference(original, base, derived or {}),
    )  # fmt: skip
    general = _fields("", model, base, given)
    return (FormSection("run", "", general, True), *_nested("", model, base, given))


def _nested(prefix: str, model: BaseModel, base: Mapping[str, Any], given: _Given) -> Iterator[FormSection]:
    """Yield the sections of a section, each followed by its own, under their dotted names."""
    for name in type(model).model_fields:
        part = getattr(model, name)
        if not isinstance(part, Section):
            continue
        key = f"{prefix}{name}"
        fields = _fields(f"{key}.", part, base[name], given)
        opened = key in ("dataset", "trajectories", "trainer", "importing") or any(
            f.changed or f.error for f in fields
        )
        yield FormSection(key, _summary(part), fields, opened)
        yield from _nested(f"{key}.", part, base[name], given)


def parse_overrides(sections: tuple[FormSection, ...]) -> dict[str, Any]:
    """Return dotted overrides of every setting whose text differs from the base."""
    overrides: dict[str, Any] = {}
    for field in (field for section in sections for field in section.fields):
        if not field.changed:
            continue
        if field.widget == "list":
            overrides[field.key] = [line.strip() for line in field.value.split("\n") if line.strip()]
        elif field.widget == "mapping":
            overrides[field.key] = _json_or_text(field.value)
        elif field.optional and not field.value.strip():
            overrides[field.key] = None
        else:
            overrides[field.key] = field.value.strip()
    return overrides


def _json_or_text(value: str) -> Any:
    """Parse a text as JSON; return other text unchanged, for the configuration to refuse."""
    try:
        return parse_json(value or "{}")
    except ValueError:
        return value


def check(base: Mapping[str, Any], sections: tuple[FormSection, ...]) -> list[LintFinding]:
    """Return the problems of a form's configuration: contradictions, idle settings, forbidden values."""
    try:
        config = with_overrides(base, parse_overrides(sections))
        places.checked(config)
        return lint_data(config)
    except ConfigError as error:
        return [
            LintFinding(severity="error", setting=one.setting, message=one.message) for one in error.problems
        ]
