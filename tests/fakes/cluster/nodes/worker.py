"""The life of one pod on its node, as the kubelet lives it: init containers, containers, the end."""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import TYPE_CHECKING

from engine.errors import SandboxError
from tests.fakes.cluster.api.objects import condition, now
from tests.fakes.cluster.api.resources import CONFIGMAPS, Object
from tests.fakes.cluster.faults import FaultKind
from tests.fakes.cluster.nodes.containers import Container, Exit
from tests.fakes.cluster.nodes.images import RegistryImage

if TYPE_CHECKING:
    from tests.fakes.cluster.nodes.kubelet import Kubelet

_AGAIN_S = 0.2
"""Pause before what could not be mounted or started is tried again."""


class Cause(Enum):
    """Why a pod is ended although its containers are not."""

    DELETED = "deleted"
    FORGOTTEN = "forgotten"
    LOST = "lost"
    EVICTED = "Evicted"
    DEADLINE = "DeadlineExceeded"


class PodWorker:
    """Brings a pod up, watches it, and takes it down.

    Args:
        pod: as bound to its node.
    """

    def __init__(self, kubelet: Kubelet, pod: Object) -> None:
        self.kubelet = kubelet
        self.pod = pod
        meta, spec = pod["metadata"], pod["spec"]
        self.key = (meta["namespace"], meta["name"])
        self.uid: str = meta["uid"]
        self.node: str = spec["nodeName"]
        self.address = kubelet.addresses.take()
        self.inits = [
            Container(kubelet, pod, one, self.address, lazy=True) for one in spec.get("initContainers") or []
        ]
        self.containers = [
            Container(kubelet, pod, one, self.address, lazy=index > 0)
            for index, one in enumerate(spec["containers"])
        ]
        self._stopped: asyncio.Future[tuple[Cause, str]] = asyncio.get_running_loop().create_future()
        self._timers: list[asyncio.TimerHandle] = []

    def find(self, name: str) -> Container | None:
        """A container by name."""
        return next((one for one in self.containers if name == one.name), None)

    def stop(self, cause: Cause, message: str = "") -> None:
        """End the pod; the first cause counts."""
        if not self._stopped.done():
            self._stopped.set_result((cause, message))

    async def run(self) -> None:
        """From the binding to the end."""
        life = asyncio.create_task(self._live())
        deadline = self.pod["spec"].get("activeDeadlineSeconds")
        stopped: tuple[Cause, str] | None = None
        try:
            done, _ = await asyncio.wait(
                (life, self._stopped), timeout=deadline, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                stopped = Cause.DEADLINE, "Pod was active on the node longer than the specified deadline"
            elif life not in done:
                stopped = self._stopped.result()
            else:
                life.result()
        finally:
            life.cancel()
            await asyncio.gather(life, return_exceptions=True)
            await self._take_down(*(stopped or (None, "")))

    async def _live(self) -> None:
        self._report()
        while not self._has_volumes():
            await asyncio.sleep(_AGAIN_S)
        for container in self.inits:
            await self._serve(container)
            if container.exit is not None and container.exit.code != 0:
                return
        tasks = [asyncio.create_task(self._serve(one)) for one in self.containers]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _has_volumes(self) -> bool:
        names = [
            volume["configMap"]["name"]
            for volume in self.pod["spec"].get("volumes") or []
            if "configMap" in volume
        ]
        return all(self.kubelet.store.get(CONFIGMAPS, self.key[0], name) for name in names)

    async def _serve(self, container: Container) -> None:
        """Run a container to its end."""
        await self._create(container)
        container.stop(await self._run(container))
        await container.close()
        if any(one.exit is None for one in self.containers):
            self._report()  # else the pod's own end follows at once

    async def _run(self, container: Container) -> Exit:
        if self.kubelet.faults.draw(FaultKind.START_FAILURE, name=self.key[1]):
            return Exit(128, "StartError", "failed to create containerd task: injected")
        run = asyncio.create_task(container.run())
        try:
            done, _ = await asyncio.wait((run, container.struck), return_when=asyncio.FIRST_COMPLETED)
            return run.result() if run in done else container.struck.result()
        finally:
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)

    async def _create(self, container: Container) -> None:
        while True:
            try:
                container.image = await self._pull(container)
                await container.start()
                break
            except (SandboxError, OSError) as error:
                self._wait(container, "RunContainerError", str(error))
            await asyncio.sleep(_AGAIN_S)
        container.begin()
        if container in self.inits:
            self._report()
        elif all(one.started_at is not None for one in self.containers):
            self._report()
            self._strike_later()

    async def _pull(self, container: Container) -> RegistryImage:
        """The container's image, as soon as the node has it."""
        reference = container.spec["image"]
        images = self.kubelet.node_images(self.node)
        while True:
            present = images.present.get(reference)
            if present is not None and container.spec["imagePullPolicy"] != "Always":
                return present
            image = self.kubelet.registry.find(reference)
            if image is not None:
                await images.pull(reference, image)
                return image
            why = f'failed to resolve reference "{reference}": {reference}: not found'
            self._wait(container, "ErrImagePull", f"rpc error: code = NotFound desc = {why}")
            await asyncio.sleep(_AGAIN_S)

    def _wait(self, container: Container, reason: str, message: str) -> None:
        container.waiting, container.message = reason, message
        self._report()

    def _strike_later(self) -> None:
        """Draw what will happen to the running pod."""
        if fault := self.kubelet.faults.draw(FaultKind.EVICT, name=self.key[1]):
            text = "The node was low on resource: ephemeral-storage."
            loop = asyncio.get_running_loop()
            self._timers.append(loop.call_later(fault.delay_s, self.stop, Cause.EVICTED, text))

    async def _take_down(self, cause: Cause | None, message: str) -> None:
        for timer in self._timers:
            timer.cancel()
        everything = (*self.inits, *self.containers)
        await asyncio.gather(*(one.close(silent=cause is Cause.LOST) for one in everything))
        for container in everything:
            container.stop(Exit(137, "Error"))
        reason = cause.value if cause in (Cause.DEADLINE, Cause.EVICTED) else ""
        self._report(over=True, reason=reason, message=message)
        if cause is Cause.DELETED and (
            fault := self.kubelet.faults.draw(FaultKind.STUCK_TERMINATING, name=self.key[1])
        ):
            await asyncio.sleep(fault.delay_s)

    def _report(self, *, over: bool = False, reason: str = "", message: str = "") -> None:
        def change(pod: Object) -> None:
            status = pod["status"]
            status.setdefault("startTime", now())
            status["podIP"] = self.address
            if self.inits:
                status["initContainerStatuses"] = [container.status() for container in self.inits]
            status["containerStatuses"] = [container.status() for container in self.containers]
            status["phase"] = self._phase(over=over)
            condition(pod, "PodReadyToStartContainers", true=True)
            if reason:
                status.update(phase="Failed", reason=reason, message=message)
            if reason == Cause.EVICTED.value:
                condition(pod, "DisruptionTarget", true=True, reason="TerminationByKubelet", message=message)

        self.kubelet.set_status(self.key, self.uid, change)

    def _phase(self, *, over: bool) -> str:
        """Return the pod's phase; ``over`` when no container will start any more."""
        if over:
            succeeded = all(one.exit is not None and one.exit.code == 0 for one in self.containers)
            return "Succeeded" if succeeded else "Failed"
        return "Running" if all(one.started_at is not None for one in self.containers) else "Pending"
