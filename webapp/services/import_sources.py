"""Which files an import that people start from a browser or the API may read.

Paths lead into the import folders: ``imports/`` in the data folder, and those that
``TRAINYARD_IMPORT_FOLDERS`` (separated by colons) names. The command line may read what its user may.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.conf import settings

from engine.config.importing import HUB_PREFIX
from engine.errors import ConfigError


def import_folders() -> tuple[Path, ...]:
    """Folders that imports may read, the data folder's own first."""
    named = os.environ.get("TRAINYARD_IMPORT_FOLDERS", "").split(":")
    return (Path(settings.TRAINYARD_HOME) / "imports", *(Path(folder) for folder in named if folder))


def resolve_source(source: str) -> str:
    """A source as the engine is told it.

    Args:
        source: ``hf:OWNER/NAME``, an absolute path, or one relative to an import folder.

    Raises:
        ConfigError: it is outside of the import folders, or not there.
    """
    if source.startswith(HUB_PREFIX):
        return source
    folders = import_folders()
    for folder in folders:
        try:
            path = (folder / source).resolve()
            if path.is_relative_to(folder.resolve()) and path.exists():
                return str(path)
        except (OSError, ValueError):  # too long, or a character that no path holds
            continue
    places = ", ".join(str(folder) for folder in folders)
    raise ConfigError(
        f"'{source}' is not below an import folder of the server ({places}): put the files there, or name a "
        "dataset of the hub as hf:OWNER/NAME"
    )


def resolved(importing: Mapping[str, Any]) -> dict[str, Any]:
    """The section ``importing`` of a configuration with its files as the engine finds them.

    Raises ConfigError where one is not in an import folder.
    """
    source, decontamination = importing["source"], importing["decontamination"]
    reference = decontamination["reference"]
    return {
        **importing,
        "source": resolve_source(source) if source else source,
        "decontamination": {**decontamination, "reference": resolve_source(reference) if reference else ""},
    }
