"""The original files of an image's workdir, read from a container that is created and never started.

No command can touch it, so what is read there is what the image holds. One serves all sandboxes of an
image; it is made when the first diff needs a content, and made again when somebody removed it.
"""

from __future__ import annotations

import io
import posixpath
import stat
import tarfile
from collections.abc import Mapping
from threading import Lock

import docker
import docker.errors

from engine.sandbox.docker.container import Owner, pristine_config
from engine.sandbox.docker.daemon import Daemon
from engine.sandbox.docker.images import DockerImage
from engine.sandbox.patches import FileState
from engine.sandbox.remote import Stamp

_LIFETIME_S = 86_400.0
_KEPT_BYTES = 64 << 20


class Originals:
    """Files of one image. Methods block: they are called in threads."""

    def __init__(self, daemon: Daemon, image: DockerImage) -> None:
        self._daemon = daemon
        self._image = image
        self._lock = Lock()
        self._container: str | None = None
        self._kept: dict[str, FileState | None] = {}
        self._kept_bytes = 0

    def state(self, path: str) -> FileState | None:
        """Mode and content of the file at an absolute path that leads through no symlink; None if absent.

        Raises:
            SandboxError: the daemon does not answer.
        """
        with self._lock:
            if path not in self._kept:
                found = self._daemon.do(lambda client: self._read(client, path))
                self._kept_bytes += len(path) + (len(found.data) if found else 0)
                if self._kept_bytes > _KEPT_BYTES:
                    self._kept, self._kept_bytes = {}, 0
                self._kept[path] = found
            return self._kept[path]

    def _read(self, client: docker.APIClient, path: str) -> FileState | None:
        for attempt in (1, 2):
            if self._container is None:
                config = pristine_config(self._image, Owner.this(), _LIFETIME_S)
                self._container = client.create_container_from_config(config)["Id"]
            try:
                parts, _ = client.get_archive(self._container, path)
                return _only_file(b"".join(parts))
            except docker.errors.NotFound as error:
                if "No such container" not in str(error.explanation) or attempt == 2:
                    return None
                self._container = None
        return None

    def close(self) -> None:
        """Remove the container."""
        with self._lock:
            container, self._container = self._container, None
            if container is not None:
                self._daemon.do(lambda client: _remove(client, container))


def _remove(client: docker.APIClient, container: str) -> None:
    try:
        client.remove_container(container, v=True, force=True)
    except docker.errors.NotFound:
        pass


def _only_file(archive: bytes) -> FileState | None:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        member = tar.next()
        if member is None:
            return None
        if member.issym():
            return FileState(stat.S_IFLNK | 0o777, member.linkname.encode("utf-8", "surrogateescape"))
        content = tar.extractfile(member) if member.isreg() else None
        return None if content is None else FileState(stat.S_IFREG | member.mode, content.read())


class OriginalTree:
    """The workdir of one sandbox as it was at its start."""

    def __init__(self, originals: Originals, workdir: str, stamps: Mapping[str, Stamp]) -> None:
        self._originals = originals
        self._workdir = workdir
        self._stamps = stamps

    def stamps(self) -> Mapping[str, Stamp]:
        """What the agent listed before the first command."""
        return self._stamps

    def state(self, name: str) -> FileState | None:
        """Mode and content of a file of ``stamps``."""
        return self._originals.state(posixpath.join(self._workdir, name))
