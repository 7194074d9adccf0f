"""The ``Sandbox`` protocol over an agent, independent of the backend.

A backend starts the sandbox and supplies the stream, the base tree and a function that ends it; see
``engine.sandbox.local.backend.LocalBackend`` for an example and ``engine.sandbox.conformance`` for the suite
that it must pass.
"""

from __future__ import annotations

import asyncio
import errno
import posixpath
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from engine.errors import PatchError, SandboxError, SandboxTransportError
from engine.patches.apply import Changes, apply_patch, touched
from engine.patches.diff import diff_trees
from engine.patches.trees import IGNORED, FileState, check_names
from engine.sandbox import responses
from engine.sandbox.base import ExecResult, SandboxSpec, Startup
from engine.sandbox.client import AgentClient
from engine.sandbox.responses import Stamp

_BATCH_BYTES, _BATCH_FILES = 8 << 20, 1000
_MAX_CHANGES_BYTES = 64 << 20
"""Largest total size of changed files, checked before and after the change; more is never read."""
_MAX_PATCH_CHARS = 8 << 20
"""Longest patch that fits into an event of the run."""
_FILES_S = 60.0


class BaseTree(Protocol):
    """Content of the workdir when the sandbox started."""

    def stamps(self) -> Mapping[str, Stamp]:
        """Return the stamp of every file below the untouched workdir."""

    def states(self, names: Sequence[str]) -> dict[str, FileState]:
        """Return mode and content of files of ``stamps``, absent ones left out. Called in a thread."""


class AgentSandbox:
    """Implementation of ``engine.sandbox.base.Sandbox`` over an ``AgentClient``.

    Args:
        startup: node and duration of the start.
        env: complete environment of every command.
        base_tree: tree that ``diff`` compares with.
        end: frees the sandbox; called once.
    """

    def __init__(
        self,
        sandbox_id: str,
        spec: SandboxSpec,
        client: AgentClient,
        *,
        startup: Startup,
        env: Mapping[str, str],
        base_tree: BaseTree,
        end: Callable[[], Awaitable[None]],
    ) -> None:
        self.id = sandbox_id
        self.spec = spec
        self.startup = startup
        self._client = client
        self._env = dict(env)
        self._base_tree = base_tree
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
        return await self._client.call(
            "exec",
            responses.executed(output_cap),
            timeout_s=timeout_s,
            argv=["/bin/sh", "-c", command] if isinstance(command, str) else command,
            cwd=self._path(cwd or ""),
            env={**self._env, **(env or {})},
            stdin=stdin,
            timeout_ms=max(1, int(timeout_s * 1000)),
            output_cap=output_cap,
        )

    async def read_file(self, path: str, *, max_bytes: int = 10_485_760) -> bytes:
        """See ``Sandbox.read_file``."""
        try:
            return await self._client.call(
                "read",
                responses.content(max_bytes),
                timeout_s=_FILES_S,
                path=self._path(path),
                max_bytes=max_bytes,
            )
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise ValueError(f"{path} is larger than {max_bytes} bytes") from None
            raise OSError(error.errno, error.strerror, path) from None

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """See ``Sandbox.write_file``."""
        try:
            await self._client.call(
                "write", responses.NOTHING, timeout_s=_FILES_S, path=self._path(path), data=data, mode=mode
            )
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None

    async def list_dir(self, path: str, *, depth: int = 1) -> list[str]:
        """See ``Sandbox.list_dir``."""
        try:
            return await self._client.call(
                "list", responses.LISTED, timeout_s=_FILES_S, path=self._path(path), depth=depth
            )
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None

    async def diff(self) -> str:
        """See ``Sandbox.diff``. Raises PatchError beyond 10,000 files, 64 MiB of content, 8 MiB of patch."""
        changes = await self._changes()
        return await asyncio.to_thread(self._compare, changes.known, changes.after)

    async def adopt(self) -> None:
        """See ``Sandbox.adopt``. Raises PatchError beyond 64 MiB of content."""
        self._base_tree = _AdoptedTree(self._base_tree, await self._changes())

    async def _changes(self) -> _Changes:
        workdir = self.spec.workdir
        try:
            current = await list_tree(self._client, workdir)
            suspects, gone = await asyncio.to_thread(self._differing, current)
            after: dict[str, FileState] = {}
            for batch in batches(suspects, current):
                after.update(await fetch_files(self._client, workdir, batch))
                _check_size(workdir, sum(len(state.data) for state in after.values()))
        except OSError as error:
            raise PatchError(f"files below {workdir} cannot be read: {error.strerror}") from error
        # Only listed names are looked up: a new name may lead through a former symlink.
        base = self._base_tree.stamps()
        known = [name for name in suspects if name in base] + gone
        _check_size(workdir, sum(base[name][1] for name in known))
        return _Changes(current=current, known=known, after=after)

    def _differing(self, current: Mapping[str, Stamp]) -> tuple[list[str], list[str]]:
        """Return files that are new or may have changed, and removed ones. Raises PatchError."""
        base = self._base_tree.stamps()
        suspects = [
            name for name, stamp in current.items() if base.get(name) != stamp and not self._is_hidden(name)
        ]
        gone = [name for name in base if name not in current and not self._is_hidden(name)]
        check_names(suspects + gone)
        _check_size(self.spec.workdir, sum(current[name][1] for name in suspects))
        return suspects, gone

    def _compare(self, names: list[str], after: dict[str, FileState]) -> str:
        patch = diff_trees(self._base_tree.states(names), after)
        if len(patch) > _MAX_PATCH_CHARS:
            raise PatchError(f"the patch is longer than {_MAX_PATCH_CHARS >> 20} MiB")
        return patch

    async def apply_patch(self, patch: str) -> None:
        """See ``Sandbox.apply_patch``."""
        if not patch.strip():
            return
        before = await self.fetch_files(await asyncio.to_thread(touched, patch))
        await self.commit_files(await asyncio.to_thread(apply_patch, before, patch))

    async def fetch_files(self, names: Sequence[str]) -> dict[str, FileState]:
        """See ``Sandbox.fetch_files``."""
        try:
            return await fetch_files(self._client, self.spec.workdir, names)
        except (OSError, ValueError) as error:
            raise PatchError(f"the files of the patch cannot be read: {_reason(error)}") from error

    async def commit_files(self, changes: Changes) -> None:
        """See ``Sandbox.commit_files``."""
        files = [[name, state.git_mode & ~0o022 | 0o444, state.data] for name, state in changes.files.items()]
        try:
            await self._client.call(
                "commit",
                responses.NOTHING,
                timeout_s=_FILES_S,
                path=self.spec.workdir,
                files=files,
                deleted=list(changes.deleted),
            )
        except (OSError, ValueError) as error:
            raise PatchError(f"the patch does not apply: {_reason(error)}") from error

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
    """Differences between the workdir and its base tree."""

    current: dict[str, Stamp]
    known: list[str]
    """Files of the base tree that were changed or removed."""
    after: dict[str, FileState]
    """New and changed files with their current content."""


class _AdoptedTree:
    """A base tree with later changes applied."""

    def __init__(self, base: BaseTree, changes: _Changes) -> None:
        self._base = base
        self._changes = changes

    def stamps(self) -> Mapping[str, Stamp]:
        return self._changes.current

    def states(self, names: Sequence[str]) -> dict[str, FileState]:
        changed = self._changes.after
        unchanged = self._base.states([name for name in names if name not in changed])
        return {**unchanged, **{name: changed[name] for name in names if name in changed}}


async def list_tree(client: AgentClient, folder: str) -> dict[str, Stamp]:
    """List every file below a folder that may be part of a patch.

    Raises:
        OSError: the folder cannot be read.
        SandboxError: the sandbox itself failed.
    """
    blob = await client.call("tree", responses.TREE, timeout_s=_FILES_S, path=folder, skip=list(IGNORED))
    try:
        return await asyncio.to_thread(responses.parse_tree, blob)
    except ValueError as error:
        failed = SandboxTransportError(f"the agent sent a malformed message: {error}")
        client.fail(failed)
        raise failed from None


async def fetch_files(client: AgentClient, folder: str, names: Sequence[str]) -> dict[str, FileState]:
    """Return current files below a folder, absent ones left out; raises as ``list_tree``."""
    files = await client.call(
        "fetch", responses.fetched(len(names)), timeout_s=_FILES_S, path=folder, names=list(names)
    )
    return {name: state for name, state in zip(names, files, strict=True) if state is not None}


def _reason(error: OSError | ValueError) -> str:
    """Return why a request failed: the file system's error, or a frame too large to be sent."""
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _check_size(folder: str, size: int) -> None:
    if size > _MAX_CHANGES_BYTES:
        raise PatchError(f"the files changed below {folder} hold more than {_MAX_CHANGES_BYTES >> 20} MiB")


def batches(names: Sequence[str], stamps: Mapping[str, Stamp]) -> list[list[str]]:
    """Split names into batches, each fetched by one request."""
    split: list[list[str]] = []
    room = 0
    for name in names:
        if room <= 0 or len(split[-1]) == _BATCH_FILES:
            split.append([])
            room = _BATCH_BYTES
        split[-1].append(name)
        room -= stamps[name][1] + len(name)
    return split
