"""Files that curations keep in the data folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from django.conf import settings

from webapp.supervisor.engine_process import engine_json

State = Literal["used", "recent", "unused"]
STATES: tuple[State, ...] = ("used", "recent", "unused")
TIMEOUT_S = 600.0
"""Time for the sizes of all folders, or their removal, seconds."""
KINDS = {
    "image": "Images",
    "toolchain": "Toolchains",
    "clone": "Repositories",
    "policy": "Converted GGUF files",
    "leftover": "Unfinished",
}
"""Kinds of files by their headings."""


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A kept folder, see ``engine.datasets.kept_files``."""

    kind: str
    path: str
    bytes: int
    state: State


def kept_files() -> list[KeptFile]:
    """Return the files, the largest first.

    Raises:
        EngineFailedError: a dataset cannot be read.
    """
    files = engine_json(command(), project=settings.BASE_DIR, timeout_s=TIMEOUT_S)
    return [KeptFile(**file) for file in files]


def command() -> list[str]:
    """Return the arguments of the engine's command line that prints the files."""
    return ["engine.datasets.kept_files", "--home", str(settings.TRAINYARD_HOME)]
