"""Resolution of model references in configurations to folders.

| reference | model |
|---|---|
| ``builtin:NAME`` | a policy that ships with the engine |
| ``run:ID`` | the last checkpoint of a run |
| ``fresh:NAME`` | random weights: a built-in architecture, or a folder with a ``config.json`` |
| ``OWNER/NAME``, ``OWNER/NAME@REVISION`` | a model of the Hugging Face Hub, where no such folder exists |
| ``FILE.gguf``, a folder with one | its policy folder, written when it is first used |
| anything else | a folder |

To add a scheme: a branch in ``find_model``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from engine.config.access.places import HUB_MODEL
from engine.errors import CheckpointError
from engine.files import numbered_folders
from engine.models.builtin.architectures import ARCHITECTURES, SHIPPED
from engine.models.gguf.files import gguf_file
from engine.models.hub import fetch_model

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A resolved reference: a folder, or a built-in architecture without one."""

    folder: Path | None
    """None for the random weights of a built-in architecture."""
    architecture: str | None = None
    """Name of that architecture."""
    random: bool = False
    """Use random weights, even if the folder has weights."""


def find_model(ref: str, *, home: Path) -> Reference:
    """Resolve a reference; a hub model is downloaded, and a GGUF file converted, unless that is cached.

    Args:
        ref: see the module's docstring.
        home: the data folder, for ``run:<id>`` and converted files.

    Raises:
        CheckpointError: there is no such model.
        PreflightError: the hub cannot be reached.
    """
    scheme, _, name = ref.partition(":")
    if scheme == "fresh" and name in ARCHITECTURES:
        return Reference(folder=None, architecture=name, random=True)
    if scheme == "fresh" and not (Path(name) / "config.json").is_file():
        raise CheckpointError(
            f"'{name}' is neither a built-in architecture ({', '.join(sorted(ARCHITECTURES))}) nor a folder "
            "with a config.json"
        )
    if scheme == "fresh":
        return Reference(folder=Path(name), random=True)
    if scheme in ("builtin", "run") and _NAME.fullmatch(name) is None:
        raise CheckpointError(f"'{ref}' names no checkpoint: expected {scheme}:NAME without folders")
    if scheme == "builtin":
        return Reference(folder=SHIPPED / name)
    if scheme == "run":
        return Reference(folder=last_checkpoint(home / "runs" / name))
    if not Path(ref).exists() and HUB_MODEL.fullmatch(ref):
        return Reference(folder=fetch_model(ref))
    if (file := gguf_file(Path(ref))) is not None:
        from engine.models.gguf.conversion import converted  # transformers takes seconds to import

        return Reference(folder=converted(file, home))
    return Reference(folder=Path(ref))


def last_checkpoint(run_dir: Path) -> Path:
    """Return the folder of a run's last checkpoint. Raises CheckpointError."""
    folders = numbered_folders(run_dir / "checkpoints")
    if not folders:
        raise CheckpointError(f"run {run_dir.name} has no checkpoint yet")
    return folders[-1]
