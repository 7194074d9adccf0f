"""A sandbox seen through its agent: everything of the ``Sandbox`` protocol that does not depend on the
backend.

A backend starts the box, hands over the stream and the pristine tree, and says how to end it; see
``engine.sandbox.local.LocalBackend`` for the whole of that and ``engine.sandbox.conformance`` for what it
must pass.
"""

from __future__ import annotations

import asyncio
import errno
import os
import posixpath
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from engine.errors import PatchError, SandboxError
from engine.sandbox.base import ExecResult, SandboxSpec, Startup
from engine.sandbox.client import AgentClient
from engine.sandbox.patches import IGNORED, FileState, apply_to, make_patch, touched

_BATCH_BYTES = 8 << 20
_MAX_CHANGES_BYTES = 64 << 20
_FILES_S = 60.0

Stamp = tuple[int, int, int]
"""Mode, size and change time in nanoseconds: the same only if nobody touched the file."""


class PristineTree(Protocol):
    """What the workdir held when the sandbox started."""

    def stamps(self) -> Mapping[str, Stamp]:
        """Every file below the workdir as the sandbox would see it if nobody touched it."""

    def state(self, name: str) -> FileState | None:
        """Mode and content of one file of ``stamps``; None when it is gone."""


class AgentSandbox:
    """Implements ``engine.sandbox.base.Sandbox`` over an ``AgentClient``.

    Args:
        startup: where it runs and what its start took.
        env: complete environment of every command.
        pristine: what to compare with in ``diff``.
        end: frees the box; called once.
    """

    def __init__(
        self,
        sandbox_id: str,
        spec: SandboxSpec,
        client: AgentClient,
        *,
        startup: Startup,
        env: Mapping[str, str],
        pristine: PristineTree,
        end: Callable[[], Awaitable[None]],
    ) -> None:
        self.id = sandbox_id
        self.spec = spec
        self.startup = startup
        self._client = client
        self._env = dict(env)
        self._pristine = pristine
        self._end = end
        self._hidden: set[str] = set()
        self._closing: asyncio.Future[None] | None = None

    def _path(self, path: str) -> str:
        return posixpath.join(self.spec.workdir, path)

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
        """See ``Sandbox.exec``."""
        reply = await self._client.call(
            "exec",
            timeout_s=timeout_s,
            argv=["/bin/sh", "-c", command] if isinstance(command, str) else command,
            cwd=self._path(cwd or ""),
            env={**self._env, **(env or {})},
            stdin=stdin,
            timeout_ms=max(1, int(timeout_s * 1000)),
            output_cap=output_cap,
        )
        return ExecResult(
            exit_code=reply["exit_code"],
            stdout=reply["stdout"],
            stderr=reply["stderr"],
            timed_out=reply["timed_out"],
            seconds=reply["ms"] / 1000,
            dropped_bytes=reply["dropped"],
        )

    async def read_file(self, path: str, *, max_bytes: int = 10_485_760) -> bytes:
        """See ``Sandbox.read_file``."""
        try:
            reply = await self._client.call(
                "read", timeout_s=_FILES_S, path=self._path(path), max_bytes=max_bytes
            )
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise ValueError(f"{path} is larger than {max_bytes} bytes") from None
            raise OSError(error.errno, error.strerror, path) from None
        data: bytes = reply["data"]
        return data

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """See ``Sandbox.write_file``."""
        try:
            await self._client.call("write", timeout_s=_FILES_S, path=self._path(path), data=data, mode=mode)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None

    async def list_dir(self, path: str, *, depth: int = 1) -> list[str]:
        """See ``Sandbox.list_dir``."""
        try:
            reply = await self._client.call("list", timeout_s=_FILES_S, path=self._path(path), depth=depth)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None
        paths: list[str] = reply["paths"]
        return paths

    async def diff(self) -> str:
        """See ``Sandbox.diff``. Raises PatchError when more than 64 MiB changed."""
        changes = await self._changes()
        return await asyncio.to_thread(self._compare, changes.known, changes.after)

    async def adopt(self) -> None:
        """See ``Sandbox.adopt``. Raises PatchError when more than 64 MiB changed."""
        self._pristine = _AdoptedTree(self._pristine, await self._changes())

    async def _changes(self) -> _Changes:
        workdir = self.spec.workdir
        reply = await self._client.call("tree", timeout_s=_FILES_S, path=workdir, skip=list(IGNORED))
        current = parse_tree(reply["tree"])
        pristine = await asyncio.to_thread(self._pristine.stamps)
        suspects = [
            name
            for name, stamp in current.items()
            if pristine.get(name) != stamp and not self._is_hidden(name)
        ]
        if sum(current[name][1] for name in suspects) > _MAX_CHANGES_BYTES:
            raise PatchError(
                f"the files changed below {workdir} hold more than {_MAX_CHANGES_BYTES >> 20} MiB"
            )
        after: dict[str, FileState] = {}
        for batch in _batches(suspects, current):
            after.update(await self._fetch(batch))
        gone = [name for name in pristine if name not in current and not self._is_hidden(name)]
        # Only what was listed is looked up: a new name may lead through what used to be a symlink.
        known = [name for name in suspects if name in pristine] + gone
        return _Changes(current=current, known=known, after=after)

    def _compare(self, names: list[str], after: dict[str, FileState]) -> str:
        before = {name: state for name in names if (state := self._pristine.state(name)) is not None}
        return make_patch(before, after)

    async def _fetch(self, names: list[str]) -> dict[str, FileState]:
        reply = await self._client.call("fetch", timeout_s=_FILES_S, path=self.spec.workdir, names=names)
        return {
            name: FileState(*row) for name, row in zip(names, reply["files"], strict=True) if row is not None
        }

    async def apply_patch(self, patch: str) -> None:
        """See ``Sandbox.apply_patch``."""
        if not patch.strip():
            return
        try:
            before = await self._fetch(touched(patch))
            changed, deleted = await asyncio.to_thread(apply_to, before, patch)
            files = [[name, state.git_mode & ~0o022 | 0o444, state.data] for name, state in changed.items()]
            await self._client.call(
                "commit", timeout_s=_FILES_S, path=self.spec.workdir, files=files, deleted=deleted
            )
        except OSError as error:
            raise PatchError(f"the patch does not apply: {error.strerror}") from error

    async def hide(self, paths: Sequence[str]) -> None:
        """See ``Sandbox.hide``. Raises SandboxError when something could not be removed."""
        if not paths:
            return
        absolute = [posixpath.normpath(self._path(path)) for path in paths]
        result = await self.exec(["rm", "-rf", "--", *absolute], timeout_s=_FILES_S, cwd="/")
        if result.exit_code != 0:
            raise SandboxError(f"cannot hide {paths}: {result.stderr.decode(errors='replace').strip()}")
        self._hidden.update(posixpath.relpath(path, self.spec.workdir) for path in absolute)

    def _is_hidden(self, name: str) -> bool:
        return any(name == hidden or name.startswith(f"{hidden}/") for hidden in self._hidden)

    async def close(self) -> None:
        """See ``Sandbox.close``."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await self._client.close()
        await self._end()


class _Changes(NamedTuple):
    """How the workdir differs from its pristine tree."""

    current: dict[str, Stamp]
    known: list[str]
    """Files of the pristine tree that changed or are gone."""
    after: dict[str, FileState]
    """Files that are new or changed, as they are."""


class _AdoptedTree:
    """A pristine tree with later changes in it."""

    def __init__(self, base: PristineTree, changes: _Changes) -> None:
        self._base = base
        self._changes = changes

    def stamps(self) -> Mapping[str, Stamp]:
        return self._changes.current

    def state(self, name: str) -> FileState | None:
        if name in self._changes.after:
            return self._changes.after[name]
        return self._base.state(name)


def parse_tree(blob: bytes) -> dict[str, Stamp]:
    """The stamps in the agent's reply to ``tree``."""
    tree: dict[str, Stamp] = {}
    parts = iter(blob.split(b"\0") if blob else [])
    for stamp, name in zip(parts, parts, strict=True):
        mode, size, changed = stamp.split()
        tree[os.fsdecode(name)] = (int(mode, 8), int(size), int(changed))
    return tree


def _batches(names: list[str], stamps: Mapping[str, Stamp]) -> list[list[str]]:
    batches: list[list[str]] = []
    room = 0
    for name in names:
        if room <= 0:
            batches.append([])
            room = _BATCH_BYTES
        batches[-1].append(name)
        room -= stamps[name][1] + len(name)
    return batches
