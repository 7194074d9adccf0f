"""Import form, and page of the rows that imports left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.urls import reverse

from engine.config.importing import FORMATS
from engine.errors import Problem
from webapp.core.contexts.frame import Crumb
from webapp.core.contexts.numbers import page_number, whole
from webapp.core.selectors import Page
from webapp.datasets.models.datasets import Dataset
from webapp.datasets.selectors import imports as reads
from webapp.datasets.selectors.imports import Kind
from webapp.endpoints.services.places import allowed
from webapp.runs.models.runs import Run

FIELDS = {
    "format": "", "source": "", "name": "", "mode": "new", "verified_repositories": "yes", "reference": "",
    "languages": "", "where": "", "min_words": "", "drop_leaking": "", "drop_ungradable": "", "limit": "",
    "source_split": "", "split": "", "revision": "", "subset": "", "image_prefix": "",
}  # fmt: skip
"""Initial value of every field of the form."""


@dataclass(frozen=True, slots=True)
class FormatChoice:
    """Importable format and its description."""

    name: str
    about: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportFormContext:
    """Import form."""

    section: str
    crumbs: tuple[Crumb, ...]
    formats: tuple[FormatChoice, ...]
    sources: tuple[str, ...]
    """Files and folders in the import folders."""
    folders: tuple[str, ...]
    values: Mapping[str, str]
    refused: tuple[Problem, ...]
    """Problems of a refused import."""
    imports: tuple[Run, ...]
    """Imports in progress, and imports that ended without a dataset."""


def build_import_form(
    posted: Mapping[str, str] | None = None, refused: tuple[Problem, ...] = ()
) -> ImportFormContext:
    """Return the import form with the posted values."""
    folders = allowed().imports
    # Browsers do not post unticked boxes: a missing field of a posted form is empty, not the default.
    values = {name: (posted.get(name, "") if posted else default) for name, default in FIELDS.items()}
    return ImportFormContext(
        section="datasets",
        crumbs=(Crumb("Datasets", reverse("dataset-list")), Crumb("import")),
        formats=tuple(FormatChoice(name, about) for name, about in FORMATS.items()),
        sources=tuple(reads.offered_sources(folders)),
        folders=tuple(str(folder) for folder in folders),
        values=values,
        refused=refused,
        imports=tuple(reads.unfinished_imports()),
    )


def overrides_of(posted: Mapping[str, str]) -> dict[str, Any]:
    """Return the import settings of a form, except format, source and name."""

    def several(name: str) -> list[str]:
        return [part.strip() for part in posted.get(name, "").replace("\n", ",").split(",") if part.strip()]

    settings: dict[str, Any] = {
        f"importing.{name}": posted.get(name, "").strip()
        for name in ("split", "mode", "image_prefix", "revision", "subset", "source_split")
        if posted.get(name, "").strip()
    }
    for name in ("languages", "where"):
        if several(name):
            settings[f"importing.filters.{name}"] = several(name)
    for name in ("drop_leaking", "drop_ungradable"):
        settings[f"importing.filters.{name}"] = posted.get(name) == "yes"
    settings["importing.decontamination.verified_repositories"] = posted.get("verified_repositories") == "yes"
    if posted.get("reference", "").strip():
        settings["importing.decontamination.reference"] = posted["reference"].strip()
    for name, key in (("limit", "importing.limit"), ("min_words", "importing.filters.min_words")):
        given = posted.get(name, "").strip()
        if given:
            number = whole(given)
            settings[key] = given if number is None else number
    return settings


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutContext:
    """Page of the source rows that are not in the dataset."""

    section: str
    crumbs: tuple[Crumb, ...]
    dataset: Dataset
    kind: Kind
    page: Page[dict[str, Any]]
    reasons: tuple[tuple[str, int], ...]
    """Reason of exclusion → number of rows, over all imports."""
    params: Mapping[str, str]


def build_left_out(dataset: Dataset, params: Mapping[str, str]) -> LeftOutContext:
    """Return the page of source rows that are not in the dataset."""
    kind: Kind = "excluded" if params.get("kind") == "excluded" else "rejects"
    reasons: dict[str, int] = {}
    for record in dataset.provenance.get("imports") or []:
        for name, number in (record.get("excluded_by") or {}).items():
            reasons[name] = reasons.get(name, 0) + number
    return LeftOutContext(
        section="datasets",
        crumbs=(
            Crumb("Datasets", reverse("dataset-list")),
            Crumb(dataset.name, reverse("dataset-detail", args=[dataset.name])),
            Crumb("skipped rows"),
        ),
        dataset=dataset,
        kind=kind,
        page=reads.left_out(dataset, kind, number=page_number(params)),
        reasons=tuple(sorted(reasons.items(), key=lambda item: -item[1])),
        params=dict(params),
    )
