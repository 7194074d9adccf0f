"""The original files of an image's workdir, read from a container that is created and never started.

No command runs in that container, so its files are the image's. One container serves all sandboxes of an
image. It is created when the first diff needs a file, and again if another process removed it. A few files
are requested by name, many as one archive of the workdir.
"""

from __future__ import annotations

import io
import posixpath
import stat
import tarfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from threading import Lock
from typing import Any

import docker
import docker.errors

from engine.patches.trees import FileState
from engine.sandbox.docker.container_spec import ContainerOwner, base_files_config
from engine.sandbox.docker.daemon import Daemon
from engine.sandbox.docker.image import DockerImage
from engine.sandbox.responses import Stamp

_LIFETIME_S = 86_400.0
_KEPT_BYTES = 64 << 20
_ONE_BY_ONE = 10
"""Number of files up to which each is requested by name; more are read from one archive."""


class BaseFiles:
    """Original files of one image. Methods block; call them in threads."""

    def __init__(self, daemon: Daemon, image: DockerImage) -> None:
        self._daemon = daemon
        self._image = image
        self._lock = Lock()
        self._container: str | None = None
        self._kept: dict[str, FileState | None] = {}
        self._kept_bytes = 0

    def states(self, folder: str, names: Sequence[str]) -> dict[str, FileState]:
        """Return mode and content of files below an absolute path; absent files are omitted.

        Raises:
            SandboxError: the daemon does not answer.
        """
        with self._lock:
            states: dict[str, FileState | None] = {}
            if len(names) > _ONE_BY_ONE:
                states.update(self._daemon.do(lambda client: self._read_many(client, folder, set(names))))
            for name in names:
                if name not in states:
                    states[name] = self._state(posixpath.join(folder, name))
        return {name: state for name, state in states.items() if state is not None}

    def _state(self, path: str) -> FileState | None:
        if path not in self._kept:
            state = self._daemon.do(lambda client: self._read(client, path))
            self._kept_bytes += len(path) + (len(state.data) if state else 0)
            if self._kept_bytes > _KEPT_BYTES:
                self._kept, self._kept_bytes = {}, 0
            self._kept[path] = state
        return self._kept[path]

    def _read(self, client: docker.APIClient, path: str) -> FileState | None:
        archive = self._archive(client, path)
        if archive is None:
            return None
        with tarfile.open(fileobj=io.BytesIO(b"".join(archive))) as tar:
            member = tar.next()
            return None if member is None else _file(tar, member)

    def _read_many(
        self, client: docker.APIClient, folder: str, names: Collection[str]
    ) -> dict[str, FileState | None]:
        """Read files from an archive of the folder; hard links are omitted and later read by name."""
        archive = self._archive(client, folder)
        if archive is None:
            return {}
        states: dict[str, FileState | None] = dict.fromkeys(names)
        file = io.BufferedReader(_Parts(archive))
        try:
            with tarfile.open(fileobj=file, mode="r|") as tar:
                for member in tar:
                    name = member.name.partition("/")[2]
                    if name in states and member.islnk():
                        del states[name]
                    elif name in states:
                        states[name] = _file(tar, member)
        except tarfile.TarError as error:
            raise docker.errors.DockerException(f"the archive of {folder} broke off: {error}") from error
        while file.read(1 << 20):  # so that the connection can be reused
            pass
        return states

    def _archive(self, client: docker.APIClient, path: str) -> Iterable[bytes] | None:
        for attempt in (1, 2):
            if self._container is None:
                config = base_files_config(self._image, ContainerOwner.this(), _LIFETIME_S)
                self._container = client.create_container_from_config(config)["Id"]
            try:
                parts: Iterable[bytes] = client.get_archive(self._container, path)[0]
                return parts
            except docker.errors.NotFound as error:
                if "No such container" not in str(error.explanation) or attempt == 2:
                    return None
                self._container = None  # another process removed it: create a new one
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


def _file(tar: tarfile.TarFile, member: tarfile.TarInfo) -> FileState | None:
    if member.issym():
        return FileState(stat.S_IFLNK | 0o777, member.linkname.encode("utf-8", "surrogateescape"))
    content = tar.extractfile(member) if member.isreg() else None
    return None if content is None else FileState(stat.S_IFREG | member.mode, content.read())


class _Parts(io.RawIOBase):
    """A readable file over the chunks of a download."""

    def __init__(self, parts: Iterable[bytes]) -> None:
        self._parts = iter(parts)
        self._part = memoryview(b"")

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes into a buffer."""
        while not self._part:
            part = next(self._parts, None)
            if part is None:
                return 0
            self._part = memoryview(part)
        size = min(len(buffer), len(self._part))
        buffer[:size] = self._part[:size]
        self._part = self._part[size:]
        return size


class BaseTree:
    """The workdir of one sandbox at its start."""

    def __init__(self, base_files: BaseFiles, workdir: str, stamps: Mapping[str, Stamp]) -> None:
        self._base_files = base_files
        self._workdir = workdir
        self._stamps = stamps

    def stamps(self) -> Mapping[str, Stamp]:
        """Return the stamps listed before the first command."""
        return self._stamps

    def states(self, names: Sequence[str]) -> dict[str, FileState]:
        """Return mode and content of files of ``stamps``."""
        return self._base_files.states(self._workdir, names)
