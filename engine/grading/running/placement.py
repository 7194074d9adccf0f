"""Placement of test files in a grading sandbox, before a script runs or where its tests start.

A script that places tests itself (``git apply`` with a here-document, a test patch of the image) would
overwrite files written before it runs. So commands are inserted that write them where its tests start. They
are builtins of the shell, as all other programs may be the graded project's by then.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping

from engine.errors import SandboxError
from engine.sandbox.base import Sandbox
from engine.testing.markers import START

_HEREDOC = re.compile(r"(?<!<)<<-?[ \t]*['\"\\]?(\w+)")
_APPLIES = re.compile(r"^(?:if\s+!?\s*)?(?:git\s+(?:-\S+\s+\S+\s+)*apply|patch)\b")
_REMOVE_S = 60.0
_NOT_PLAIN = re.compile(r'[^a-zA-Z0-9 "#%()*+,\-./:;@\[\]_|~]')


class PlacementError(SandboxError):
    """A test file cannot be written to a sandbox.

    Args:
        place: absolute path of the file.
        reason: error of the file system.
    """

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"cannot put the test file {place} in place: {reason}")
        self.place = posixpath.normpath(place)

    def is_caused_by(self, paths: Iterable[str]) -> bool:
        """Return whether one of the absolute paths is the file's, above it or below it."""
        place = f"{self.place}/"
        return any(place.startswith(f"{path}/") or f"{path}/".startswith(place) for path in paths)


async def place_files(box: Sandbox, files: Mapping[str, bytes]) -> None:
    """Write test files.

    Args:
        files: path, relative to the workdir or absolute, → content.

    Raises:
        PlacementError: a file cannot be written.
    """
    for path, content in files.items():
        place = posixpath.join(box.spec.workdir, path)
        try:
            await box.write_file(place, content)
        except OSError as error:
            raise PlacementError(place, error.strerror or str(error)) from error


async def remove_bytecode(box: Sandbox, files: Iterable[str]) -> None:
    """Remove the bytecode of test files that will be replaced: it has their earlier content.

    Args:
        files: paths, relative to the workdir or absolute.

    Raises:
        SandboxError: the sandbox failed.
    """
    places = (
        posixpath.split(posixpath.join(box.spec.workdir, path)) for path in files if path.endswith(".py")
    )
    compiled = [
        f"{shlex.quote(folder)}/{cache}{shlex.quote(name.removesuffix('.py'))}{ending}"
        for folder, name in places
        for cache, ending in (("__pycache__/", ".*.pyc"), ("", ".pyc"))
    ]
    if compiled:
        await box.exec(["/bin/sh", "-c", f"rm -f -- {' '.join(compiled)}"], timeout_s=_REMOVE_S, cwd="/")


def placing_command(workdir: str, files: Mapping[str, bytes]) -> str:
    """Return one line of bash that writes the files, silently, with builtins only.

    Call in a thread for large files. The line contains no marker, placeholder or variable that a script is
    searched for.
    """
    writes = (
        f"printf %s $'{_escaped(content)}' >| {shlex.quote(posixpath.join(workdir, path))}; "
        for path, content in files.items()
    )
    return f"{{ {''.join(writes)}}} 2>/dev/null"


def _escaped(content: bytes) -> str:
    return _NOT_PLAIN.sub(lambda match: f"\\x{ord(match[0]):02x}", content.decode("latin-1"))


def commands(script: str) -> Iterator[tuple[int, int, str]]:
    """Yield first line, line after the last, and text (without here-document) of every command.

    Without a line that ends it, ``<<`` is no here-document: ``$((1 << 20))``.
    """
    lines = script.split("\n")
    last = {line.strip(): number for number, line in enumerate(lines)}
    at = 0
    while at < len(lines):
        first = at
        while lines[at].endswith("\\") and at + 1 < len(lines):
            at += 1
        text = "\n".join(line.strip() for line in lines[first : at + 1])
        at += 1
        if (heredoc := _HEREDOC.search(text)) and last.get(heredoc[1], -1) >= at:
            at = next(i + 1 for i in range(at, len(lines)) if lines[i].strip() == heredoc[1])
        yield first, at, text


def with_placement(script: str, placing: str, runners: Collection[str] = ()) -> str | None:
    """Return a script with a command inserted where its tests start.

    Tests start at the start marker, or at an earlier line that runs one of ``runners``; without both, after
    the last patch that the script applies.

    Args:
        placing: the command, see ``placing_command``.
        runners: absolute paths of scripts that run the tests.

    Returns:
        None if the script neither has a marker nor applies a patch: it places no tests itself.
    """
    at = None
    for first, after, text in commands(script):
        if START in text or any(_runs(text, path) for path in runners):
            at = first
            break
        if _APPLIES.match(text):
            at = _after_block(script, after) if text.startswith("if") else after
    if at is None:
        return None
    lines = script.split("\n")
    return "\n".join([*lines[:at], placing, *lines[at:]])


def _runs(command: str, path: str) -> bool:
    return re.match(rf"(?:exec\s+)?(?:(?:ba)?sh|source|\.)\s+{re.escape(path)}(?:\s|$)", command) is not None


def _after_block(script: str, after: int) -> int:
    """Return the line after the end of the conditional whose first line ends before ``after``."""
    lines = script.split("\n")
    for number in range(after - 1, len(lines)):
        if re.search(r"(?:^|;)\s*fi\b", lines[number]):
            return number + 1
    return after
