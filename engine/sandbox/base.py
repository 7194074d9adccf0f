"""The protocol that every sandbox backend implements.

All commands run through a small agent inside the sandbox over a byte stream; exit codes never
travel in the output stream; a deadline kills the whole process tree; partial output is kept.
``engine.sandbox.conformance`` is the suite that a backend must pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from engine.patches.apply import Changes
from engine.patches.trees import FileState


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """Resource limits of one sandbox; a breach hurts only the sandbox itself."""

    memory_mb: int = 512
    processes: int = 64
    disk_mb: int = 256
    cpus: float = 1.0
    lifetime_s: float = 1200.0
    """Absolute deadline: the reaper then removes the sandbox, even one in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """A request for a sandbox; ``run_id`` and the deadline are also attached to the sandbox itself."""

    image: str
    workdir: str = "/testbed"
    run_id: str = "adhoc"
    name: str = ""
    """Readable purpose, e.g. the rollout key; appears in the ledger."""
    lane: str = ""
    """Queue for admission: lanes are served round-robin, requests of one lane first in first out."""
    env: Mapping[str, str] = field(default_factory=dict)
    limits: SandboxLimits = field(default_factory=SandboxLimits)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """Result of one command. A non-zero exit code or a timeout is a result, not an error."""

    exit_code: int | None
    """None when the deadline killed the command."""
    stdout: bytes
    stderr: bytes
    timed_out: bool
    seconds: float
    dropped_bytes: int = 0
    """Bytes cut from the middle: each stream keeps head and tail, ``output_cap`` bytes of it in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Startup:
    """Node of a sandbox and the duration of its start, in seconds."""

    node: str
    """Host or cluster node."""
    pull: float = 0.0
    """Image pull; 0 when the image was present."""
    start: float = 0.0
    """From the request to the agent's greeting (image pull excluded)."""
    warm: bool = False
    """Whether it was started ahead of the request."""


class Sandbox(Protocol):
    """A running, isolated sandbox. Every method raises a ``SandboxError`` when the sandbox itself fails."""

    id: str
    spec: SandboxSpec
    startup: Startup

    async def exec(
        self,
        command: str | list[str],
        *,
        timeout_s: float,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        output_cap: int = 131_072,
    ) -> ExecResult:
        """Run a command (a string goes through ``/bin/sh -c``) and wait for it.

        After ``timeout_s`` the command's whole process tree is killed, ``setsid`` children
        included, within one more second; its output until then is returned. Background
        processes that a finished command left behind are killed as well.
        """

    async def read_file(self, path: str, *, max_bytes: int = 10_485_760) -> bytes:
        """Return the content of a regular file.

        Raises:
            FileNotFoundError, IsADirectoryError, PermissionError: as ``open`` does.
            ValueError: the file is larger than ``max_bytes``.
        """

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Create a file with ``mode`` and its parent folders, or replace one's content, keeping its own mode.

        Raises OSError as ``open`` does; the old content is then kept.
        """

    async def list_dir(self, path: str, *, depth: int = 1) -> list[str]:
        """List paths below ``path`` down to ``depth``: sorted, folders end with a slash, no dot-files."""

    async def diff(self) -> str:
        """Return a git-format patch of all changes below the workdir against the image.

        Commits, index and ignore files inside the sandbox have no influence; the patch applies
        to a fresh sandbox of the same image with ``apply_patch``. ``.git`` and caches are left out.

        Raises:
            PatchError: the changed files exceed the backend's limits, or cannot be read.
        """

    async def apply_patch(self, patch: str) -> None:
        """Apply a git-format patch to the workdir, completely or not at all.

        Raises:
            PatchError: the patch does not apply.
        """

    async def fetch_files(self, names: Sequence[str]) -> dict[str, FileState]:
        """Read files and symlinks below the workdir; absent ones and those behind a symlink are left out.

        Raises:
            PatchError: the files cannot be read.
        """

    async def commit_files(self, changes: Changes) -> None:
        """Change files below the workdir, completely or not at all.

        Raises:
            PatchError: the files cannot be changed, or a path leads through a symlink.
        """

    async def hide(self, paths: Sequence[str]) -> None:
        """Remove files and folders that an agent must not see; ``diff`` leaves them out.

        A path is absolute or relative to the workdir; missing ones are skipped.
        """

    async def adopt(self) -> None:
        """Make the current tree the base of ``diff``: from here on it returns later changes only.

        Raises:
            PatchError: as ``diff``.
        """

    async def close(self) -> None:
        """Kill all processes inside and free every resource; safe to call twice."""


class SandboxBackend(Protocol):
    """Factory of sandboxes of one kind."""

    name: str

    def open(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
        """Lease a sandbox: the ledger entry is written before the sandbox exists.

        Raises:
            SandboxStartError: the sandbox did not start (after the backend's own retries).
        """

    async def prepare(self, images: Mapping[str, int]) -> None:
        """Prepare for the next requests: fetch images, start warm sandboxes where the backend supports them.

        Best effort, in the background: a failure appears when a sandbox is opened.

        Args:
            images: image → number of its sandboxes that will be needed at once.
        """

    async def reap(self, *, run_id: str | None = None) -> int:
        """Remove orphans (dead owner or past deadline) of one run or of all; return their number."""

    async def close(self) -> None:
        """Free the backend's own resources (connections, watches, warm sandboxes); safe to call twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """Counts of a run's sandboxes by its backend, including those of other processes."""

    existing: int
    """Sandboxes that exist, idle and closing ones included."""
    idle: int = 0
    """Sandboxes started ahead of demand."""
    nodes: Mapping[str, int] = field(default_factory=dict)
    """Node → sandboxes on it."""


@runtime_checkable
class Counting(Protocol):
    """A backend that can count its sandboxes without a request, e.g. from a watch."""

    def population(self) -> Population:
        """Return the current count."""


@runtime_checkable
class Explaining(Protocol):
    """A backend that reports why a start is delayed, e.g. because no node has room."""

    def blocked(self) -> Mapping[str, str]:
        """Return the reason of every delayed start, by sandbox id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightFinding:
    """A shortcoming of this machine or cluster, found before sandboxes are started."""

    severity: Literal["error", "warning"]
    """``error``: sandboxes cannot run. ``warning``: a limit is enforced less strictly."""
    message: str
    """The shortcoming and its remedy."""

    @classmethod
    def error(cls, message: str) -> PreflightFinding:
        """Return a finding that prevents sandboxes from running."""
        return cls(severity="error", message=message)

    @classmethod
    def warning(cls, message: str) -> PreflightFinding:
        """Return a finding that weakens a limit only."""
        return cls(severity="warning", message=message)

    def __str__(self) -> str:
        return self.message if self.severity == "error" else f"Weaker: {self.message}"
