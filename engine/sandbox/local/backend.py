"""The local backend: bubblewrap sandboxes on this machine, no container engine, no privileges needed.

A sandbox is an overlay of the image over a size-limited tmpfs, with its own user, process, network, mount,
IPC and UTS namespaces, no capabilities and no network; its init is the agent. A ledger file exists from
before the first to after the last process of it. Limits come from control groups where they can be had, else
from rlimits; ``preflight`` says which. Another limit or mount goes into ``_request``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import socket
import stat
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import stamina

from engine.errors import ImageError, SandboxDiedError, SandboxError, SandboxStartError
from engine.patches.trees import IGNORED, FileState
from engine.sandbox.agent_sandbox import AgentSandbox
from engine.sandbox.base import Sandbox, SandboxSpec, Startup
from engine.sandbox.client import AgentClient
from engine.sandbox.ledger import Ledger, LedgerEntry
from engine.sandbox.local import cgroups
from engine.sandbox.local.base_system import HOME, WRITABLE, BaseSystem, prepare
from engine.sandbox.local.images import Image, load_image
from engine.sandbox.local.reaper import reap
from engine.sandbox.local.spawn_client import SpawnClient
from engine.sandbox.local.spawn_server import NO_OVERLAY
from engine.sandbox.responses import Stamp
from engine.threads import in_thread

_START_S = 30.0
_ATTEMPTS = 3
_CLOSE_S = 10.0
_INODES_PER_MB = 64
_STREAM_LIMIT = 1 << 20


class _NoOverlayError(SandboxStartError):
    """The image could not be overlaid on this machine."""


class _Processes:
    """Processes, ledger entry and control groups of one running sandbox."""

    def __init__(self, spawner: SpawnClient, ledger: Ledger, entry: LedgerEntry, errors: int) -> None:
        self.spawner = spawner
        self.ledger = ledger
        self.entry = entry
        self.errors = errors
        self.lifetime: asyncio.TimerHandle | None = None
        self.status: int | None = None
        """Exit status; None while the sandbox runs, or when it is unknown."""

    def post_mortem(self) -> str:
        """Return the cause of an unexpected end, as far as known."""
        if cgroups.oom_killed(self.entry.cgroups):
            return "it went over its memory limit"
        return self.stderr()

    def stderr(self) -> str:
        """Return the error output of bubblewrap and the agent so far."""
        try:
            return os.read(self.errors, 4096).decode(errors="replace").strip()
        except (BlockingIOError, OSError):
            return ""

    async def end(self) -> None:
        """Kill all processes and free all resources."""
        if self.lifetime is not None:
            self.lifetime.cancel()
        sandbox = self.entry.id
        try:
            async with asyncio.timeout(_CLOSE_S):
                if not self.spawner.is_gone(sandbox):
                    self.spawner.kill(sandbox)
                self.status = await self.spawner.gone(sandbox)
        except TimeoutError:
            pass  # its groups are killed below, and the ledger keeps what stays
        self.spawner.forget(sandbox)
        os.close(self.errors)
        await in_thread(self._free)

    def _free(self) -> None:
        """Remove the groups, killing what is left in them, and then the ledger entry."""
        if not cgroups.remove(self.entry.cgroups):
            cgroups.kill(self.entry.cgroups)
            if not cgroups.remove(self.entry.cgroups):
                return
        self.ledger.remove(self.entry)


class _ImageTree:
    """The untouched workdir of an image, listed once and shared by its sandboxes."""

    def __init__(self, image: Image, workdir: str) -> None:
        self._root = os.path.join(image.rootfs, workdir.lstrip("/"))
        self._stamps: dict[str, Stamp] | None = None

    def stamps(self) -> Mapping[str, Stamp]:
        if self._stamps is None:
            self._stamps = dict(self._walk())
        return self._stamps

    def _walk(self) -> list[tuple[str, Stamp]]:
        found: list[tuple[str, Stamp]] = []
        queue = [(self._root, "")]
        while queue:
            folder, prefix = queue.pop()
            for entry in os.scandir(folder):
                if entry.name in IGNORED:
                    continue
                info = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(info.st_mode):
                    queue.append((entry.path, f"{prefix}{entry.name}/"))
                else:
                    found.append((prefix + entry.name, (info.st_mode, info.st_size, info.st_ctime_ns)))
        return found

    def states(self, names: Sequence[str]) -> dict[str, FileState]:
        return {name: state for name in names if (state := self._state(name)) is not None}

    def _state(self, name: str) -> FileState | None:
        path = os.path.join(self._root, name)
        try:
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                return FileState(mode, os.fsencode(os.readlink(path)))
            return FileState(mode, Path(path).read_bytes()) if stat.S_ISREG(mode) else None
        except (FileNotFoundError, NotADirectoryError):
            return None


class LocalBackend:
    """Backend for bubblewrap sandboxes on this machine.

    Args:
        home: the data folder; images below ``images/``, ledger and base files below ``sandboxes/``.
    """

    name = "local"

    def __init__(self, home: Path) -> None:
        self.home = home.absolute()
        self.ledger = Ledger(self.home / "sandboxes")
        self.groups = cgroups.detect()
        self.copies = False
        """Fallback to copies of images, where overlay mounts turned out to be impossible."""
        self._base: BaseSystem | None = None
        self._spawner: SpawnClient | None = None
        self._spawner_lock: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None
        self._trees: dict[tuple[object, ...], _ImageTree] = {}

    @contextlib.asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        """See ``SandboxBackend.open``."""
        image = await asyncio.to_thread(load_image, self.home, spec.image)
        if not (image.rootfs / spec.workdir.lstrip("/")).is_dir():
            raise ImageError(
                f"image '{image.name}' has no folder {spec.workdir} (its workdir is {image.workdir})"
            )
        sandbox = await self._start(spec, image)
        try:
            yield sandbox
        finally:
            await sandbox.close()

    async def prepare(self, images: Mapping[str, int]) -> None:
        """Do nothing: images are folders of this machine and a start takes milliseconds."""

    async def reap(self, *, run_id: str | None = None) -> int:
        """See ``SandboxBackend.reap``."""
        return await asyncio.to_thread(reap, self.ledger, run_id)

    async def close(self) -> None:
        """Do nothing: the spawner process ends with this one."""

    async def _start(self, spec: SandboxSpec, image: Image) -> AgentSandbox:
        start = stamina.AsyncRetryingCaller(attempts=_ATTEMPTS, wait_initial=0.1, wait_jitter=0.1)
        try:
            return await start.on(SandboxError)(self._start_once, spec, image)
        except SandboxError as error:
            raise SandboxStartError(f"sandbox of image '{image.name}' did not start: {error}") from error

    async def _start_once(self, spec: SandboxSpec, image: Image) -> AgentSandbox:
        copies = self.copies
        try:
            return await self._spawn(spec, image)
        except _NoOverlayError:
            if copies:
                raise
        self.copies = True
        return await self._spawn(spec, image)

    async def _spawn(self, spec: SandboxSpec, image: Image) -> AgentSandbox:
        began = time.monotonic()
        spawner = await self._live_spawner()
        sandbox_id = f"sb-{secrets.token_hex(6)}"
        groups = self.groups.plan(sandbox_id) if self.groups is not None else ()
        entry = LedgerEntry.of_this_process(sandbox_id, spec, cgroups=groups)
        errors, errors_write = os.pipe()
        os.set_blocking(errors, False)
        processes = _Processes(spawner, self.ledger, entry, errors)
        ours, theirs = socket.socketpair()
        writer: asyncio.StreamWriter | None = None
        try:
            await in_thread(partial(self._register, entry, spec))
            pid = await spawner.spawn(self._request(entry, spec, image), theirs, errors_write)
            processes.entry = await in_thread(partial(self.ledger.started, entry, pid))
            theirs.close()
            os.close(errors_write)
            errors_write = -1
            reader, writer = await asyncio.open_connection(sock=ours, limit=_STREAM_LIMIT)
            client = AgentClient(reader, writer, post_mortem=processes.post_mortem)
            await client.hello(_START_S)
        except BaseException as error:
            if writer is not None:
                writer.transport.abort()  # the event loop still knows the descriptor
            else:
                ours.close()
            await processes.end()
            if processes.status == NO_OVERLAY and isinstance(error, SandboxError):
                raise _NoOverlayError(str(error)) from error
            raise
        finally:
            theirs.close()
            if errors_write >= 0:
                os.close(errors_write)
        processes.lifetime = spawner.loop.call_later(spec.limits.lifetime_s, _expire, processes, client)
        env = {**self._env(), **image.env, **spec.env}
        return AgentSandbox(
            sandbox_id,
            spec,
            client,
            startup=Startup(node=socket.gethostname(), start=time.monotonic() - began),
            env=env,
            base_tree=self._tree(image, spec.workdir),
            end=processes.end,
        )

    def _register(self, entry: LedgerEntry, spec: SandboxSpec) -> None:
        """Write the ledger entry, then create the groups, which may take a tenth of a second."""
        self._base_system()
        self.ledger.write(entry)
        if self.groups is not None:
            self.groups.create(entry.id, spec.limits)

    def _env(self) -> dict[str, str]:
        path = self._base_system().path
        return {"PATH": path, "HOME": HOME, "USER": "agent", "LANG": "C.UTF-8", "TERM": "dumb"}

    def _base_system(self) -> BaseSystem:
        if self._base is None:
            self._base = prepare(self.home / "sandboxes")
        return self._base

    def _tree(self, image: Image, workdir: str) -> _ImageTree:
        key = (image.name, image.version, workdir)
        return self._trees.setdefault(key, _ImageTree(image, workdir))

    def _request(self, entry: LedgerEntry, spec: SandboxSpec, image: Image) -> dict[str, Any]:
        base, limits = self._base_system(), spec.limits
        rlimits = {} if self.groups else {"TRAINYARD_RLIMITS": f"{limits.memory_mb << 20},{limits.processes}"}
        return {
            "id": entry.id,
            "bwrap": shutil.which("bwrap") or "/usr/bin/bwrap",
            "rootfs": str(image.rootfs),
            "layers": image.layers,
            "copy": self.copies,
            "uid": image.uid,
            "gid": image.gid,
            "disk_bytes": limits.disk_mb << 20,
            "inodes": max(4096, limits.disk_mb * _INODES_PER_MB),
            "writable": WRITABLE,
            "binds": [*base.binds, *((source, target) for target, source in image.binds.items())],
            "links": base.links,
            "cgroups": entry.cgroups,
            "seccomp": base.seccomp,
            "env": rlimits,
            "argv": base.agent_argv,
        }

    async def _live_spawner(self) -> SpawnClient:
        loop = asyncio.get_running_loop()
        if self._spawner_lock is None or self._spawner_lock[0] is not loop:
            self._spawner_lock = (loop, asyncio.Lock())
        async with self._spawner_lock[1]:
            spawner = self._spawner
            if spawner is None or not spawner.alive or spawner.loop is not loop:
                spawner = self._spawner = await SpawnClient.start()
            return spawner


def _expire(processes: _Processes, client: AgentClient) -> None:
    client.fail(SandboxDiedError("the sandbox reached the end of its lifetime"))
    processes.spawner.kill(processes.entry.id)
