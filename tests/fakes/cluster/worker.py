"""The life of one pod on its node, as the kubelet lives it: volumes, init containers, containers, the end."""

from __future__ import annotations

import asyncio
import time
from enum import Enum
from typing import TYPE_CHECKING

from engine.errors import SandboxError
from tests.fakes.cluster import statuses
from tests.fakes.cluster.containers import Container, Exit
from tests.fakes.cluster.environment import ConfigError, environment, missing_volume
from tests.fakes.cluster.faults import FaultKind
from tests.fakes.cluster.images import RegistryImage
from tests.fakes.cluster.objects import condition, now
from tests.fakes.cluster.resources import PODS, Object

if TYPE_CHECKING:
    from tests.fakes.cluster.kubelet import Kubelet

_BACKOFF_S = (0.1, 0.2, 0.5, 1.0, 2.0)


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
            self._container(one, lazy=True, initial=True) for one in spec.get("initContainers") or []
        ]
        self.containers = [
            self._container(one, lazy=index > 0) for index, one in enumerate(spec["containers"])
        ]
        self._stopped: asyncio.Future[tuple[Cause, str]] = asyncio.get_running_loop().create_future()
        self._sidecars: list[asyncio.Task[None]] = []
        self._timers: list[asyncio.TimerHandle] = []

    def _container(self, spec: Object, *, lazy: bool, initial: bool = False) -> Container:
        sidecar = initial and spec.get("restartPolicy") == "Always"
        return Container(
            self.kubelet, self.pod, spec, self.address, lazy=lazy, initial=initial, sidecar=sidecar
        )

    def find(self, name: str) -> Container | None:
        """A container by name; the first for none."""
        return next((one for one in (*self.containers, *self.inits) if name in ("", one.name)), None)

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
            await asyncio.gather(life, *self._cancel_sidecars(), return_exceptions=True)
            await self._take_down(*(stopped or (None, "")))

    def _cancel_sidecars(self) -> list[asyncio.Task[None]]:
        for task in self._sidecars:
            task.cancel()
        return self._sidecars

    async def _live(self) -> None:
        self._report()
        await self._mount()
        for container in self.inits:
            started = asyncio.Event()
            task = asyncio.create_task(self._serve(container, started))
            if container.sidecar:
                self._sidecars.append(task)
                await started.wait()
                continue
            await task
            if container.exit is not None and container.exit.code != 0:
                return
        started = asyncio.Event()
        tasks = [asyncio.create_task(self._serve(one, started)) for one in self.containers]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _mount(self) -> None:
        attempt = 0
        while missing := missing_volume(self.kubelet.store, self.pod):
            self._event("FailedMount", missing, warning=True)
            await asyncio.sleep(_BACKOFF_S[min(attempt, len(_BACKOFF_S) - 1)])
            attempt += 1

    async def _serve(self, container: Container, started: asyncio.Event) -> None:
        """Run a container, again and again where the restart policy says so."""
        policy = "Always" if container.sidecar else self.pod["spec"]["restartPolicy"]
        while True:
            await self._create(container)
            started.set()
            container.stop(await self._run(container))
            await container.close()
            assert container.exit is not None
            again = policy == "Always" and (container.sidecar or container not in self.inits)
            if not again and (policy == "Never" or container.exit.code == 0):
                return self._ended()
            container.last = statuses.terminated(container)
            container.waiting = "CrashLoopBackOff"
            container.restarts += 1
            self._report()
            await asyncio.sleep(_BACKOFF_S[min(container.restarts, len(_BACKOFF_S)) - 1])
            container.begin_again()

    def _ended(self) -> None:
        """Tell of one container's end, unless the pod's own follows at once."""
        failed = any(not one.sidecar and one.exit is not None and one.exit.code != 0 for one in self.inits)
        if not failed and any(one.exit is None for one in self.containers):
            self._report()

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
        attempt = 0
        while True:
            try:
                container.env = environment(self.kubelet.store, self.pod, container.spec)
                container.image = await self._pull(container)
                await container.start()
                break
            except ConfigError as error:
                self._wait(container, "CreateContainerConfigError", str(error))
            except (SandboxError, OSError) as error:
                self._wait(container, "RunContainerError", str(error))
            await asyncio.sleep(_BACKOFF_S[min(attempt, len(_BACKOFF_S) - 1)])
            attempt += 1
        container.begin()
        if container in self.inits:
            self._report()
        elif all(one.ever_started for one in self.containers):
            self._event("Started", f"Started container {container.name}")
            self._report()
            self._strike_later()

    async def _pull(self, container: Container) -> RegistryImage:
        """The container's image, as soon as the node has it."""
        reference, policy = container.spec["image"], container.spec["imagePullPolicy"]
        images = self.kubelet.node_images(self.node)
        while True:
            present = images.present.get(reference)
            if present is not None and policy != "Always":
                return present
            if policy == "Never":
                why = f'Container image "{reference}" is not present with pull policy of Never'
                self._wait(container, "ErrImageNeverPull", why)
                await asyncio.sleep(self.kubelet.pull_backoff_s)
                continue
            image = self.kubelet.registry.find(reference)
            if image is not None:
                began = time.monotonic()
                self._event("Pulling", f'Pulling image "{reference}"')
                await images.pull(reference, image)
                took = time.monotonic() - began
                self._event("Pulled", f'Successfully pulled image "{reference}" in {took:.3f}s')
                return image
            await self._back_off(container, reference)

    async def _back_off(self, container: Container, reference: str) -> None:
        what = f'failed to pull and unpack image "{reference}": failed to resolve reference "{reference}"'
        why = f"rpc error: code = NotFound desc = {what}: {reference}: not found"
        self._event("Failed", f'Failed to pull image "{reference}": {why}', warning=True)
        self._wait(container, "ErrImagePull", why)
        await asyncio.sleep(self.kubelet.pull_backoff_s / 2)
        back_off = f'Back-off pulling image "{reference}"'
        self._event("BackOff", back_off)
        self._wait(container, "ImagePullBackOff", f"{back_off}: ErrImagePull: {why}")
        await asyncio.sleep(self.kubelet.pull_backoff_s)

    def _wait(self, container: Container, reason: str, message: str) -> None:
        container.waiting, container.message = reason, message
        self._report()

    def _strike_later(self) -> None:
        """Draw what will happen to the running pod."""
        loop, faults = asyncio.get_running_loop(), self.kubelet.faults
        if fault := faults.draw(FaultKind.EVICT, name=self.key[1]):
            text = "The node was low on resource: ephemeral-storage."
            self._timers.append(loop.call_later(fault.delay_s, self.stop, Cause.EVICTED, text))

    async def _take_down(self, cause: Cause | None, message: str) -> None:
        for timer in self._timers:
            timer.cancel()
        everything = (*self.inits, *self.containers)
        if cause is Cause.DELETED:
            self._event("Killing", "Stopping container " + ", ".join(one.name for one in self.containers))
            await asyncio.sleep(min(self.kubelet.termination_s, self._grace()))
        await asyncio.gather(*(one.close(silent=cause is Cause.LOST) for one in everything))
        for container in everything:
            container.stop(Exit(137, "Error"))
        if cause in (Cause.DEADLINE, Cause.EVICTED):
            assert cause is not None
            self._event(cause.value, message, warning=True)
            self._report(over=True, reason=cause.value, message=message)
        else:
            self._report(over=True)
        if cause is Cause.DELETED and (
            fault := self.kubelet.faults.draw(FaultKind.STUCK_TERMINATING, name=self.key[1])
        ):
            await asyncio.sleep(fault.delay_s)

    def _grace(self) -> float:
        record = self.kubelet.store.get(PODS, *self.key)
        grace: float = (record.obj["metadata"].get("deletionGracePeriodSeconds") or 0) if record else 0
        return grace

    def _report(self, *, over: bool = False, reason: str = "", message: str = "") -> None:
        def change(pod: Object) -> None:
            status = pod["status"]
            status.setdefault("startTime", now())
            status.update(hostIP=statuses.HOST_IP, podIP=self.address, podIPs=[{"ip": self.address}])
            statuses.write(status, self.inits, self.containers, over=over)
            if reason:
                status.update(phase="Failed", reason=reason, message=message)
            if reason == Cause.EVICTED.value:
                condition(pod, "DisruptionTarget", true=True, reason="TerminationByKubelet", message=message)

        self.kubelet.set_status(self.key, self.uid, change)

    def _event(self, reason: str, message: str, *, warning: bool = False) -> None:
        self.kubelet.recorder.record(self.pod, reason, message, source="kubelet", warning=warning)
