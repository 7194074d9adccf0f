"""One container of a pod: its image, its local sandbox, its agent port or its command, and how it ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.errors import SandboxError
from engine.processes import cgroups
from engine.sandbox.agent.listen import TOKEN_VARIABLE
from engine.sandbox.agent_sandbox import AgentSandbox
from engine.sandbox.base import SandboxLimits, SandboxSpec
from engine.sandbox.local.images import load_image
from tests.fakes.cluster.api.objects import now
from tests.fakes.cluster.api.quotas import amounts
from tests.fakes.cluster.api.resources import Object
from tests.fakes.cluster.faults import FaultKind
from tests.fakes.cluster.nodes.bridge import AgentPort, Relay, Stream, greet, splice
from tests.fakes.cluster.nodes.images import RegistryImage
from tests.fakes.cluster.nodes.processes import Inside, inside

if TYPE_CHECKING:
    from tests.fakes.cluster.nodes.kubelet import Kubelet

_MIB = 1 << 20
_KILLED = 137
_PROCESSES = 2
"""Of a container, when those of a user are counted: its agent and a command."""


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
        lazy: its sandbox starts with its first use, not with the container.
    """

    def __init__(
        self,
        kubelet: Kubelet,
        pod: Object,
        spec: Object,
        address: str,
        *,
        lazy: bool = False,
    ) -> None:
        self.kubelet = kubelet
        self.pod = pod
        self.spec = spec
        self.address = address
        self.lazy = lazy
        self.image: RegistryImage | None = None
        self.env: dict[str, str] = {}
        self.box: AgentSandbox | None = None
        self.port: AgentPort | Relay | None = None
        self.waiting = "PodInitializing" if pod["spec"].get("initContainers") else "ContainerCreating"
        """Why it does not run; empty while it does and after it did."""
        self.message = ""
        self.exit: Exit | None = None
        self.started_at: str | None = None
        self.struck: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        """Set by whoever ends it from outside: the kernel, a crash."""
        self._process: asyncio.subprocess.Process | None = None
        self._stack = contextlib.AsyncExitStack()
        self._opening = asyncio.Lock()

    def begin(self) -> None:
        """It runs."""
        self.waiting = self.message = ""
        self.started_at = now()

    def stop(self, exit_: Exit) -> None:
        """It ended; the first end counts. Nothing where it never ran."""
        if self.exit is None and self.started_at is not None:
            self.exit = exit_
            self.waiting = ""

    def strike(self, exit_: Exit) -> None:
        """End it from outside, as the kernel or a crash would."""
        if not self.struck.done():
            self.struck.set_result(exit_)

    def status(self) -> Object:
        """Return the container's entry in the pod's status."""
        message = self.exit.message if self.exit is not None else self.message
        told = {"message": message} if message else {}
        state: Object = {"waiting": {"reason": self.waiting, **told}}
        if self.exit is not None:
            state = {"terminated": {"exitCode": self.exit.code, "reason": self.exit.word, **told}}
        elif self.started_at is not None:
            state = {"running": {"startedAt": self.started_at}}
        return {"name": self.name, "image": self.spec["image"], "state": state}

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

    @property
    def running(self) -> bool:
        """Whether it has begun and not ended."""
        return self.started_at is not None and self.exit is None and not self.waiting

    async def start(self) -> None:
        """Make what the container is made of; the image is there.

        Raises:
            OSError: the pod's address cannot be listened on.
            SandboxError: the sandbox did not start.
        """
        self.env = {variable["name"]: variable["value"] for variable in self.spec.get("env", [])}
        if not self._is_real():
            return
        ports = self.spec.get("ports") or []
        if self.token is None or not ports:
            self._process = await self.spawn(self._command(), stdin=False)
        elif self.kubelet.own_agents:
            self._process = await self.spawn(self._command(), stdin=False)
            self.port = Relay(self.address, int(ports[0]["containerPort"]), self._inside())
            await self.port.listen(self._process)
        else:
            self.port = AgentPort(self.address, int(ports[0]["containerPort"]), self.token)
            await self.port.listen()
            if not self.lazy:
                await self.open()

    def _is_real(self) -> bool:
        """Whether a sandbox stands behind it: not for images that are no local ones."""
        return self.image is not None and self.image.local is not None and bool(self._command())

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

    async def spawn(self, command: Sequence[str], *, stdin: bool) -> asyncio.subprocess.Process:
        """Start a process inside. Raises SandboxError, OSError."""
        box = await self.open()
        env = {**box._env, **self.env}
        return await self._inside().spawn(command, env=env, cwd=self.cwd, stdin=stdin)

    def _inside(self) -> Inside:
        assert self.box is not None
        return inside(self.kubelet.backend, self.box.id)

    async def run(self) -> Exit:
        """Serve the agent's client, or wait for the command, or only exist; returns when the container
        ends."""
        if isinstance(self.port, AgentPort):
            return await self._serve(self.port)
        if self._process is not None:
            return await self._wait(self._process)
        await asyncio.Event().wait()
        raise AssertionError

    async def _wait(self, process: asyncio.subprocess.Process) -> Exit:
        assert process.stdout is not None
        assert process.stderr is not None
        groups = self._inside().cgroups
        await asyncio.gather(_drain(process.stdout), _drain(process.stderr))
        code = await process.wait()
        code = code if code >= 0 else 128 - code
        return Exit(code, "OOMKilled" if code == _KILLED and cgroups.oom_killed(groups) else "")

    async def _serve(self, port: AgentPort) -> Exit:
        client = await port.client()
        try:
            box = await self.open()
        except SandboxError as error:
            return Exit(128, "StartError", str(error))
        greet(client[1], 1, {**box._env, **self.own_env})
        fault = self.kubelet.faults.draw(FaultKind.CUT, name=self.pod["metadata"]["name"])
        try:
            async with asyncio.timeout(fault.delay_s if fault else None):
                left = await splice(client, _stream(box))
        except TimeoutError:
            client[1].transport.abort()
            left = True
        if left:
            return Exit(0)
        try:
            await box.exec(["true"], timeout_s=1)
        except SandboxError as error:
            return self._death(str(error))
        return Exit(1)

    @staticmethod
    def _death(message: str) -> Exit:
        return Exit(_KILLED, "OOMKilled" if "memory limit" in message else "Error", message)

    async def close(self, *, silent: bool = False) -> None:
        """End everything; safe to call twice.

        Args:
            silent: the client's connection stays open and tells nothing, as when a machine vanishes.
        """
        for connection in self.port.close() if self.port is not None else ():
            if silent:
                self.kubelet.half_open.append(connection)
            else:
                connection.close()
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
        assert self.image is not None
        assert self.image.local is not None
        return load_image(self.kubelet.registry.home, self.image.local).workdir

    def _command(self) -> list[str]:
        return list(self.spec.get("command", ()))

    def _process_limit(self) -> int:
        """Return the kubelet's ``podPidsLimit``, or the ``RLIMIT_NPROC`` that the agent sets where it bites
        earlier.

        The kernel counts that one per user and user namespace: root of the node's own namespace has none, and
        other users share theirs with all pods of the node.
        """
        limit = self.kubelet.pod_pids_limit
        _, _, told = self.env.get("TRAINYARD_RLIMITS", "").partition(",")
        if not told or (self.user == 0 and not self.has_own_users):
            return limit
        others = 0 if self.has_own_users else self.kubelet.containers_of(self.user, self.pod, besides=self)
        return max(1, min(limit, int(told) - _PROCESSES * others))

    @property
    def user(self) -> int:
        """The user id that the pod asks for; without one it is root, as with most images."""
        return int((self.pod["spec"].get("securityContext") or {}).get("runAsUser", 0))

    @property
    def has_own_users(self) -> bool:
        """Whether the pod has a user namespace."""
        return self.pod["spec"].get("hostUsers") is False

    def _sandbox_spec(self) -> SandboxSpec:
        assert self.image is not None
        assert self.image.local is not None
        limits = amounts(self.spec["resources"]["limits"])
        meta, name = self.pod["metadata"], self.image.local
        return SandboxSpec(
            image=name,
            workdir=load_image(self.kubelet.registry.home, name).workdir,
            run_id="fake-cluster",
            name=f"{meta['namespace']}/{meta['name']}/{self.name}",
            limits=SandboxLimits(
                memory_mb=max(16, limits["memory"] // _MIB),
                processes=self._process_limit(),
                disk_mb=max(8, limits["ephemeral-storage"] // _MIB),
                cpus=limits["cpu"] / 1000,
                lifetime_s=2.0 * self.pod["spec"].get("activeDeadlineSeconds", 3600) + 60,
            ),
        )


def _stream(box: AgentSandbox) -> Stream:
    # The one place that reaches behind the sandbox: a kubelet's pod needs the raw stream of its agent.
    client = box._client
    return client._reader, client._writer


async def _drain(reader: asyncio.StreamReader) -> None:
    while await reader.read(1 << 16):
        pass
