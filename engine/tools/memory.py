"""Files in memory, for the warm start, tests and benchmarks."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

Result = TypeVar("Result")


class MemoryFileStore:
    """A ``FileStore`` over a dictionary of absolute path → bytes; folders are implied by their files."""

    def __init__(self, files: Mapping[str, bytes] | None = None) -> None:
        self.files: dict[str, bytes] = dict(files or {})

    async def read(self, path: str) -> bytes:
        """Return a file's content. Raises FileNotFoundError, IsADirectoryError."""
        if path in self.files:
            return self.files[path]
        if self._is_dir(path):
            raise IsADirectoryError(path)
        raise FileNotFoundError(path)

    async def write(self, path: str, data: bytes) -> None:
        """Create or replace a file. Raises IsADirectoryError."""
        if self._is_dir(path):
            raise IsADirectoryError(path)
        self.files[path] = data

    async def remove(self, path: str) -> None:
        """Delete a file. Raises FileNotFoundError."""
        if path not in self.files:
            raise FileNotFoundError(path)
        del self.files[path]

    async def list_dir(self, path: str, *, depth: int) -> list[str]:
        """List paths below a folder, relative to it. Raises NotADirectoryError, FileNotFoundError."""
        if path in self.files:
            raise NotADirectoryError(path)
        if not self._is_dir(path):
            raise FileNotFoundError(path)
        prefix = path.rstrip("/") + "/"
        paths: set[str] = set()
        for name in self.files:
            parts = name.removeprefix(prefix).split("/") if name.startswith(prefix) else []
            for level in range(1, min(depth, len(parts)) + 1):
                if not any(part.startswith(".") for part in parts[:level]):
                    paths.add("/".join(parts[:level]) + ("/" if level < len(parts) else ""))
        return sorted(paths)

    def _is_dir(self, path: str) -> bool:
        prefix = path.rstrip("/") + "/"
        return any(name.startswith(prefix) for name in self.files)


def run_immediately(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine that never waits and return its result.

    Raises:
        RuntimeError: the coroutine tried to wait.
    """
    try:
        coroutine.send(None)
    except StopIteration as finished:
        value: Result = finished.value
        return value
    coroutine.close()
    raise RuntimeError("the coroutine waits for something; it needs an event loop")
