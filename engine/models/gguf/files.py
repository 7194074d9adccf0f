"""Recognition of GGUF files among model references."""

from __future__ import annotations

from pathlib import Path

from engine.errors import CheckpointError

_SUFFIX = ".gguf"


def gguf_file(path: Path) -> Path | None:
    """Return a GGUF file, or the only one of a folder that has no ``config.json``; None for anything else.

    Raises:
        CheckpointError: the folder has several.
    """
    if path.suffix == _SUFFIX:
        return path
    if not path.is_dir() or (path / "config.json").exists():
        return None
    files = sorted(path.glob(f"*{_SUFFIX}"))
    if len(files) > 1:
        raise CheckpointError(f"{path} has {len(files)} GGUF files: name one, such as {files[0]}")
    return files[0] if files else None
