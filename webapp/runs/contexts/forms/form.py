"""The form of a draft: every setting of its configuration, grouped by section.

Fields come from the configuration's own classes, so a new setting appears here by itself with its
docstring as help. ``edited`` is the inverse: only values that a person changed become overrides.
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

from engine.config.access.places import Granted
from engine.config.base import Section
from engine.config.run import PRESET_KEY
from engine.errors import Problem
from engine.reading import parse_json
from webapp.runs.services.drafts import POLICY_SECTIONS, SELECTING, Draft, Origin, policy_types

HIDDEN = ("kind", "data", "method", "recipe")
_REPLACING = frozenset(
    {
        *SELECTING, "dataset.name", "evaluation.dataset", "trajectories.dataset", "policy.endpoint",
        "collection.skip",
    }
)  # fmt: skip
"""Settings whose value determines the fields of the form or their offers."""
_CLOSED = frozenset(f"{section}.{name}" for section in POLICY_SECTIONS for name in ("type", "endpoint"))
"""Settings that accept only offered values."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A value to choose."""

    value: str
    label: str = ""
    """Description of the value."""
    name: str = ""
    """Start of the label that is shown before the value; empty where the value comes first."""


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
    """The value until a person changes it."""
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
    """Origin of ``base``."""

    @property
    def changed(self) -> bool:
        """Return whether a person, the dataset or the model changed the value."""
        return self.origin in (Origin.HAND, Origin.FOLLOWS)

    @property
    def replaces(self) -> bool:
        """Return whether a change renders the form anew: other fields depend on the value."""
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
    """The draft, its problems, and values to choose from."""

    draft: Draft
    problems: Sequence[Problem]
    offers: Offers


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


def _fields(prefix: str, model: BaseModel, given: _Given) -> tuple[FormField, ...]:
    draft, result = given.draft, []
    for name, info in type(model).model_fields.items():
        if isinstance(getattr(model, name), Section) or (not prefix and name in HIDDEN):
            continue
        key = f"{prefix}{name}"
        widget, choices, optional = _widget(key, info, given.offers)
        result.append(
            FormField(
                key, name.replace("_", " "), widget, draft.text(key), draft.base_text(key), choices,
                _help(info) or _summary(model), optional, _error(key, given.problems),
                draft.defaults.get(key), draft.originals.get(key), draft.origin(key), draft.base_origin(key),
            )
        )  # fmt: skip
    return tuple(result)


def _help(info: FieldInfo) -> str:
    """Return a setting's docstring, with a note where an administrator grants values."""
    granted = " Values other than the default require an administrator's grant." * _is_granted(info)
    return f"{info.description or ''}{granted}"


def _summary(section: BaseModel) -> str:
    """Return the first line of a section's docstring, which describes the type that its ``type`` names."""
    return (type(section).__doc__ or "").strip().split("\n")[0]


def _is_granted(info: FieldInfo) -> bool:
    return any(isinstance(entry, Granted) for entry in info.metadata)


def _error(key: str, problems: Sequence[Problem]) -> str:
    """Return the message of the problem with a setting, or with one item of its list."""
    # The dot keeps "policy.model" apart from "policy.models".
    return next((problem.message for problem in problems if f"{problem.setting}.".startswith(f"{key}.")), "")


def _widget(key: str, info: FieldInfo, offers: Offers) -> tuple[str, tuple[Offer, ...], bool]:
    widget, choices, optional = _kind(info.annotation)
    if not offers.get(key):
        return widget, choices, optional
    if widget in ("list", "mapping"):
        return widget, offers[key], optional
    choices = tuple(offer for offer in offers[key] if offer.value or not optional)
    return "choice" if key in _CLOSED or _is_granted(info) else "suggest", choices, optional


def form_sections(
    draft: Draft, *, problems: Sequence[Problem] = (), offers: Offers | None = None
) -> tuple[FormSection, ...]:
    """Return the sections of a draft's settings.

    Args:
        draft: the draft to show.
        problems: its problems, shown beside the fields.
        offers: values to choose from, by dotted setting.
    """
    model = draft.model
    types = {setting: tuple(map(Offer, names)) for setting, names in policy_types(model).items()}
    given = _Given(draft, problems, {**(offers or {}), **types})
    return (FormSection("run", "", _fields("", model, given), True), *_nested("", model, given))


def _nested(prefix: str, model: BaseModel, given: _Given) -> Iterator[FormSection]:
    """Yield the subsections of a section with dotted names, each followed by its own subsections."""
    for name in type(model).model_fields:
        part = getattr(model, name)
        if not isinstance(part, Section):
            continue
        key = f"{prefix}{name}"
        fields = _fields(f"{key}.", part, given)
        opened = key in ("dataset", "trajectories", "trainer", "importing") or any(
            f.changed or f.error for f in fields
        )
        yield FormSection(key, _summary(part), fields, opened)
        yield from _nested(f"{key}.", part, given)


def edited(before: Draft, posted: Mapping[str, str]) -> dict[str, Any]:
    """Return the overrides of a draft after a person has edited its form.

    Values left as shown are no overrides, so that another preset or dataset brings its own. Another type of
    policy discards the overrides of the former policy.

    Args:
        before: the draft that the form showed.
        posted: texts by dotted setting; other fields are ignored, settings that are absent are as before.
    """
    overrides = dict(before.overrides)
    replaced = [
        section
        for section in POLICY_SECTIONS
        if posted.get(f"{section}.type") not in (None, before.text(f"{section}.type"))
    ]
    for field in (field for section in form_sections(before) for field in section.fields):
        if any(field.key.startswith(f"{name}.") and field.key != f"{name}.type" for name in replaced):
            overrides.pop(field.key, None)
            continue
        text = posted.get(field.key, field.value).replace("\r\n", "\n")
        if text == field.value:
            continue
        overrides[field.key] = _value(field, text)
        if field.key == PRESET_KEY and text == field.original:
            del overrides[field.key]  # back to the recipe, with its own differences from the preset
    return overrides


def preselected(draft: Draft, offers: Offers) -> dict[str, str]:
    """Return the first offered value of each setting that lacks one and accepts only offered values."""
    return {key: offers[key][0].value for key in draft.missing if key in _CLOSED and offers.get(key)}


def _value(field: FormField, text: str) -> Any:
    """Return the value of a field from a person's text; the configuration refuses an invalid one."""
    if field.widget == "list":
        return [line.strip() for line in text.split("\n") if line.strip()]
    if field.widget == "mapping":
        return _json_or_text(text)
    return None if field.optional and not text.strip() else text.strip()


def _json_or_text(value: str) -> Any:
    """Parse a text as JSON; return other text unchanged, for the configuration to refuse."""
    try:
        return parse_json(value or "{}")
    except ValueError:
        return value
