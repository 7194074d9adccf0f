"""Build contexts of images that a dataset defines by a Dockerfile: ``home/contexts/<hash>.tar.gz``.

A task names such an image ``dockerfile:<hash>``, so that equal contexts are built once.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import tarfile
from pathlib import Path

PREFIX = "dockerfile:"
NOT_PULLED = ("local:", PREFIX)
"""Prefixes of the names of images that are in no registry."""
_IMAGE = re.compile(rf"{PREFIX}[0-9a-f]{{24}}")


def pack_context(folder: Path) -> bytes:
    """Return a folder as a tar archive that depends only on names, contents and executable bits."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w") as tar,
    ):
        for path in sorted(folder.rglob("*")):
            if not path.is_file():
                continue
            info = tarfile.TarInfo(path.relative_to(folder).as_posix())
            content = path.read_bytes()
            info.size = len(content)
            info.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            tar.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def image_of(context: bytes) -> str:
    """Return the name of the image that a context builds."""
    return f"{PREFIX}{hashlib.sha256(context).hexdigest()[:24]}"


def context_path(home: Path, image: str) -> Path:
    """Return the file of an image's context. Raises ValueError for other image names."""
    if not _IMAGE.fullmatch(image):
        raise ValueError(
            f"'{image}' is not the name of an image with a Dockerfile: {PREFIX} and 24 hex digits"
        )
    return home / "contexts" / f"{image.removeprefix(PREFIX)}.tar.gz"


def store_context(home: Path, context: bytes) -> None:
    """Store a context in the data folder for builds."""
    path = context_path(home, image_of(context))
    if path.is_file():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(context)
    temporary.replace(path)
