"""Files that curations keep in the data folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from django.conf import settings

from webapp.supervisor.engine_process import engine_json

State = Literal["used", "recent", "unused"]
STATES: tuple[State, ...] = ("used", "recent", "unused")
KINDS = {"image": "Images", "toolchain": "Toolchains", "clone": "Repositories", "leftover": "Unfinished"}
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
    return [KeptFile(**file) for file in engine_json(command(), project=settings.BASE_DIR)]


def command() -> list[str]:
    """Return the arguments of the engine's command line that prints the files."""
    return ["engine.datasets.kept_files", "--home", str(settings.TRAINYARD_HOME)]
