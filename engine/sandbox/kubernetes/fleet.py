"""Pods of this process: created in waves, watched by one informer, deleted until they are gone.

A pod is registered before its creation and removed after the cluster reported that it is gone. A
pod that is not registered (creation cancelled, or response lost) is removed when it is seen.
"""

from __future__ import annotations

import asyncio
import hmac
import random
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Any

import structlog

from engine.config.sandbox import SandboxConfig
from engine.errors import SandboxStartError, SandboxStartTimeoutError
from engine.sandbox.base import SandboxSpec, Startup
from engine.sandbox.kubernetes import bring_up, diagnosis
from engine.sandbox.kubernetes.api.client import KubeApi
from engine.sandbox.kubernetes.api.errors import ApiError
from engine.sandbox.kubernetes.api.retries import refused, retrying
from engine.sandbox.kubernetes.connect import over_exec, over_network
from engine.sandbox.kubernetes.informer import PodInformer
from engine.sandbox.kubernetes.manifests import labels, spec
from engine.sandbox.kubernetes.owner import OwnerLease
from engine.sandbox.kubernetes.pod import Pod

Json = dict[str, Any]
_QUOTA_PAUSE_S = 5.0
_ROOM_S = 30.0
_log = structlog.get_logger(__name__)


class Fleet:
    """Creates, claims and removes the pods of one process.

    Args:
        lease: the held lease, which owns the pods.
        room: called whenever a pod is gone.
    """

    def __init__(
        self, config: SandboxConfig, api: KubeApi, lease: OwnerLease, *, room: Callable[[], None]
    ) -> None:
        self.config = config.kubernetes
        self.path = f"/api/v1/namespaces/{self.config.namespace}/pods"
        self.pods: dict[str, Pod] = {}
        self.stuck = 0
        """Number of pods that did not end in time and were deleted by force."""
        self._api = api
        self._lease = lease
        self._room = room
        self._secret = secrets.token_bytes(32)
        self._starting = asyncio.Semaphore(config.max_starting)
        self._removals: dict[str, asyncio.Task[None]] = {}
        self._awaited: deque[asyncio.Future[None]] = deque()
        self.reserved = 0
        """Number of sandboxes waiting for a place, to which warm ones give way."""
        self.informer = PodInformer(
            api,
            self.path,
            labels.selector({**labels.OURS, labels.OWNER: lease.name}),
            silence_s=self.config.watch_silence_s,
            resync_s=self.config.resync_s,
            changed=self._seen,
        )

    def nodes(self) -> Counter[str]:
        """Return node → number of its pods."""
        return Counter(pod.node for pod in self.pods.values() if pod.node)

    async def launch(self, wanted: SandboxSpec, *, warm: bool = False) -> Pod:
        """Create a pod and connect to its agents, before any command has run.

        Raises:
            SandboxStartError: the pod did not start; nothing of it remains.
            SandboxDiedError: the cluster removed the pod while it started.
        """
        pod = Pod(f"sb-{secrets.token_hex(6)}", wanted, warm=warm, failed=self._failed)
        self.pods[pod.name] = pod
        try:
            async with self._starting:
                began = time.monotonic()
                token = hmac.digest(self._secret, pod.name.encode(), "sha256")
                await self._create(pod, token)
                observed = await bring_up.wait_until_running(self.config, self.informer, pod.name)
                await bring_up.connect(self.config, pod, self._dial(pod, observed, token))
        except BaseException:
            self.remove(pod)
            raise
        pull = diagnosis.pull_seconds(observed)
        took = max(0.0, time.monotonic() - began - pull)
        pod.startup = Startup(node=diagnosis.node(observed), pull=pull, start=took, warm=warm)
        pod.ready = True
        return pod

    def another(self, than: Pod) -> Pod | None:
        """Return a running pod other than ``than``."""
        up = (pod for pod in self.pods.values() if pod.ready and not pod.failed and not pod.ending)
        return next((pod for pod in up if pod is not than and pod.address), None)

    async def claim(self, pod: Pod, wanted: SandboxSpec) -> None:
        """Turn a warm pod into the sandbox of ``wanted``; one request. Raises SandboxError if that fails."""
        now = self._api.now()
        patch = spec.claim(
            wanted,
            deadline=now + wanted.limits.lifetime_s + spec.SLACK_S,
            running_s=diagnosis.seconds_on_node(self.informer.pods.get(pod.name) or {}, now),
        )
        pod.warm = False
        self.informer.note(await self._api.patch(f"{self.path}/{pod.name}", patch))
        pod.spec = wanted
        pod.check()

    def remove(self, pod: Pod) -> asyncio.Task[None]:
        """Remove a pod, retried until it is gone; returns at once."""
        if pod.name not in self._removals:
            pod.ending = True
            removal = self._remove(pod) if pod.name in self.pods else pod.close_connections()
            task = asyncio.get_running_loop().create_task(removal)
            self._removals[pod.name] = task
            task.add_done_callback(partial(self._removed, pod.name))
        return self._removals[pod.name]

    async def one_gone(self) -> None:
        """Wait, with a time limit, for the next pod to be gone; its place is reserved for the caller."""
        gone = asyncio.get_running_loop().create_future()
        self._awaited.append(gone)
        self.reserved += 1
        try:
            await asyncio.wait((gone,), timeout=_ROOM_S)
        finally:
            self.reserved -= 1
            if gone in self._awaited:  # otherwise the next free place would be reported to nobody
                self._awaited.remove(gone)

    async def remove_all(self, timeout_s: float) -> None:
        """Remove every pod with one request; the rest is garbage-collected with the owner."""
        pods = list(self.pods.values())
        await asyncio.gather(*(pod.close_connections() for pod in pods))
        try:
            if pods:
                owned = labels.selector({**labels.OURS, labels.OWNER: self._lease.name})
                await self._api.delete(self.path, grace_s=self.config.delete_grace_s, labelSelector=owned)
                waits = (self.informer.wait(pod.name, _is_gone, timeout_s=timeout_s) for pod in pods)
                await asyncio.gather(*waits, return_exceptions=True)
        finally:
            removals = list(self._removals.values())
            for removal in removals:
                removal.cancel()
            await asyncio.gather(*removals, return_exceptions=True)
            self.pods.clear()

    # --- creation ----------------------------------------------------------------------------------

    def _dial(self, pod: Pod, observed: Json, token: bytes) -> bring_up.Dial:
        config, address = self.config, observed["status"]["podIP"]
        if config.connect == "exec":
            path, argv = f"{self.path}/{pod.name}", spec.exec_command(config)
            return lambda container: over_exec(self._api, path, container, argv, pod.lost)
        ports = {spec.SANDBOX: config.agent_port, spec.BASE_FILES: config.agent_port + 1}
        return lambda container: over_network(address, ports[container], token, pod.lost)

    async def _create(self, pod: Pod, token: bytes) -> None:
        config = self.config
        waits = config.schedule_timeout_s + config.pull_timeout_s + config.start_timeout_s
        body = spec.pod(
            config,
            pod.spec,
            sandbox_id=pod.name,
            owner=self._lease.owner,
            token=token,
            deadline=self._api.now() + waits + pod.spec.limits.lifetime_s + spec.SLACK_S,
            warm=pod.warm,
        )
        try:
            async for attempt in retrying(_no_room, within_s=config.schedule_timeout_s):
                with attempt:
                    await self._create_once(pod, body)
        except ApiError as error:
            if not _no_room(error):
                raise _start_error(error, config.namespace) from error
            raise SandboxStartTimeoutError(
                f"no room in namespace {config.namespace} for {config.schedule_timeout_s:g} s: {error}"
            ) from error

    async def _create_once(self, pod: Pod, body: Json) -> None:
        try:
            self.informer.note(await self._api.create(self.path, body))
        except ApiError as error:
            if error.status == 409 and await self._exists(pod.name):
                return
            pod.blocked = str(error)
            raise

    async def _exists(self, name: str) -> bool:
        """Return whether an earlier attempt, response lost, created the pod. Raises SandboxStartError."""
        try:
            observed = await self._api.get(f"{self.path}/{name}")
        except ApiError as error:
            if error.status == 404:
                return False
            raise _start_error(error, self.config.namespace) from error
        if observed["metadata"].get("labels", {}).get(labels.OWNER) != self._lease.name:
            raise SandboxStartError(f"a pod named {name} exists and has another owner")
        self.informer.note(observed)
        return True

    # --- reports of the informer and of broken connections -----------------------------------------

    def _seen(self, name: str, observed: Json | None) -> None:
        pod = self.pods.get(name)
        if pod is not None:
            pod.observe(observed)
        elif observed is not None and name not in self._removals:
            _log.info("removing a pod that nobody waits for", pod=name)
            stray = Pod(name, SandboxSpec(image=""), warm=False, failed=self._failed)
            self.pods[name] = stray
            self.remove(stray)

    def _failed(self, pod: Pod) -> None:
        if pod.warm and pod.ready:  # no sandbox uses it, so nothing else removes it
            self.remove(pod)

    # --- removal -----------------------------------------------------------------------------------

    async def _remove(self, pod: Pod) -> None:
        await pod.close_connections()
        grace = self.config.delete_grace_s
        async for attempt in retrying(_not_gone):
            with attempt:
                await self._api.delete(f"{self.path}/{pod.name}", grace_s=grace)
                try:
                    await self.informer.wait(pod.name, _is_gone, timeout_s=self.config.stuck_terminating_s)
                except TimeoutError:
                    self.stuck += 1
                    grace = 0
                    _log.error("pod is stuck terminating; deleting it by force", pod=pod.name, node=pod.node)
                    raise

    def _removed(self, name: str, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("removing a pod failed", pod=name, error=str(error))
        self._removals.pop(name, None)
        self.pods.pop(name, None)
        if self._awaited:
            self._awaited.popleft().set_result(None)
        self._room()


def _is_gone(observed: Json | None) -> bool | None:
    return True if observed is None else None


def _not_gone(error: Exception) -> bool | float:
    return isinstance(error, TimeoutError) or refused(error)


def _no_room(error: Exception) -> bool | float:
    """Return whether to retry after an exceeded quota or a name conflict, or the seconds to wait first."""
    if not isinstance(error, ApiError):
        return False
    if error.status == 403 and "exceeded quota" in str(error):  # the API reports it only in the message
        return _QUOTA_PAUSE_S * random.uniform(1.0, 1.5)
    return error.status == 409


def _start_error(error: ApiError, namespace: str) -> SandboxStartError:
    if error.status == 404:
        return SandboxStartError(
            f"namespace {namespace} does not exist: kubectl apply -k deploy/kubernetes/sandbox"
        )
    if error.status == 403:
        return SandboxStartError(f"the cluster does not allow it: {error} (see deploy/kubernetes/sandbox)")
    return SandboxStartError(f"the pod could not be created: {error}")
