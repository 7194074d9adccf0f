"""Large files that are kept in the data folder and can be made again, and removal of those that nothing uses.

``python -m engine.datasets.kept_files [--home FOLDER] [--remove]`` prints them as JSON.

| kind | where | used by |
|---|---|---|
| `image` | ``images/``, those that mount a toolchain | rows of stored datasets |
| `toolchain` | ``toolchain/`` | images that are not removed |
| `clone` | ``repositories/``, with the read history | datasets made from the repository |
| `policy` | ``models/gguf/``, converted from GGUF files | runs of the last day |
| `leftover` | unfinished folders of killed processes | nothing |

The next curation makes removed files again. Curations, and runs in sandboxes, hold a shared lock (``using``),
under which nothing is removed: a run reads its rows once, and its dataset may be replaced meanwhile. Files of
the last day count as recent and stay, for a curation that was stopped and continues.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import fcntl
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from engine.errors import DatasetError, TrainyardError

RECENT_S = 86_400.0
"""Age below which unused files stay, seconds."""
_LOCK = "curations.lock"
_LEFTOVERS = (
    ".commit-*", ".head-*", "images/.building-*", "repositories/.history-*", "sources/.fetch-*",
    "toolchain/.*", "images/.removed-*", "repositories/.removed-*", "models/gguf/.*",
)  # fmt: skip
"""Patterns of folders that exist only while a process works."""


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A folder that curations keep."""

    kind: Literal["image", "toolchain", "clone", "policy", "leftover"]
    path: str
    """Relative to the data folder."""
    bytes: int
    """Allocated on the disk."""
    state: Literal["used", "recent", "unused"]


@asynccontextmanager
async def using(home: Path) -> AsyncIterator[None]:
    """Keep files from being removed while the block runs; wait for a removal to end."""
    home.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(home / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        await asyncio.to_thread(fcntl.flock, descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def kept_files(home: Path, *, recent_s: float = RECENT_S) -> list[KeptFile]:
    """Return the files, the largest first.

    Args:
        home: the data folder.
        recent_s: age below which unused files count as recent, seconds.

    Raises:
        DatasetError: a stored dataset cannot be read, so that its use of files is unknown.
    """
    used_images, used_clones = _used(home)
    young = time.time() - recent_s
    found: list[KeptFile] = []

    def add(kind: Any, path: Path, *, used: bool) -> bool:
        try:
            recent = path.stat().st_mtime > young
            size = sum(map(_size, _parts(path)))
        except FileNotFoundError:  # removed meanwhile
            return False
        state: Any = "used" if used else "recent" if recent else "unused"
        found.append(KeptFile(kind, str(path.relative_to(home)), size, state))
        return bool(state != "unused")

    toolchains: set[Path] = set()
    for path, binds in _images(home):
        mounted = {path for path in binds if path.parent == home / "toolchain"}
        if not mounted or add("image", path, used=path.name in used_images):
            toolchains |= mounted
    for path in _folders(home, "toolchain/[!.]*"):
        add("toolchain", path, used=path in toolchains)
    for path in _folders(home, "repositories/[!.]*.git"):
        add("clone", path, used=path.stem.rpartition("-")[2] in used_clones)
    for path in _folders(home, "models/gguf/[!.]*"):
        add("policy", path, used=False)
    for pattern in _LEFTOVERS:
        for path in _folders(home, pattern):
            add("leftover", path, used=False)
    return sorted(found, key=lambda file: (-file.bytes, file.path))


def remove_unused(home: Path, *, recent_s: float = RECENT_S) -> list[KeptFile]:
    """Remove the unused files and return those that are gone; what cannot be removed is left.

    Args:
        home: the data folder.
        recent_s: see ``kept_files``.

    Raises:
        DatasetError: a curation or another run uses the files, or a stored dataset cannot be read.
    """
    descriptor = os.open(home / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DatasetError(
                "a curation or another run uses this data folder: remove files when it has ended"
            ) from None
        files = [file for file in kept_files(home, recent_s=recent_s) if file.state == "unused"]
        return [file for file in files if _is_removed(home / file.path)]
    finally:
        os.close(descriptor)


def _used(home: Path) -> tuple[set[str], set[str]]:
    """Return the names of images, and the ends of names of clones, that datasets use."""
    images: set[str] = set()
    clones: set[str] = set()
    for path in (home / "datasets").glob("[!.]*/dataset.json"):
        try:
            provenance = json.loads(path.read_text()).get("provenance", {})
            clones |= {hashlib.sha256(spec.encode()).hexdigest()[:12] for spec in _sources(provenance)}
            with path.with_name("tasks.jsonl").open() as lines:
                images |= {str(json.loads(line)["image"]).removeprefix("local:") for line in lines}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            name = path.parent.name
            raise DatasetError(
                f"dataset '{name}' cannot be read, so that its images are unknown: {error}"
            ) from None
    return images, clones


def _sources(provenance: Mapping[str, Any]) -> Iterator[str]:
    """Yield the sources of a dataset, and of the one that it was hardened from."""
    yield from provenance.get("sources", ())
    original = provenance.get("original")
    if isinstance(original, Mapping):
        yield from _sources(original)


def _images(home: Path) -> Iterator[tuple[Path, list[Path]]]:
    """Yield the folders of images and the folders that they mount; damaged images are left alone."""
    for path in (home / "images").glob("[!.]*/image.json"):
        try:
            yield path.parent, [home / bound for bound in json.loads(path.read_text())["binds"].values()]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue


def _folders(home: Path, pattern: str) -> list[Path]:
    return [path for path in home.glob(pattern) if path.is_dir() and not path.is_symlink()]


def _parts(path: Path) -> list[Path]:
    """Return a folder, and for a clone the read histories beside it."""
    return [path, *path.parent.glob(f"{path.stem}-*.jsonl")] if path.suffix == ".git" else [path]


def _size(path: Path) -> int:
    total = path.lstat().st_blocks * 512
    for parent, folders, names in os.walk(path):
        for name in (*folders, *names):
            try:
                total += Path(parent, name).lstat().st_blocks * 512
            except FileNotFoundError:
                continue
    return total


def _is_removed(path: Path) -> bool:
    """Remove a kept file with its parts; return False, with a line on standard error, if that fails."""
    try:
        for part in _parts(path):
            _remove(part)
    except OSError as error:
        print(f"{path} was not removed: {error}", file=sys.stderr)
        return False
    return True


def _remove(path: Path) -> None:
    """Remove a file or folder; a folder is renamed first, so that no part of it is taken for the whole."""
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return
    removed = path.with_name(f".removed-{path.name.lstrip('.')}")
    shutil.rmtree(removed, ignore_errors=True)
    path.rename(removed)
    shutil.rmtree(removed)


def main() -> int:
    """Print the files, or those that were removed, as JSON; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m engine.datasets.kept_files")
    default = os.environ.get("TRAINYARD_HOME", ".trainyard")
    parser.add_argument(
        "--home", type=Path, default=Path(default), help="the data folder (default: %(default)s)"
    )
    parser.add_argument("--remove", action="store_true", help="remove the unused files")
    options = parser.parse_args()
    try:
        files = (remove_unused if options.remove else kept_files)(options.home.absolute())
    except (TrainyardError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps([dataclasses.asdict(file) for file in files]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
