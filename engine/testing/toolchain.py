"""Test toolchain of images: pytest, the signing driver and a source's pure-Python dependencies.

``home/toolchain/<hash>/`` is built once from downloaded wheels, and mounted read-only at ``MOUNT`` in every
sandbox whose image names it. After an update, images get a copy with the new version's scripts.
"""

from __future__ import annotations

import functools
import hashlib
import os
import py_compile
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from engine.files import create_folder_once
from engine.sandbox.local.images import rebind_images

MOUNT = "/opt/trainyard"
"""Mount point of the toolchain in sandboxes."""
DRIVER = f"{MOUNT}/trainyard_driver.py"


def update_toolchains(home: Path) -> None:
    """Rebind images of earlier versions to copies of their toolchains with this version's scripts.

    Toolchains of earlier versions are kept for a day, because running sandboxes have them mounted.

    Raises:
        OSError: the data folder cannot be written.
    """
    rebind_images(home, MOUNT, functools.cache(_updated))


def _updated(folder: Path) -> Path:
    """Return a toolchain with this version's scripts: the folder itself, or a copy."""
    paths = {folder / name: script for name, script in runner_scripts().items()}
    if all(path.is_file() and path.read_bytes() == script for path, script in paths.items()):
        return folder
    os.utime(folder)  # in use by running sandboxes, and so not to be removed yet
    scripts = b"".join(paths.values())
    target = folder.with_name(hashlib.sha256(folder.name.encode() + scripts).hexdigest()[:16])
    return create_once(target, lambda draft: shutil.copytree(folder, draft / target.name, symlinks=True))


def create_once(target: Path, make: Callable[[Path], Path]) -> Path:
    """Return a toolchain's folder; a missing one is created atomically, safely against other processes.

    Args:
        target: the folder.
        make: fills the given empty folder and returns the toolchain in it, without the engine's own files.

    Raises:
        OSError: the data folder cannot be written.
    """

    def with_scripts(draft: Path) -> Path:
        folder = make(draft)
        _write_scripts(folder)
        return folder

    return create_folder_once(target, with_scripts)


def _write_scripts(folder: Path) -> None:
    for name, script in runner_scripts().items():
        (folder / name).write_bytes(script)
        # The folder is read-only in sandboxes, so they could not store bytecode.
        py_compile.compile(
            str(folder / name),
            dfile=f"{MOUNT}/{name}",
            doraise=True,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )


def runner_scripts() -> Mapping[str, bytes]:
    """Return the engine's own files in a toolchain: name → content."""
    return {"trainyard_driver.py": _source("driver"), **recorder_scripts()}


@functools.cache
def recorder_scripts() -> Mapping[str, bytes]:
    """Return the files that record test sessions, by the names under which they import each other."""
    names = ("recorder", "guard", "trust", "helpers", "witness")
    recorders = {f"trainyard_{name}.py": _source(name) for name in names}
    return {**recorders, "trainyard_unittest.py": _source("recorder", runner="unittest")}


def _source(name: str, runner: str = "pytest") -> bytes:
    return (Path(__file__).parent / f"{runner}_{name}.py").read_bytes()
