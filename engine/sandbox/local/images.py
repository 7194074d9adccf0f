"""Images of the local backend: a folder with ``image.json`` and ``rootfs/``, a partial tree over the host's
base system.

``rootfs`` must hold at least the workdir; each of its top-level folders becomes a writable layer of the
sandbox. It is never modified afterwards. Files belong to an unprivileged user, so that even sandboxes started
by root have no privileges outside. For another property of images, add a field to ``Image`` and use it in
``engine.sandbox.local.backend``.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.build_contexts import PREFIX
from engine.errors import ImageError
from engine.files import atomic_write, replace_folder

BASE_FOLDERS = frozenset(
    (
        "bin",
        "dev",
        "etc",
        "lib",
        "lib32",
        "lib64",
        "libx32",
        "proc",
        "run",
        "sbin",
        "sys",
        "tmp",
        "usr",
        "var",
    )
)
"""Top-level folders of the base system; an image cannot replace them."""
OWNER = 65533
"""Owner of image files created by root; common distributions have no account with this number."""
_PREFIX = "local:"


@dataclass(frozen=True, slots=True)
class Image:
    """A built image."""

    name: str
    rootfs: Path
    workdir: str
    env: Mapping[str, str]
    binds: Mapping[str, str]
    """Extra read-only mounts: path in the sandbox to path on this machine."""
    layers: tuple[str, ...]
    """Top-level folders of ``rootfs``."""
    uid: int
    gid: int
    version: tuple[int, int]
    """Changes whenever the image is built again."""


def image_folder(home: Path, name: str) -> Path:
    """Return the folder of the image ``name`` (with or without ``local:``)."""
    if name.startswith(PREFIX):
        raise ImageError(
            f"image '{name}' is built from a Dockerfile, which only the Docker backend does: set "
            "sandbox.backend=docker and sandbox.docker.build_network"
        )
    name = name.removeprefix(_PREFIX)
    if not name or name.startswith(".") or "/" in name:
        raise ImageError(f"'{name}' is not an image name: one path component that does not begin with a dot")
    return home / "images" / name


def image_exists(home: Path, name: str) -> bool:
    """Return whether an image of that name is complete."""
    return (image_folder(home, name) / "image.json").is_file()


def load_image(home: Path, name: str) -> Image:
    """Read an image's description.

    As root, an image with files of root (a copied one) first changes its owner: commands run as the owner of
    its files, and root owns the host's device nodes.

    Raises:
        ImageError: the image is missing or damaged; the message says what to do.
    """
    folder = image_folder(home, name)
    try:
        path = folder / "image.json"
        described = json.loads(path.read_text())
        status, rootfs = path.stat(), folder / "rootfs"
        workdir = rootfs / described["workdir"].lstrip("/")
        if workdir.stat().st_uid == 0 == os.geteuid():
            _change_owner(rootfs)
        owner = workdir.stat()
        return Image(
            name=folder.name,
            rootfs=rootfs.resolve(),
            workdir=described["workdir"],
            env=described.get("env", {}),
            binds=_present(home, described.get("binds", {})),
            layers=tuple(sorted(entry.name for entry in rootfs.iterdir())),
            uid=owner.st_uid,
            gid=owner.st_gid,
            version=(status.st_ino, status.st_mtime_ns),
        )
    except FileNotFoundError as error:
        raise ImageError(
            f"image '{folder.name}' is not built here: {error.filename} is missing; build its dataset first"
        ) from error
    except (KeyError, ValueError, OSError) as error:
        raise ImageError(f"image '{folder.name}' at {folder} is damaged ({error}); build it again") from error


def build_image(
    home: Path,
    name: str,
    tree: Path,
    *,
    workdir: str = "/testbed",
    env: Mapping[str, str] | None = None,
    binds: Mapping[str, str] | None = None,
) -> None:
    """Build the image ``name`` with a copy of ``tree`` as its workdir, atomically.

    Args:
        home: the data folder.
        name: one path component.
        tree: content of the workdir (symlinks and modes are kept).
        workdir: absolute path in the sandbox, not below a folder of the base system.
        env: environment of every command.
        binds: read-only mounts, path in the sandbox to path on this machine; below ``home``, stored relative.
    """
    if not workdir.startswith("/") or workdir.split("/")[1] in BASE_FOLDERS | {""}:
        raise ValueError(f"workdir '{workdir}' must be an absolute path outside of the base system's folders")
    folder = image_folder(home, name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".building-", dir=folder.parent))
    try:
        staging.chmod(0o755)
        target = staging / "rootfs" / workdir.lstrip("/")
        shutil.copytree(tree, target, symlinks=True)
        if os.geteuid() == 0:
            _change_owner(staging / "rootfs")
        relative_binds = {target: _relative(home, source) for target, source in (binds or {}).items()}
        description = {"workdir": workdir, "env": dict(env or {}), "binds": relative_binds}
        (staging / "image.json").write_text(json.dumps(description, indent=2, sort_keys=True))
        replace_folder(staging, folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def rebind_images(home: Path, target: str, renewed: Callable[[Path], Path]) -> None:
    """Replace a mounted folder in all images; running sandboxes keep theirs, damaged images are skipped.

    Args:
        home: the data folder.
        target: path in the sandbox.
        renewed: returns the folder that replaces an image's current one.
    """
    for path in (home / "images").glob("[!.]*/image.json"):
        try:
            described = json.loads(path.read_text())
            bound = described["binds"][target]
        except (KeyError, ValueError, TypeError):
            continue
        if not (home / bound).is_dir():
            continue
        described["binds"][target] = _relative(home, str(renewed(home.absolute() / bound)))
        if described["binds"][target] != bound:
            atomic_write(path, json.dumps(described, indent=2, sort_keys=True))


def _relative(home: Path, source: str) -> str:
    path, root = Path(source).absolute(), home.absolute()
    return str(path.relative_to(root) if path.is_relative_to(root) else path)


def _present(home: Path, binds: Mapping[str, str]) -> dict[str, str]:
    """Return mounts with absolute paths. Raises FileNotFoundError where one is missing."""
    paths = {target: home.absolute() / source for target, source in binds.items()}
    for path in paths.values():
        path.stat()
    return {target: str(path) for target, path in paths.items()}


def _change_owner(folder: Path) -> None:
    for parent, _, names in os.walk(folder):
        for path in (parent, *(os.path.join(parent, name) for name in names)):
            os.chown(path, OWNER, OWNER, follow_symlinks=False)
