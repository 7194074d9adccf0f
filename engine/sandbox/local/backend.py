"""The local backend: bubblewrap sandboxes on this machine, without container engine or privileges.

A sandbox is an overlay of the image over a size-limited tmpfs, with its own user, process, network, mount,
IPC and UTS namespaces, no capabilities and no network; its init is the agent. Its ledger file is written
before its first process starts and removed after the last has ended. Limits are enforced by control groups
where available, else by rlimits; ``preflight`` reports which. For another limit or mount, edit ``_request``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import socket
import time
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import stamina
import structlog

from engine.errors import ImageError, SandboxError, SandboxStartError
from engine.processes import cgroups
from engine.processes.cgroups import GroupLimits
from engine.sandbox.agent_sandbox import AgentSandbox
from engine.sandbox.base import Population, Sandbox, SandboxSpec, Startup
from engine.sandbox.client import AgentClient
from engine.sandbox.ledger import Ledger, LedgerEntry
from engine.sandbox.local.base_system import HOME, WRITABLE, BaseSystem, prepare
from engine.sandbox.local.image_tree import ImageTree
from engine.sandbox.local.images import Image, load_image
from engine.sandbox.local.processes import Processes
from engine.sandbox.local.reaper import reap
from engine.sandbox.local.spawn_client import SpawnClient
from engine.sandbox.local.spawn_server import NO_OVERLAY
from engine.sandbox.warm import WarmPool, WarmSettings, WarmSource, same_limits
from engine.threads import in_thread

_START_S = 30.0
_ATTEMPTS = 3
_INODES_PER_MB = 64
_STREAM_LIMIT = 1 << 20
_OVERHEAD_PROCESSES = 2
"""Processes of bubblewrap and the agent, which count against the group's limit."""
_log = structlog.get_logger(__name__)


class _NoOverlayError(SandboxStartError):
    """The image could not be overlaid on this machine."""


class LocalBackend:
    """Backend for bubblewrap sandboxes on this machine.

    Args:
        home: the data folder; images below ``images/``, ledger and base files below ``sandboxes/``.
        warm: settings of sandboxes started ahead of demand; None starts none. ``close`` removes them and must
            be called before their event loop ends.
    """

    name = "local"

    def __init__(self, home: Path, *, warm: WarmSettings | None = None) -> None:
        self.home = home.absolute()
        self.ledger = Ledger(self.home / "sandboxes")
        self.groups = cgroups.detect()
        self.copies = False
        """Whether sandboxes copy their images, because an overlay mount failed here."""
        self._base: BaseSystem | None = None
        self._spawner: SpawnClient | None = None
        self._spawner_lock: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None
        self._trees: dict[tuple[object, ...], ImageTree] = {}
        self._settings = warm or WarmSettings.none()
        self._warm: WarmPool[Processes] | None = None
        self._existing: set[str] = set()
        """Ids of sandboxes, from before their start until they have ended."""
        self._endings: dict[str, asyncio.Task[None]] = {}

    @contextlib.asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        """See ``SandboxBackend.open``."""
        began = time.monotonic()
        image = await asyncio.to_thread(load_image, self.home, spec.image)
        if not (image.rootfs / spec.workdir.lstrip("/")).is_dir():
            raise ImageError(
                f"image '{image.name}' has no folder {spec.workdir} (its workdir is {image.workdir})"
            )
        sandbox = await self._obtain(spec, image, began)
        try:
            yield sandbox
        finally:
            await sandbox.close()

    async def prepare(self, images: Mapping[str, int]) -> None:
        """Start up to ``warm_per_image`` sandboxes of each image; see ``SandboxBackend.prepare``."""
        warm = self._warm_pool()
        if not warm.settings.per_image:
            return
        kinds: dict[Hashable, tuple[SandboxSpec, int]] = {}
        for name, count in images.items():
            try:
                image = await asyncio.to_thread(load_image, self.home, name)
            except ImageError as error:
                _log.warning("image could not be prepared", image=name, error=str(error))
                continue
            spec = warm.settings.wanted(name)
            kinds[_kind(spec, image)] = (warm.settings.ahead_of(spec), count)
        warm.prepare(kinds)

    def population(self) -> Population:
        """See ``Counting``."""
        count, node = len(self._existing), socket.gethostname()
        idle = self._warm.idle if self._warm is not None else 0
        return Population(existing=count, idle=idle, nodes={node: count} if count else {})

    async def reap(self, *, run_id: str | None = None) -> int:
        """See ``SandboxBackend.reap``."""
        return await asyncio.to_thread(reap, self.ledger, run_id)

    async def close(self) -> None:
        """Remove the warm sandboxes; the spawner process ends with this one."""
        warm, self._warm = self._warm, None
        for processes in await warm.close() if warm is not None else ():
            self._discard(processes)
        await asyncio.gather(*self._endings.values())

    async def _obtain(self, spec: SandboxSpec, image: Image, began: float) -> AgentSandbox:
        """Return a warm sandbox, or a new one."""
        warm = self._warm_pool()
        with warm.requesting():
            processes = await self._take(warm, _kind(spec, image), spec)
            ahead = processes is not None
            if processes is None:
                with warm.expecting() as arrived:
                    await warm.make_room()
                    processes = await self._start(spec, image, arrived)
        startup = Startup(node=socket.gethostname(), start=time.monotonic() - began, warm=ahead)
        return self._hand_out(processes, spec, image, startup)

    async def _take(self, warm: WarmPool[Processes], kind: Hashable, spec: SandboxSpec) -> Processes | None:
        processes = await warm.take(kind)
        if processes is not None:
            try:
                await processes.assign(spec)
            except BaseException:
                self._discard(processes)
                raise
        return processes

    def _hand_out(
        self, processes: Processes, spec: SandboxSpec, image: Image, startup: Startup
    ) -> AgentSandbox:
        assert processes.client is not None, "it has started"
        loop = asyncio.get_running_loop()
        processes.lifetime = loop.call_later(spec.limits.lifetime_s, processes.expire)
        return AgentSandbox(
            processes.entry.id,
            spec,
            processes.client,
            startup=startup,
            env={**self._env(), **image.env, **spec.env},
            base_tree=self._tree(image, spec.workdir),
            end=partial(self._end, processes),
        )

    def _warm_pool(self) -> WarmPool[Processes]:
        if self._warm is None:
            source = WarmSource(
                launch=self._launch,
                discard=self._discard,
                usable=lambda processes: processes.usable,
                existing=lambda: len(self._existing),
            )
            self._warm = WarmPool(source, self._settings)
        return self._warm

    async def _launch(self, spec: SandboxSpec) -> Processes:
        with self._warm_pool().expecting() as arrived:
            image = await asyncio.to_thread(load_image, self.home, spec.image)
            return await self._start_once(spec, image, arrived)

    def _discard(self, processes: Processes) -> asyncio.Task[None]:
        sandbox = processes.entry.id
        if sandbox not in self._endings:
            ending = self._endings[sandbox] = asyncio.get_running_loop().create_task(self._end(processes))
            ending.add_done_callback(lambda _: self._endings.pop(sandbox))
        return self._endings[sandbox]

    async def _end(self, processes: Processes) -> None:
        await processes.end()
        self._existing.discard(processes.entry.id)
        if self._warm is not None:
            self._warm.room()

    async def _start(self, spec: SandboxSpec, image: Image, arrived: Callable[[], None]) -> Processes:
        start = stamina.AsyncRetryingCaller(attempts=_ATTEMPTS, wait_initial=0.1, wait_jitter=0.1)
        try:
            return await start.on(SandboxError)(self._start_once, spec, image, arrived)
        except SandboxError as error:
            raise SandboxStartError(f"sandbox of image '{image.name}' did not start: {error}") from error

    async def _start_once(self, spec: SandboxSpec, image: Image, arrived: Callable[[], None]) -> Processes:
        copies = self.copies
        try:
            return await self._spawn(spec, image, arrived)
        except _NoOverlayError:
            if copies:
                raise
        self.copies = True
        return await self._spawn(spec, image, arrived)

    async def _spawn(self, spec: SandboxSpec, image: Image, arrived: Callable[[], None]) -> Processes:
        spawner = await self._live_spawner()
        sandbox_id = f"sb-{secrets.token_hex(6)}"
        groups = self.groups.plan(sandbox_id) if self.groups is not None else ()
        entry = LedgerEntry.of_this_process(sandbox_id, spec, cgroups=groups)
        ours, theirs = socket.socketpair()
        try:
            errors, errors_write = os.pipe()
        except OSError:
            ours.close()
            theirs.close()
            raise
        os.set_blocking(errors, False)
        processes = Processes(spawner, self.ledger, entry, errors)
        self._existing.add(sandbox_id)
        arrived()
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
            processes.client = client
            await client.hello(_START_S)
        except BaseException as error:
            if writer is not None:
                writer.transport.abort()  # the event loop still has the descriptor registered
            else:
                ours.close()
            await self._end(processes)
            if processes.status == NO_OVERLAY and isinstance(error, SandboxError):
                raise _NoOverlayError(str(error)) from error
            raise
        finally:
            theirs.close()
            if errors_write >= 0:
                os.close(errors_write)
        return processes

    def _register(self, entry: LedgerEntry, spec: SandboxSpec) -> None:
        """Write the ledger entry, then create the groups, which may take a tenth of a second."""
        self._base_system()
        self.ledger.write(entry)
        if self.groups is not None:
            limits = spec.limits
            memory_mb = limits.memory_mb + limits.disk_mb  # files in a tmpfs count as memory
            processes = limits.processes + _OVERHEAD_PROCESSES
            self.groups.create(entry.id, GroupLimits(memory_mb << 20, processes, limits.cpus))

    def _env(self) -> dict[str, str]:
        path = self._base_system().path
        return {"PATH": path, "HOME": HOME, "USER": "agent", "LANG": "C.UTF-8", "TERM": "dumb"}

    def _base_system(self) -> BaseSystem:
        if self._base is None:
            self._base = prepare(self.home / "sandboxes")
        return self._base

    def _tree(self, image: Image, workdir: str) -> ImageTree:
        key = (image.name, image.version, workdir)
        return self._trees.setdefault(key, ImageTree(image, workdir))

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


def _kind(spec: SandboxSpec, image: Image) -> Hashable:
    """Return the key that interchangeable sandboxes share: image, its version and limits."""
    return image.name, image.version, same_limits(spec.limits)
