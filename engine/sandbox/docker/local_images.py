"""Local images (``local:…``) in Docker, with the files and mounts of the local backend.

The image's root file system becomes a Docker image of one layer, with the small ``/etc`` and the links of
the base system; the host's programs, its Python and the image's own binds are mounted read-only. Commands
run as uid 1000, which cannot write to system files. The daemon must share this machine's
file system.
"""

from __future__ import annotations

import hashlib
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import docker
import docker.errors
import docker.utils

from engine.errors import ImageError
from engine.sandbox.docker.daemon import Daemon
from engine.sandbox.docker.image import DockerImage
from engine.sandbox.local.base_system import AGENT, HOME, BaseSystem, prepare
from engine.sandbox.local.images import Image, load_image

REPOSITORY = "trainyard/local"
_USER = 1000
_FOLDERS = ("dev", "proc", "root", "run", "sys", "var")


def import_local(daemon: Daemon, home: Path, name: str) -> DockerImage:
    """Import a local image into the daemon if this version is missing, and return it; blocks.

    Args:
        daemon: the daemon that stores the image.
        home: the data folder.
        name: ``local:<name>``.

    Raises:
        ImageError: the daemon is on another machine.
        SandboxStartError: the image is not built, or the daemon does not answer.
    """
    if not daemon.address.local:
        raise ImageError(f"image '{name}' exists only on this machine, not at {daemon.address.url}")
    image = load_image(home, name)
    base = prepare(home / "sandboxes")
    etc = next(source for source, target in base.binds if target == "/etc")
    binds = [(source, target) for source, target in base.binds if target not in ("/etc", AGENT)]
    binds += [(source, target) for target, source in image.binds.items()]
    tag = f"{REPOSITORY}:{_version(image, base)}"
    image_id = daemon.do(lambda client: _import(client, tag, image, base, Path(etc), binds))
    env = {"PATH": base.path, "HOME": HOME, "USER": "agent", **image.env}
    return DockerImage(
        id=image_id, name=name, user=str(_USER), python=base.python, binds=tuple(binds), env=env
    )


def _version(image: Image, base: BaseSystem) -> str:
    described = repr((image.name, image.version, str(image.rootfs), base))
    return hashlib.sha256(described.encode()).hexdigest()[:24]


def _import(
    client: docker.APIClient,
    tag: str,
    image: Image,
    base: BaseSystem,
    etc: Path,
    binds: list[tuple[str, str]],
) -> str:
    try:
        present: str = client.inspect_image(tag)["Id"]
        return present
    except docker.errors.ImageNotFound:
        pass
    with tempfile.TemporaryFile() as file:
        with tarfile.open(fileobj=file, mode="w") as tar:
            _fill(tar, image, base, etc, binds)
        file.seek(0)
        repository, _, version = tag.partition(":")
        blocks = iter(lambda: file.read(1 << 20), b"")
        answer = client.import_image_from_stream(blocks, repository=repository, tag=version)
    if "errorDetail" in answer:
        raise docker.errors.DockerException(f"importing image '{image.name}': {answer}")
    imported: str = client.inspect_image(tag)["Id"]
    return imported


def _fill(
    tar: tarfile.TarFile, image: Image, base: BaseSystem, etc: Path, binds: list[tuple[str, str]]
) -> None:
    written: set[str] = set()

    def owned(owner: int) -> Callable[[tarfile.TarInfo], tarfile.TarInfo]:
        def own(info: tarfile.TarInfo) -> tarfile.TarInfo:
            info.uid = info.gid = owner
            info.uname = info.gname = ""
            written.add(info.name)
            return info

        return own

    for name in image.layers:
        tar.add(image.rootfs / name, name, filter=owned(_USER))
    tar.add(etc, "etc", filter=owned(0))
    folders = {HOME: (_USER, 0o755), "/tmp": (0, 0o1777)}
    for path in (*folders, *_FOLDERS, *(target for _, target in binds)):
        for folder in _ancestors(path):
            if folder not in written:
                owner, mode = folders.get(f"/{folder}", (0, 0o755))
                info = tarfile.TarInfo(folder)
                info.type, info.mode = tarfile.DIRTYPE, mode
                tar.addfile(owned(owner)(info))
    for path, target in (*base.links, ("/var/tmp", "../tmp")):
        info = tarfile.TarInfo(path.lstrip("/"))
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, target, 0o777
        tar.addfile(owned(0)(info))


def _ancestors(path: str) -> list[str]:
    """Return all ancestors of a path from the root, the path included."""
    parts = path.strip("/").split("/")
    return ["/".join(parts[: number + 1]) for number in range(len(parts))]
