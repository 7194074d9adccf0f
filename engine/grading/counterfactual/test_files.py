"""Test files of a row, found by names in its answer and read from a sandbox after its tests ran."""

from __future__ import annotations

import asyncio
import posixpath
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress

from engine.errors import PatchError
from engine.grading.evidence import required
from engine.patches.apply import touched
from engine.sandbox.base import Sandbox
from engine.types import TaskAnswer, TaskRow

_MAX_NAMES = 1000
_MAX_FILES = 300
_MAX_FILE_BYTES = 2 << 20
_MAX_BYTES = 32 << 20
_FIND_S = 60.0
_PATH = re.compile(r"(?<![\w./-])(?:[\w.-]+(?:/[\w.-]+)+/?|[\w-]+\.\w+|\w*tests?\w*/?(?![\w./-]))")
"""Words of a test command that look like relative paths."""


async def read_test_files(box: Sandbox, row: TaskRow) -> dict[str, bytes]:
    """Return path → content of the row's Python test files.

    Paths are those of the answer: relative to the workdir, or absolute.

    Raises:
        SandboxError: the sandbox failed.
    """
    # Git parses the test patch, which would block the event loop.
    names = (await asyncio.to_thread(lambda: list(dict.fromkeys(_names(row.answer)))))[:_MAX_NAMES]
    # Folders and links are followed: the tests of some images are linked into the workdir.
    print_ids = ["-exec", "stat", "-L", "-c", "%d:%i %n", "{}", "+"]
    command = ["find", "-L", *names, "-type", "f", "-name", "*.py", *print_ids]
    listing = await box.exec(command, timeout_s=_FIND_S, cwd=row.task.workdir)
    paths = _once_each(listing.stdout.decode("utf-8", "replace").split("\n"))
    files: dict[str, bytes] = {}
    size = 0
    for path in map(posixpath.normpath, paths):
        try:
            full_path = posixpath.join(row.task.workdir, path)
            content = await box.read_file(full_path, max_bytes=_MAX_FILE_BYTES)
        except (OSError, ValueError):
            continue
        size += len(content)
        if size > _MAX_BYTES or len(files) == _MAX_FILES:
            break
        files[path] = content
    return files


def _once_each(shown: Iterable[str]) -> list[str]:
    """Return the first path of each file; a line holds device, inode and path.

    A row may name a file twice, as hidden and as a test, or by a link; it must be mutated only once.
    """
    first: dict[str, str] = {}
    for line in shown:
        identity, _, path = line.partition(" ")
        if path:
            first.setdefault(identity, path)
    return list(first.values())


def _names(answer: TaskAnswer) -> Iterator[str]:
    """Yield names of files and folders that may hold tests, the likeliest first."""
    yield from _safe(answer.test_files)
    with suppress(PatchError):  # the tests' names and the command remain
        yield from _safe(touched(answer.test_patch))
    for test, _ in required(answer):
        yield from _safe(_paths_of(test))
    yield from _safe(answer.hidden_paths)
    yield from _safe(match[0] for match in _PATH.finditer(answer.test_command))


def _paths_of(test: str) -> Iterator[str]:
    """Yield the paths that a test's name may mean: ``a/b.py::T::test``, ``test (a.b.T)``, ``a.b.T.test``."""
    file, separator, _ = test.partition("::")
    if separator or "/" in file:
        yield file
        return
    match = re.search(r"\(([\w.]+)\)", test)
    parts = (match[1] if match else test.partition("[")[0].partition(" ")[0]).split(".")
    for count in range(1, len(parts) + 1):
        module = "/".join(parts[:count])
        yield f"{module}.py"
        yield f"tests/{module}.py"


def _safe(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        if name.strip("./") and "\0" not in name and ".." not in name.split("/"):
            yield name if name.startswith("/") else f"./{name}"
