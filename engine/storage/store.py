"""Folder of an object store, accessed through fsspec."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from engine.errors import TrainyardError, describe_error

T = TypeVar("T")
_TIMEOUTS = {"connect_timeout": 5, "read_timeout": 30}


class StoreError(TrainyardError):
    """The object store failed a request; the message names the request and the cause."""


class Store:
    """A folder of an object store; every method raises StoreError.

    Args:
        url: an fsspec URL, e.g. ``s3://BUCKET/PREFIX``. Credentials come from the environment.
        folder: a folder below it.
    """

    def __init__(self, url: str, folder: str = "") -> None:
        self.url = "/".join(filter(None, (url.rstrip("/"), folder)))
        self._fs, self._root = self._try("open", lambda: _open(self.url))

    def read(self, name: str) -> bytes:
        """Return the content of an object."""
        content: bytes = self._try(f"read {name} of", lambda: self._fs.cat_file(self._path(name)))
        return content

    def write(self, name: str, content: bytes) -> None:
        """Write an object atomically: readers see the old content or the new one."""

        def write() -> None:
            if "file" not in self._fs.protocol:
                self._fs.pipe_file(self._path(name), content)
                return
            path, part = Path(self._path(name)), Path(self._path(f".part-{uuid4().hex}"))
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(content)
            part.replace(path)

        self._try(f"write {name} to", write)

    def upload(self, path: Path, name: str) -> None:
        """Copy a local file to an object."""
        self._try(f"write {name} to", lambda: self._fs.put_file(str(path), self._path(name)))

    def download(self, name: str, path: Path) -> None:
        """Copy an object to a local file."""
        self._try(f"read {name} of", lambda: self._fs.get_file(self._path(name), str(path)))

    def names(self, folder: str) -> list[str]:
        """Return the names of all objects below a folder, sorted."""

        def find() -> list[str]:
            self._fs.invalidate_cache()
            paths = self._fs.find(self._path(folder))
            return sorted(path[len(self._root) + 1 :] for path in paths)

        return self._try(f"list {folder} of", find)

    def remove(self, names: Sequence[str]) -> None:
        """Delete objects; those that do not exist count as deleted."""
        paths = [self._path(name) for name in names]

        def delete() -> None:
            try:
                self._fs.rm(paths)
            except FileNotFoundError:
                if left := [path for path in paths if self._fs.exists(path)]:
                    self._fs.rm(left)

        self._try("delete objects of", delete)

    def check(self) -> None:
        """Write, read and delete an object."""
        name, content = f"probe-{uuid4().hex}", b"Trainyard may write here."
        self.write(name, content)
        if self.read(name) != content:
            raise StoreError(f"the store {self.url} returns different content than was written to {name}")
        self.remove([name])

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _try(self, what: str, work: Callable[[], T]) -> T:
        try:
            return work()
        except Exception as error:  # file systems share no error class
            raise StoreError(f"cannot {what} the store {self.url}: {describe_error(error)}") from error


def _open(url: str) -> tuple[Any, str]:
    from fsspec.core import split_protocol, url_to_fs

    protocol, _ = split_protocol(url)
    options: dict[str, dict[str, Any]] = {
        "file": {"auto_mkdir": True},
        "s3": {"use_listings_cache": False, "config_kwargs": _TIMEOUTS},
    }
    filesystem, root = url_to_fs(url, **options.get(protocol or "file", {}))
    return filesystem, root.rstrip("/")
