"""The Docker backend: one container per sandbox, with its agent on the attached stdin and stdout.

    open ── pull if missing ── ledger entry ── create ── attach ── start ── greeting ── list the workdir

A container has no network, no capabilities and no way to gain privileges. Its memory, processes, CPU and disk
are limited; its labels name the owner and the deadline. When the owner dies, the connection and with it the
agent's input end; the agent then exits and ends every process of the container. ``reap`` removes the rest.
To report another kind of start failure, add its type to ``Container.start_failure``.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Hashable,
    Mapping,
)
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import docker.errors
import stamina
import structlog

from engine.config.access.places import ANY
from engine.config.sandbox import DockerConfig
from engine.errors import (
    ImageError,
    ImageRemovedError,
    SandboxDiedError,
    SandboxError,
    SandboxStartError,
    SandboxStartTimeoutError,
)
from engine.sandbox.agent_sandbox import AgentSandbox, list_tree
from engine.sandbox.base import Population, Sandbox, SandboxSpec, Startup
from engine.sandbox.client import AgentClient
from engine.sandbox.docker.attach import attach
from engine.sandbox.docker.base_files import BaseFiles, BaseTree
from engine.sandbox.docker.container import Container
from engine.sandbox.docker.container_spec import ContainerOwner, bootstrap, container_config, labels
from engine.sandbox.docker.daemon import Daemon, find_daemon
from engine.sandbox.docker.disk import watch
from engine.sandbox.docker.image import DockerImage
from engine.sandbox.docker.images import Images
from engine.sandbox.docker.reaper import reap
from engine.sandbox.ledger import Ledger, LedgerEntry
from engine.sandbox.warm import WarmPool, WarmSettings, WarmSource, same_limits

_ATTEMPTS = 3
_PAUSE_S = 1.0
_LABELLED_S = 86_400.0
"""Lifetime in the labels of a container that is started ahead of demand, seconds."""
_NOT_THE_IMAGES = frozenset({"HOSTNAME", "PWD", "OLDPWD", "SHLVL", "_"})
_DEFAULTS = {"LANG": "C.UTF-8", "TERM": "dumb"}
_log = structlog.get_logger(__name__)


class DockerBackend:
    """Backend for sandboxes in containers of one daemon.

    Args:
        config: the backend's settings.
        home: the data folder; the ledger is below ``sandboxes/docker/``.
        warm: the sandboxes started ahead of demand; None starts none. Call ``close``, which removes them,
            before the event loop ends.
        registries: hosts of the base images allowed in tasks' Dockerfiles; ``*`` for any.

    Raises:
        PreflightError: the daemon's address cannot be used.
    """

    name = "docker"

    def __init__(
        self,
        config: DockerConfig,
        home: Path,
        *,
        warm: WarmSettings | None = None,
        registries: Collection[str] = (ANY,),
    ) -> None:
        self.config = config
        self.home = home.absolute()
        self.ledger = Ledger(self.home / "sandboxes" / "docker")
        self.daemon = Daemon(find_daemon(config.host, self.home), config.daemon_timeout_s)
        self.images = Images(self.daemon, config, self.home, registries=registries)
        self.quota = True
        """Ability of the storage driver to limit a container's disk use; known after the first start."""
        self._containers: dict[str, Container] = {}
        """Containers from before their creation until the daemon confirmed their removal."""
        self._live: dict[str, Container] = {}
        self._base_files: dict[str, BaseFiles] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._places = asyncio.Semaphore()
        self._watch: asyncio.Task[None] | None = None
        self._leftovers: list[Container] = []
        self._background: set[asyncio.Task[None]] = set()
        self._facts: dict[str, Any] = {}
        self._settings = warm or WarmSettings.none()
        self._warm: WarmPool[Container] | None = None

    @contextlib.asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        """See ``SandboxBackend.open``. Raises ImageError and SandboxStartTimeoutError as well."""
        sandbox = await self._start(spec)
        try:
            yield sandbox
        finally:
            await sandbox.close()

    async def prepare(self, images: Mapping[str, int]) -> None:
        """Fetch missing images, a few at a time; then start up to ``warm_per_image`` sandboxes of each."""
        results = await asyncio.gather(*(self.images.ensure(name) for name in images), return_exceptions=True)
        warm = self._warm_pool()
        kinds: dict[Hashable, tuple[SandboxSpec, int]] = {}
        for name, result in zip(images, results, strict=True):
            if isinstance(result, BaseException):
                _log.warning("image could not be prepared", image=name, error=str(result))
            else:
                spec = warm.settings.wanted(name)
                kinds[_kind(spec, result[0])] = (warm.settings.ahead_of(spec), images[name])
        warm.prepare(kinds)

    async def reap(self, *, run_id: str | None = None) -> int:
        """See ``SandboxBackend.reap``. Raises SandboxError when the daemon does not answer."""
        await self._free_leftovers()
        return await self.daemon.call(lambda client: reap(client, self.ledger, run_id))

    def population(self) -> Population:
        """See ``Counting``; counts this process's containers, including those not yet removed."""
        count, node = len(self._containers), str(self._facts.get("Name", ""))
        idle = self._warm.idle if self._warm is not None else 0
        return Population(existing=count, idle=idle, nodes={node: count} if count and node else {})

    async def close(self) -> None:
        """See ``SandboxBackend.close``."""
        warm, self._warm = self._warm, None
        for container in await warm.close() if warm is not None else ():
            self._discard(container)
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._free_leftovers()
        base_files, self._base_files = list(self._base_files.values()), {}
        for image_files in base_files:
            with contextlib.suppress(SandboxError):
                await asyncio.to_thread(image_files.close)
        self.daemon.close()

    async def facts(self) -> dict[str, Any]:
        """Return the daemon's own description (``docker info``). Raises SandboxError."""
        if not self._facts:
            self._facts = await self.daemon.call(lambda client: client.info())
        return self._facts

    async def _start(self, spec: SandboxSpec) -> AgentSandbox:
        """Return a warm sandbox, or a new one."""
        pulled, began = 0.0, time.monotonic()

        async def start() -> AgentSandbox:
            nonlocal pulled
            image, seconds = await self.images.ensure(spec.image)
            pulled += seconds
            try:
                container, ahead = await self._obtain(spec, image)
            except ImageRemovedError:
                self.images.forget(spec.image)
                raise
            sandbox = await self._hand_out(container, spec, image, ahead=ahead)
            node, took = str(self._facts.get("Name", "")), time.monotonic() - began - pulled
            sandbox.startup = Startup(node=node, pull=pulled, start=took, warm=ahead)
            return sandbox

        retrying = stamina.AsyncRetryingCaller(attempts=_ATTEMPTS, timeout=None, wait_initial=_PAUSE_S)
        try:
            return await retrying.on(_may_pass)(start)
        except (ImageError, SandboxStartTimeoutError):
            raise
        except SandboxError as error:
            text = f"sandbox of image '{spec.image}' did not start in {_ATTEMPTS} attempts: {error}"
            raise SandboxStartError(text) from error

    async def _obtain(self, spec: SandboxSpec, image: DockerImage) -> tuple[Container, bool]:
        """Return a started container, and whether it was started ahead of demand."""
        warm = self._warm_pool()
        with warm.requesting():
            if (container := await warm.take(_kind(spec, image))) is not None:
                return container, True
            with warm.expecting() as arrived:
                await warm.make_room()
                async with await self._place():
                    return await self._start_once(spec, image, arrived), False

    async def _place(self) -> asyncio.Semaphore:
        """Return the semaphore of container creations: a daemon hangs under hundreds at once."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            facts = await self.facts()
            count = self.config.max_creating or 2 * int(facts.get("NCPU", 1))
            if loop is not self._loop:  # no concurrent call did it meanwhile
                self._loop, self._places, self._watch = loop, asyncio.Semaphore(count), None
        return self._places

    async def _start_once(
        self, spec: SandboxSpec, image: DockerImage, arrived: Callable[[], None], *, warm: bool = False
    ) -> Container:
        sandbox_id = f"sb-{secrets.token_hex(6)}"
        entry = LedgerEntry.of_this_process(sandbox_id, spec)
        self.ledger.write(entry)
        container = self._containers[sandbox_id] = Container(self.daemon, self.ledger, entry, spec)
        arrived()
        if warm:  # labels cannot be changed later: the ledger has the real deadline
            spec = replace(spec, limits=replace(spec.limits, lifetime_s=_LABELLED_S))
        async with self._freed_on_failure(container, spec):
            container.container_id = await self._create(sandbox_id, spec, image, container)
            container.client = await self._connect(container)
            await self.daemon.call(lambda client: client.start(container.container_id))
            container.env = (await container.client.hello(self.config.start_timeout_s)).env
        return container

    @contextlib.asynccontextmanager
    async def _freed_on_failure(self, container: Container, spec: SandboxSpec) -> AsyncIterator[None]:
        try:
            yield
        except BaseException as error:
            # Shielded, so that a second cancellation does not stop the cleanup.
            await asyncio.shield(self._in_background(self._free(container, container.abandon())))
            raise container.start_failure(error, spec) from error

    async def _hand_out(
        self, container: Container, spec: SandboxSpec, image: DockerImage, *, ahead: bool
    ) -> AgentSandbox:
        assert container.client is not None, "it has started"
        async with self._freed_on_failure(container, spec):
            if ahead:
                container.claim(spec)
            stamps = await list_tree(container.client, spec.workdir)
        self._enter(container)
        container_env = {name: value for name, value in container.env.items() if name not in _NOT_THE_IMAGES}
        return AgentSandbox(
            container.entry.id,
            spec,
            container.client,
            startup=Startup(node=""),
            env={**_DEFAULTS, **container_env, **image.env, **spec.env},
            base_tree=BaseTree(self._base_files_of(image), spec.workdir, stamps),
            end=lambda: self._leave(container),
        )

    # --- warm sandboxes ----------------------------------------------------------------------------

    def _warm_pool(self) -> WarmPool[Container]:
        if self._warm is None:
            source = WarmSource(
                launch=self._launch,
                discard=self._discard,
                usable=lambda container: container.usable,
                existing=lambda: len(self._containers),
            )
            self._warm = WarmPool(source, self._settings)
        return self._warm

    async def _launch(self, spec: SandboxSpec) -> Container:
        with self._warm_pool().expecting() as arrived:
            image, _ = await self.images.ensure(spec.image)
            async with await self._place():
                return await self._start_once(spec, image, arrived, warm=True)

    def _discard(self, container: Container) -> asyncio.Task[None]:
        return self._in_background(self._free(container, container.end()))

    async def _create(
        self, sandbox_id: str, spec: SandboxSpec, image: DockerImage, container: Container
    ) -> str:
        def create(client: docker.APIClient) -> str:
            while True:
                quota = self.quota
                config = container_config(
                    spec,
                    image,
                    self.config,
                    labels=labels(sandbox_id, spec, ContainerOwner.this()),
                    quota=quota,
                )
                try:
                    created: str = client.create_container_from_config(config, name=container.name)["Id"]
                    return created
                except docker.errors.APIError as error:
                    if not quota or "storage-opt" not in str(error.explanation).lower():
                        raise
                    self.quota = False  # the storage driver has none: create the container without

        container.creating = asyncio.ensure_future(self.daemon.call(create))
        return await asyncio.shield(container.creating)

    async def _connect(self, container: Container) -> AgentClient:
        version = self.daemon.client.api_version
        reader, writer, container.stream = await attach(
            self.daemon.address, version, container.container_id, container.on_connection_lost
        )
        client = AgentClient(reader, writer, post_mortem=container.exit_cause)
        writer.write(bootstrap())
        return client

    def _base_files_of(self, image: DockerImage) -> BaseFiles:
        return self._base_files.setdefault(image.id, BaseFiles(self.daemon, image))

    def _enter(self, container: Container) -> None:
        loop = asyncio.get_running_loop()
        self._live[container.entry.id] = container
        expiry = SandboxDiedError("the sandbox reached the end of its lifetime")
        remaining_s = container.entry.deadline - time.monotonic()
        container.lifetime = loop.call_later(max(0.0, remaining_s), container.fail, expiry)
        if not self.quota and (self._watch is None or self._watch.done()):
            self._watch = loop.create_task(watch(self.daemon, lambda: self._live, self.config.disk_check_s))
        if self._leftovers:
            self._in_background(self._free_leftovers())

    async def _leave(self, container: Container) -> None:
        self._live.pop(container.entry.id, None)
        await self._free(container, container.end())

    async def _free(self, container: Container, ending: Awaitable[bool]) -> None:
        removed = False
        try:
            removed = await ending
        finally:  # also when it is cancelled midway
            if removed:
                self._containers.pop(container.entry.id, None)
            else:
                self._leftovers.append(container)
            if self._warm is not None:
                self._warm.room()

    async def _free_leftovers(self) -> None:
        """Retry removals that the daemon could not perform."""
        containers, self._leftovers = self._leftovers, []
        await asyncio.gather(*(self._free(container, container.end()) for container in containers))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task


def _kind(spec: SandboxSpec, image: DockerImage) -> Hashable:
    """Return the key of interchangeable containers; it includes the run, which is in their labels."""
    return image.id, spec.run_id, same_limits(spec.limits)


def _may_pass(error: Exception) -> bool:
    """Return whether another attempt at a start may succeed."""
    if isinstance(error, ImageError):
        return isinstance(error, ImageRemovedError)
    return isinstance(error, SandboxError)
