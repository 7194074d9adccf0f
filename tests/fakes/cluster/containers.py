"""One container of a pod: its image, its local sandbox, its agent port or its command, and how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.errors import SandboxError
from engine.sandbox.agent.listen import TOKEN_VARIABLE
from engine.sandbox.base import SandboxLimits, SandboxSpec
from engine.sandbox.images import load_image
from engine.sandbox.remote import AgentSandbox
from tests.fakes.cluster.bridge import AgentPort, Stream, greet, splice
from tests.fakes.cluster.images import RegistryImage
from tests.fakes.cluster.objects import now
from tests.fakes.cluster.quantities import amounts
from tests.fakes.cluster.resources import Object

if TYPE_CHECKING:
    from tests.fakes.cluster.kubelet import Kubelet

_FOR_EVER_S = 7 * 86_400.0
_LOG_CAP = 1 << 20
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Exit:
    """How a container ended."""

    code: int
    reason: str = ""
    message: str = ""

    @property
    def word(self) -> str:
        """The status's ``reason``."""
        return self.reason or ("Completed" if self.code == 0 else "Error")


class Container:
    """A container at run time.

    Args:
        spec: as in the pod.
        address: the pod's.
        lazy: its sandbox starts with its first use, not with the container (a sidecar that may never be
            used).
        sidecar: an init container that stays.
    """

    def __init__(
        self,
        kubelet: Kubelet,
        pod: Object,
        spec: Object,
        address: str,
        *,
        lazy: bool = False,
        sidecar: bool = False,
    ) -> None:
        self.kubelet = kubelet
        self.pod = pod
        self.spec = spec
        self.address = address
        self.lazy = lazy
        self.sidecar = sidecar
        self.id = secrets.token_hex(32)
        self.image: RegistryImage | None = None
        self.env: dict[str, str] = {}
        self.box: AgentSandbox | None = None
        self.port: AgentPort | None = None
        self.log = b""
        self.waiting = "ContainerCreating"
        """Why it does not run; empty while it does and after it did."""
        self.message = ""
        self.exit: Exit | None = None
        self.last: Object | None = None
        """How it ended before it was started again."""
        self.restarts = 0
        self.started_at: str | None = None
        self.finished_at: str | None = None
        self.ever_started = False
        self.struck: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        """Set by whoever ends it from outside: the kernel, a crash."""
        self._stack = contextlib.AsyncExitStack()
        self._opening = asyncio.Lock()

    def begin(self) -> None:
        """It runs."""
        self.waiting = self.message = ""
        self.started_at = now()
        self.ever_started = True

    def stop(self, exit_: Exit) -> None:
        """It ended; the first end counts. Nothing where it never ran."""
        if self.exit is None and self.started_at is not None:
            self.exit = exit_
            self.finished_at = now()
            self.waiting = ""

    def strike(self, exit_: Exit) -> None:
        """End it from outside, as the kernel or a crash would."""
        if not self.struck.done():
            self.struck.set_result(exit_)

    def begin_again(self) -> None:
        """Forget the last life."""
        self.exit = self.started_at = self.finished_at = None
        self.port = None
        self.struck = asyncio.get_running_loop().create_future()

    @property
    def name(self) -> str:
        """As the pod has it."""
        name: str = self.spec["name"]
        return name

    @property
    def token(self) -> bytes | None:
        """What its agent's client must know; None for a container without our agent."""
        text = self.env.get(TOKEN_VARIABLE)
        return bytes.fromhex(text) if text else None

    async def start(self) -> None:
        """Make what the container is made of; the image is there.

        Raises:
            OSError: the pod's address cannot be listened on.
            SandboxError: the sandbox did not start.
        """
        if self.image is None or self.image.local is None:
            return
        ports = self.spec.get("ports") or []
        if self.token is not None and ports:
            self.port = AgentPort(self.address, int(ports[0]["containerPort"]), self.token)
            await self.port.listen()
            if not self.lazy:
                await self.open()
        elif self._command():
            await self.open()

    async def open(self) -> AgentSandbox:
        """The sandbox behind the container, started by the first who needs it."""
        async with self._opening:
            if self.box is None:
                assert self.image is not None
                backend = self.kubelet.backend
                opened = await self._stack.enter_async_context(backend.open(self._sandbox_spec()))
                assert isinstance(opened, AgentSandbox)
                self.box = opened
                self.kubelet.boxes += 1
            return self.box

    async def run(self) -> Exit:
        """Serve the agent's client, or run the command, or only exist; returns when the container ends."""
        if self.port is not None:
            return await self._serve(self.port)
        command = self._command()
        if not command or _only_waits(command) or self.box is None:
            await asyncio.Event().wait()
        assert self.box is not None
        try:
            result = await self.box.exec(
                command, timeout_s=_FOR_EVER_S, cwd=self.cwd, env=self.env, output_cap=_LOG_CAP
            )
        except SandboxError as error:
            return self._death(str(error))
        except OSError as error:
            return Exit(128, "StartError", f"failed to create containerd task: {error}")
        self.log += result.stdout + result.stderr
        return Exit(137 if result.exit_code is None else result.exit_code % 256)

    async def _serve(self, port: AgentPort) -> Exit:
        client = await port.client()
        try:
            box = await self.open()
        except SandboxError as error:
            return Exit(128, "StartError", str(error))
        greet(client[1], 1, {**box._env, **self.own_env})
        if await splice(client, _stream(box)):
            return Exit(0)
        try:
            await box.exec(["true"], timeout_s=1)
        except SandboxError as error:
            return self._death(str(error))
        return Exit(1)

    @staticmethod
    def _death(message: str) -> Exit:
        return Exit(137, "OOMKilled" if "memory limit" in message else "Error", message)

    async def close(self, *, silent: bool = False) -> None:
        """End everything; safe to call twice.

        Args:
            silent: the client's connection stays open and tells nothing, as when a machine vanishes.
        """
        if self.port is not None:
            await self.port.close(silent=silent)
        if self.box is not None:
            self.box = None
            try:
                await self._stack.aclose()
            finally:
                self.kubelet.boxes -= 1

    @property
    def own_env(self) -> dict[str, str]:
        """The environment that the pod gives, without what only the agent may know."""
        return {key: value for key, value in self.env.items() if not key.startswith("TRAINYARD_")}

    @property
    def cwd(self) -> str:
        """Where commands start."""
        if path := self.spec.get("workingDir"):
            return str(path)
        assert self.image is not None
        assert self.image.local is not None
        return load_image(self.kubelet.registry.home, self.image.local).workdir

    def _command(self) -> list[str]:
        return [*(self.spec.get("command") or ()), *(self.spec.get("args") or ())]

    def _sandbox_spec(self) -> SandboxSpec:
        assert self.image is not None
        assert self.image.local is not None
        limits = amounts((self.spec.get("resources") or {}).get("limits"))
        meta, name = self.pod["metadata"], self.image.local
        lifetime = self.pod["spec"].get("activeDeadlineSeconds")
        return SandboxSpec(
            image=name,
            workdir=load_image(self.kubelet.registry.home, name).workdir,
            run_id=self.kubelet.run_id,
            name=f"{meta['namespace']}/{meta['name']}/{self.name}",
            limits=SandboxLimits(
                memory_mb=max(16, limits["memory"] // _MIB or 512),
                processes=self.kubelet.pod_pids_limit,
                disk_mb=max(8, limits["ephemeral-storage"] // _MIB or 256),
                cpus=(limits["cpu"] or 1000) / 1000,
                lifetime_s=2.0 * lifetime + 60 if lifetime else _FOR_EVER_S,
            ),
        )


def _only_waits(command: list[str]) -> bool:
    words = shlex.split(command[-1]) if command[-1].startswith("sleep ") else command[-2:]
    return words[0] == "sleep" and words[1:2] in (["infinity"], ["inf"]) if words else False


def _stream(box: AgentSandbox) -> Stream:
    # The one place that reaches behind the sandbox: a kubelet's pod needs the raw stream of its agent.
    client = box._client
    return client._reader, client._writer
