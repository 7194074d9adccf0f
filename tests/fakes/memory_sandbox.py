"""A sandbox backend in memory, with faults on demand: scheduling, retries and limits need no kernel.

Commands are answered by a callable; files, diffs and the accounting of live sandboxes are real.
"""

from __future__ import annotations

import asyncio
import difflib
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from engine.errors import SandboxDiedError, SandboxError
from engine.patches.apply import Changes
from engine.patches.trees import FileState
from engine.sandbox.base import ExecResult, Sandbox, SandboxSpec, Startup
from engine.tools import MemoryFileStore

Command = Callable[[str], Awaitable[ExecResult]]


def printed(text: str = "", exit_code: int = 0) -> ExecResult:
    """The result of a command that printed a text."""
    return ExecResult(exit_code=exit_code, stdout=text.encode(), stderr=b"", timed_out=False, seconds=0.0)


async def silent(_command: str) -> ExecResult:
    """Every command succeeds and prints nothing."""
    return printed()


def dying_once() -> Command:
    """The first command loses its sandbox; all others succeed and print nothing."""
    calls = itertools.count()

    async def command(_command: str) -> ExecResult:
        if next(calls) == 0:
            raise SandboxError("gone")
        return printed()

    return command


class MemorySandbox:
    """Implements ``Sandbox`` over a dictionary."""

    def __init__(self, spec: SandboxSpec, number: int, files: Mapping[str, bytes], command: Command) -> None:
        self.id = f"memory-{number}"
        self.spec = spec
        self.startup = Startup(node="memory")
        self.closed = False
        self._image = dict(files)
        self._store = MemoryFileStore(files)
        self._command = command

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
        await self._check()
        if isinstance(command, list) and command[0] == "rm":
            await self._store.remove(command[-1])
            return printed()
        if isinstance(command, list) and command[3:4] == ["scrub"]:  # there is no git history in memory
            return printed()
        return await self._command(command if isinstance(command, str) else command[-1])

    async def read_file(self, path: str, *, max_bytes: int = 10_485_760) -> bytes:
        await self._check()
        return await self._store.read(path)

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        await self._check()
        await self._store.write(path, data)

    async def list_dir(self, path: str, *, depth: int = 1) -> list[str]:
        await self._check()
        return await self._store.list_dir(path, depth=depth)

    async def diff(self) -> str:
        await self._check()
        parts = []
        for path in sorted(self._image.keys() | self._store.files.keys()):
            old, new = self._image.get(path, b"").decode(), self._store.files.get(path, b"").decode()
            if old != new:
                name = path.removeprefix(f"{self.spec.workdir}/")
                lines = difflib.unified_diff(
                    old.splitlines(keepends=True), new.splitlines(keepends=True), f"a/{name}", f"b/{name}"
                )
                parts.append(f"diff --git a/{name} b/{name}\n{''.join(lines)}")
        return "".join(parts)

    async def apply_patch(self, patch: str) -> None:
        raise NotImplementedError("grading is not done in memory")

    async def fetch_files(self, names: Sequence[str]) -> dict[str, FileState]:
        raise NotImplementedError("grading is not done in memory")

    async def commit_files(self, changes: Changes) -> None:
        raise NotImplementedError("grading is not done in memory")

    async def hide(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._image.pop(path, None)
            self._store.files.pop(path, None)

    async def adopt(self) -> None:
        self._image = dict(self._store.files)

    async def close(self) -> None:
        self.closed = True

    async def _check(self) -> None:
        await asyncio.sleep(0)
        if self.closed:
            raise SandboxDiedError("the sandbox is closed")


class MemoryBackend:
    """Implements ``SandboxBackend``: starts take ``start_s`` on average, and raise ``faults`` one by one."""

    name = "memory"

    def __init__(
        self,
        files: Mapping[str, bytes] | None = None,
        *,
        command: Command = silent,
        start_s: float = 0.0,
        faults: list[Exception] | None = None,
    ) -> None:
        self.started: list[MemorySandbox] = []
        self.live = 0
        self.most_live = 0
        self.starting = 0
        self.most_starting = 0
        self._files = dict(files or {})
        self._command = command
        self._start_s = start_s
        self._faults = list(faults or [])

    def open(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
        return self._open(spec)

    @asynccontextmanager
    async def _open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        self.starting += 1
        self.most_starting = max(self.most_starting, self.starting)
        try:
            await asyncio.sleep(self._start_s * random.uniform(0.5, 1.5))
            if self._faults:
                raise self._faults.pop(0)
        finally:
            self.starting -= 1
        sandbox = MemorySandbox(spec, len(self.started), self._files, self._command)
        self.started.append(sandbox)
        self.live += 1
        self.most_live = max(self.most_live, self.live)
        try:
            yield sandbox
        finally:
            self.live -= 1
            await sandbox.close()

    async def prepare(self, images: Mapping[str, int]) -> None:
        pass

    async def reap(self, *, run_id: str | None = None) -> int:
        return 0

    async def close(self) -> None:
        pass


def start_fault(message: str = "no room") -> SandboxError:
    """A failure to start."""
    return SandboxError(message)
