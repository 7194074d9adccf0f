"""Fingerprint and provenance of an import, recorded with the dataset."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.config.importing import ImportConfig
from engine.datasets.importers.base import Format
from engine.datasets.importers.reading import Source, data_files, task_folders
from engine.datasets.importers.staging import ImportProgress
from engine.datasets.store import dataset_path
from engine.errors import DatasetError

COUNTED = ("read", "imported", "rejected", "duplicates", "excluded", "ungradable")


def existing_header(config: ImportConfig, home: Path) -> dict[str, Any] | None:
    """Return the header of the existing dataset. Raises DatasetError when it must not be changed."""
    try:
        header: dict[str, Any] = json.loads((dataset_path(home, config.output) / "dataset.json").read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise DatasetError(f"the dataset '{config.output}' is damaged: {error}") from None
    if config.mode == "new":
        imports = header.get("provenance", {}).get("imports") or []
        same = len(imports) == 1 and (imports[0].get("format"), imports[0].get("source")) == (
            config.format, config.source,
        )  # fmt: skip
        if not same:
            raise DatasetError(
                f"there is a dataset '{config.output}' already, from another source: choose another name, or "
                "pass --replace or --append (mode=replace, mode=append)"
            )
    return header


def fingerprint_of(
    config: ImportConfig, source: Source, form: Format, existing: Mapping[str, Any] | None
) -> str:
    """Return the fingerprint of an import: source files, settings and the dataset it is appended to."""
    inputs: list[Any] = [config.model_dump(mode="json"), source.revision]
    if form.read_folder is None:
        files = [file.path for file in data_files(source, config.source_split)]
    else:
        files = [folder / form.marker for folder in task_folders(source.path, form.marker)]
    for file in files:
        stat = file.stat()
        inputs.append([str(file), stat.st_size, 0 if source.revision else stat.st_mtime_ns])
    if config.mode == "append":
        inputs.append(existing)
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def provenance_of(
    config: ImportConfig,
    source: Source,
    progress: ImportProgress,
    references: int,
    existing: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the provenance to record with the dataset: all imports it consists of.

    Args:
        config: this import.
        source: the rows' location.
        progress: the counts of this import.
        references: number of benchmark rows it was compared with.
        existing: header of the dataset that is appended to.
    """
    record: dict[str, Any] = {
        "format": config.format,
        "source": config.source,
        "counts": {name: progress.counts.get(name, 0) for name in COUNTED},
        "excluded_by": dict(sorted(progress.excluded_by.items())),
        "settings": config.model_dump(
            mode="json", exclude={"format", "source", "output", "mode", "revision"}, exclude_defaults=True
        ),
    }
    if source.revision:
        record["revision"] = source.revision
    if references:
        record["decontamination_references"] = references
    before = (existing or {}).get("provenance", {}) if config.mode == "append" else {}
    others = [
        entry
        for entry in before.get("imports") or []
        if (entry.get("format"), entry.get("source")) != (config.format, config.source)
    ]
    return {**before, "imports": [*others, record]}
