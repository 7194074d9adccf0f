"""Protocols and results shared by all tools.

Tools run on the host over these small protocols; nothing is installed inside a sandbox, and the
warm start runs the same ``file_editor`` on files in memory. To add a tool: a class with
``async run(arguments) -> ToolResult`` here, its schema in ``engine.tools.schemas``.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

_UNPRINTABLE = re.compile("[\0\ud800-\udfff]")

ObservationStyle = Literal["compact", "full", "r2e_gym"]
"""``compact``: bare text for tiny models. ``full``: explanatory sentences. ``r2e_gym``: ``full`` in R2E-Gym's
frame, as DeepSWE was trained on: exit code, name of the tool, separate standard output and error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """Result of a tool call; ``error`` is its first line when the tool refused or failed."""

    observation: str
    error: str = ""
    exit_code: int | None = None
    truncated_chars: int = 0
    done: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """Outcome of a shell command; ``exit_code`` is None when its deadline killed it."""

    exit_code: int | None
    output: str
    errors: str = ""
    """Standard error, where it was requested separately from the output."""
    dropped_bytes: int = 0


class FileStore(Protocol):
    """Files by absolute path. Methods raise the file system's OSErrors."""

    async def read(self, path: str) -> bytes:
        """Return a regular file's content. Raises ValueError when it is too large to edit."""

    async def write(self, path: str, data: bytes) -> None:
        """Create or replace a file, making parent folders, keeping an existing file's mode."""

    async def remove(self, path: str) -> None:
        """Delete a file."""

    async def list_dir(self, path: str, *, depth: int) -> list[str]:
        """List paths relative to ``path``: sorted, folders with a trailing slash, no dot-files."""


class Shell(Protocol):
    """Runner of commands in the repository."""

    timeout_s: float
    """Deadline of the next command, seconds; the environment sets it before each call."""

    async def run(self, command: str | list[str], *, split: bool = False) -> CommandResult:
        """Run a bash command line, or an argument list without a shell.

        Args:
            split: whether standard error is returned separately instead of merged into the output.
        """


class Tool(Protocol):
    """One tool of a rollout; it may keep state between calls."""

    async def run(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Execute a validated call."""


def refusal(message: str) -> ToolResult:
    """Return the result of a refused call."""
    return ToolResult(observation=f"ERROR: {message}", error=message.split("\n", 1)[0][:300])


def framed(tool: str, result: ToolResult) -> str:
    """Return a result's observation in R2E-Gym's frame; ``execute_bash`` writes its own."""
    return f"Execution output of [{tool}]:\n{result.observation}"


def resolve(path: str, workdir: str) -> str:
    """Return the absolute, normalised form of a path written by an agent."""
    return posixpath.normpath(posixpath.join(workdir, path))


def to_text(data: bytes) -> str:
    """Decode a file's bytes to text that encodes back to the same bytes."""
    return data.decode("utf-8", "surrogateescape")


def to_bytes(text: str) -> bytes:
    """Encode text as ``to_text`` decodes it; other lone surrogates become question marks."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def printable(text: str) -> str:
    """Return text that is safe to tokenise, store and show: NUL and invalid UTF-8 become U+FFFD."""
    return _UNPRINTABLE.sub("\ufffd", text)
