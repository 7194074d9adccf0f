"""The Docker backend: one container a sandbox, its agent on the attached stdin and stdout.

    open ── image there? pull ── ledger entry ── create ── attach ── start ── greeting ── list the workdir

A container has no network, no capability, no way to new privileges, limits on memory, processes, CPU and
disk, and labels that say whose it is and until when. When its owner dies the connection ends, with it the
agent's input, with that the agent and everything in the container; ``reap`` removes the rest. Another kind
of start failure gets a type in ``_start_failure``.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import docker
import docker.errors
import structlog

from engine.config.sandbox import DockerConfig
from engine.errors import (
    ImageError,
    SandboxDiedError,
    SandboxError,
    SandboxStartError,
    SandboxStartTimeoutError,
)
from engine.sandbox.agent.interpreters import NO_PYTHON
from engine.sandbox.base import Sandbox, SandboxSpec, Startup
from engine.sandbox.client import AgentClient
from engine.sandbox.docker.attach import attach
from engine.sandbox.docker.box import Box
from engine.sandbox.docker.container import Owner, bootstrap, container_config, labels
from engine.sandbox.docker.daemon import Daemon, find_daemon
from engine.sandbox.docker.disk import watch
from engine.sandbox.docker.images import DockerImage, Images
from engine.sandbox.docker.pristine import Originals, OriginalTree
from engine.sandbox.docker.reaper import reap
from engine.sandbox.ledger import Ledger, LedgerEntry
from engine.sandbox.pool import Population
from engine.sandbox.remote import AgentSandbox, list_tree

_ATTEMPTS = 3
_PAUSE_S = 0.5
_NOT_THE_IMAGES = frozenset({"HOSTNAME", "PWD", "OLDPWD", "SHLVL", "_"})
_DEFAULTS = {"LANG": "C.UTF-8", "TERM": "dumb"}
_log = structlog.get_logger(__name__)


class DockerBackend:
    """Sandboxes in the containers of one daemon.

    Args:
        config: the backend's settings.
        home: the data folder; the ledger is below ``sandboxes/docker/``.

    Raises:
        PreflightError: the daemon's address cannot be used.
    """

    name = "docker"

    def __init__(self, config: DockerConfig, home: Path) -> None:
        self.config = config
        self.home = home.absolute()
        self.ledger = Ledger(self.home / "sandboxes" / "docker")
        self.daemon = Daemon(find_daemon(config.host, self.home), config.daemon_timeout_s)
        self.images = Images(self.daemon, config, self.home)
        self.quota = True
        """Whether the storage driver limits what a container writes; known after the first start."""
        self._boxes: dict[str, Box] = {}
        """From before a container is asked for until the daemon said that it is gone."""
        self._live: dict[str, Box] = {}
        self._originals: dict[str, Originals] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._places = asyncio.Semaphore()
        self._watch: asyncio.Task[None] | None = None
        self._leftovers: list[Box] = []
        self._background: set[asyncio.Task[None]] = set()
        self._facts: dict[str, Any] = {}

    @contextlib.asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        """See ``SandboxBackend.open``. Raises ImageError and SandboxStartTimeoutError as well."""
        sandbox = await self._start(spec)
        try:
            yield sandbox
        finally:
            await sandbox.close()

    async def prepare(self, images: Mapping[str, int]) -> None:
        """Fetch images that are not there yet, a few at a time."""
        found = await asyncio.gather(*(self.images.ensure(name) for name in images), return_exceptions=True)
        for name, result in zip(images, found, strict=True):
            if isinstance(result, Exception):
                _log.warning("image could not be prepared", image=name, error=str(result))

    async def preflight(self) -> list[str]:
        """See ``SandboxBackend.preflight``."""
        from engine.sandbox.docker.preflight import (
            preflight,
        )  # it probes by opening a sandbox of this backend

        return await preflight(self)

    async def reap(self, *, run_id: str | None = None) -> int:
        """See ``SandboxBackend.reap``. Raises SandboxError when the daemon does not answer."""
        await self._free_leftovers()
        return await self.daemon.call(lambda client: reap(client, self.ledger, run_id))

    def population(self) -> Population:
        """See ``engine.sandbox.pool.Counting``; of this process, with those that could not be removed yet."""
        count, node = len(self._boxes), str(self._facts.get("Name", ""))
        return Population(existing=count, nodes={node: count} if count and node else {})

    async def close(self) -> None:
        """See ``SandboxBackend.close``."""
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._free_leftovers()
        originals, self._originals = list(self._originals.values()), {}
        for one in originals:
            with contextlib.suppress(SandboxError):
                await asyncio.to_thread(one.close)
        self.daemon.close()

    async def facts(self) -> dict[str, Any]:
        """What the daemon says about itself (``docker info``). Raises SandboxError."""
        if not self._facts:
            self._facts = await self.daemon.call(lambda client: client.info())
        return self._facts

    async def _start(self, spec: SandboxSpec) -> AgentSandbox:
        attempt, pulled, began = 1, 0.0, time.monotonic()
        while True:
            image, seconds = await self.images.ensure(spec.image)
            pulled += seconds
            try:
                async with await self._place():
                    sandbox = await self._start_once(spec, image)
                sandbox.startup = Startup(
                    node=str(self._facts.get("Name", "")),
                    pull=pulled,
                    start=time.monotonic() - began - pulled,
                )
                return sandbox
            except ImageError as error:
                if "No such image" not in str(error) or attempt == _ATTEMPTS:
                    raise
                self.images.forget(spec.image)
                reason: SandboxError = error
            except SandboxStartTimeoutError as error:
                if attempt == _ATTEMPTS:
                    raise
                reason = error
            except SandboxError as error:
                if attempt == _ATTEMPTS:
                    text = f"sandbox of image '{spec.image}' did not start in {attempt} attempts: {error}"
                    raise SandboxStartError(text) from error
                reason = error
            _log.warning("start failed, trying again", image=spec.image, error=str(reason))
            await asyncio.sleep(_PAUSE_S * 2**attempt * random.uniform(0.5, 1.5))
            attempt += 1

    async def _place(self) -> asyncio.Semaphore:
        """The semaphore of creations: a daemon hangs when hundreds are asked of it at once."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            facts = await self.facts()
            count = self.config.max_creating or 2 * int(facts.get("NCPU", 1))
            if loop is not self._loop:  # nobody was faster meanwhile
                self._loop, self._places, self._watch = loop, asyncio.Semaphore(count), None
        return self._places

    async def _start_once(self, spec: SandboxSpec, image: DockerImage) -> AgentSandbox:
        sandbox_id = f"sb-{secrets.token_hex(6)}"
        entry = LedgerEntry.of_this_process(sandbox_id, spec)
        self.ledger.write(entry)
        box = self._boxes[sandbox_id] = Box(self.daemon, self.ledger, entry, spec)
        try:
            box.container = await self._create(sandbox_id, spec, image, box)
            client = await self._connect(box)
            await self.daemon.call(lambda docker: docker.start(box.container))
            greeting = await client.hello(self.config.start_timeout_s)
            stamps = await list_tree(client, spec.workdir)
        except BaseException as error:
            # Not even a second cancellation stops the cleaning up.
            await asyncio.shield(self._in_background(self._free(box, box.abandon())))
            raise _start_failure(error, spec, box) from error
        self._enter(box)
        inside = {name: value for name, value in greeting.env.items() if name not in _NOT_THE_IMAGES}
        return AgentSandbox(
            sandbox_id,
            spec,
            client,
            startup=Startup(node=""),
            env={**_DEFAULTS, **inside, **image.env, **spec.env},
            pristine=OriginalTree(self._originals_of(image), spec.workdir, stamps),
            end=lambda: self._leave(box),
        )

    async def _create(self, sandbox_id: str, spec: SandboxSpec, image: DockerImage, box: Box) -> str:
        def create(client: docker.APIClient) -> str:
            while True:
                config = container_config(
                    spec,
                    image,
                    self.config,
                    labels=labels(sandbox_id, spec, Owner.this()),
                    quota=self.quota,
                )
                try:
                    created: str = client.create_container_from_config(config, name=box.name)["Id"]
                    return created
                except docker.errors.APIError as error:
                    if not self.quota or "storage-opt" not in str(error.explanation).lower():
                        raise
                    self.quota = False

        box.creating = asyncio.ensure_future(self.daemon.call(create))
        return await asyncio.shield(box.creating)

    async def _connect(self, box: Box) -> AgentClient:
        version = self.daemon.client.api_version
        reader, writer, box.stream = await attach(self.daemon.address, version, box.container, box.ended)
        client = box.client = AgentClient(reader, writer, post_mortem=box.last_words)
        writer.write(bootstrap())
        return client

    def _originals_of(self, image: DockerImage) -> Originals:
        return self._originals.setdefault(image.id, Originals(self.daemon, image))

    def _enter(self, box: Box) -> None:
        loop = asyncio.get_running_loop()
        self._live[box.entry.id] = box
        gone = SandboxDiedError("the sandbox reached the end of its lifetime")
        left = box.entry.deadline - time.monotonic()
        box.lifetime = loop.call_later(max(0.0, left), box.fail, gone)
        if not self.quota and (self._watch is None or self._watch.done()):
            self._watch = loop.create_task(watch(self.daemon, lambda: self._live, self.config.disk_check_s))
        if self._leftovers:
            self._in_background(self._free_leftovers())

    async def _leave(self, box: Box) -> None:
        self._live.pop(box.entry.id, None)
        await self._free(box, box.end())

    async def _free(self, box: Box, ending: Awaitable[bool]) -> None:
        gone = False
        try:
            gone = await ending
        finally:  # cancelled in the middle of it as well
            if gone:
                self._boxes.pop(box.entry.id, None)
            else:
                self._leftovers.append(box)

    async def _free_leftovers(self) -> None:
        """Try again to remove what the daemon could not, because it was busy or away."""
        boxes, self._leftovers = self._leftovers, []
        await asyncio.gather(*(self._free(box, box.end()) for box in boxes))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task


def _start_failure(error: BaseException, spec: SandboxSpec, box: Box) -> BaseException:
    """What a failed start says to the caller."""
    if not isinstance(error, Exception):
        return error  # cancelled: whatever the container said, nobody asked
    said = box.stderr()
    if NO_PYTHON in said:
        return ImageError(f"image '{spec.image}': {said}")
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return ImageError(f"image '{spec.image}' has no folder {spec.workdir}")
    if isinstance(error, SandboxStartError) and "/bin/sh" in str(error):
        return ImageError(f"image '{spec.image}' has no /bin/sh: {error}")
    if isinstance(error, SandboxDiedError):
        return SandboxStartError(f"{error}")
    if isinstance(error, SandboxError) and "no greeting" in str(error):
        return SandboxStartTimeoutError(f"image '{spec.image}': {error}")
    return error
