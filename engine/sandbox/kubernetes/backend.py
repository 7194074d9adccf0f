"""Kubernetes backend: one pod per sandbox, in a prepared namespace.

``fleet`` creates and removes pods, some of them in advance, ``owner`` holds their lease,
``reaper`` removes orphans, ``preflight`` reports what the cluster lacks; this module combines them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import structlog

from engine.config.kubernetes import KubernetesConfig
from engine.config.sandbox import SandboxConfig
from engine.errors import SandboxDiedError, SandboxError
from engine.sandbox.agent_sandbox import AgentSandbox
from engine.sandbox.base import Population, Sandbox, SandboxSpec, Startup
from engine.sandbox.kubernetes.api.client import KubeApi
from engine.sandbox.kubernetes.api.errors import ApiError
from engine.sandbox.kubernetes.api.rights import Rights
from engine.sandbox.kubernetes.fleet import Fleet
from engine.sandbox.kubernetes.manifests.spec import agent_config_map, pool_key
from engine.sandbox.kubernetes.network import NetworkProbe
from engine.sandbox.kubernetes.owner import OwnerLease
from engine.sandbox.kubernetes.pod import Pod
from engine.sandbox.kubernetes.reaper import reap
from engine.sandbox.kubernetes.tree import PodTree, take_stamps
from engine.sandbox.warm import WarmPool, WarmSettings, WarmSource

_CLOSE_S = 20.0
_DEFAULT_ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
}
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Session:
    """Resources open while the backend is in use."""

    api: KubeApi
    lease: OwnerLease
    fleet: Fleet
    warm: WarmPool[Pod]
    informer: asyncio.Task[None]


class KubernetesBackend:
    """Sandbox backend on Kubernetes pods. Connects on first use; call ``close`` at the end.

    Args:
        config: budgets and limits of sandboxes, and the section ``kubernetes``.
        run_id: run of the pods that are started in advance.
    """

    name = "kubernetes"

    def __init__(self, config: SandboxConfig, *, run_id: str = "adhoc") -> None:
        self.config = config
        self._warm = WarmSettings.of(config, config.kubernetes, run_id)
        self.rights = Rights()
        self._session: _Session | None = None
        self._opening = asyncio.Lock()
        self._network = NetworkProbe(config.kubernetes)

    @contextlib.asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        """Open a sandbox; see ``SandboxBackend.open``."""
        began = time.monotonic()
        session = await self._open_session()
        pod = await self._obtain(session, spec)
        try:
            sandbox = await self._hand_out(session, pod, spec, began)
        except BaseException:
            session.fleet.remove(pod)
            raise
        try:
            yield sandbox
        finally:
            await sandbox.close()

    async def prepare(self, images: Mapping[str, int]) -> None:
        """Start up to ``warm_per_image`` sandboxes of each image; see ``SandboxBackend.prepare``."""
        specs = {image: self._warm.wanted(image) for image in images}
        (await self._open_session()).warm.prepare(
            {
                pool_key(image, spec.limits): (self._warm.ahead_of(spec), images[image])
                for image, spec in specs.items()
            }
        )

    async def reap(self, *, run_id: str | None = None) -> int:
        """Remove orphans; see ``SandboxBackend.reap``. Raises ApiError."""
        if self._session is not None:
            return await reap(self._session.api, self.config.kubernetes, run_id)
        api = await KubeApi.connect(self.config.kubernetes, self.rights)
        try:
            return await reap(api, self.config.kubernetes, run_id)
        finally:
            await api.close()

    def population(self) -> Population:
        """Return counts of sandboxes; see ``engine.sandbox.base.Counting``."""
        if self._session is None:
            return Population(existing=0)
        fleet = self._session.fleet
        return Population(existing=len(fleet.pods), idle=self._session.warm.idle, nodes=dict(fleet.nodes()))

    def blocked(self) -> dict[str, str]:
        """Return sandbox → reason of its delayed start, in the cluster's words."""
        pods = self._session.fleet.pods if self._session is not None else {}
        return {name: pod.blocked for name, pod in pods.items() if pod.blocked and not pod.ending}

    async def close(self) -> None:
        """Close the backend; see ``SandboxBackend.close``."""
        session, self._session = self._session, None
        if session is None:
            return
        await session.warm.close()
        # Release the lease even if removals failed: without it the remaining pods are orphans to collect.
        await _best_effort(session.fleet.remove_all(_CLOSE_S), session.lease.name)
        await _best_effort(session.lease.release(session.api), session.lease.name)
        session.informer.cancel()
        await asyncio.gather(session.informer, return_exceptions=True)
        await session.api.close()

    # --- one sandbox -------------------------------------------------------------------------------

    async def _obtain(self, session: _Session, spec: SandboxSpec) -> Pod:
        """Return a claimed warm pod, or a new one."""
        while (pod := await session.warm.take(pool_key(spec.image, spec.limits))) is not None:
            try:
                await session.fleet.claim(pod, spec)
            except SandboxError as error:
                _log.info("a warm sandbox was lost", pod=pod.name, error=str(error))
                session.fleet.remove(pod)
                continue
            except BaseException:
                session.fleet.remove(pod)
                raise
            return pod
        if len(session.fleet.pods) >= self.config.max_live and session.warm.evict() is not None:
            await session.fleet.one_gone()
        return await session.fleet.launch(spec)

    async def _hand_out(self, session: _Session, pod: Pod, spec: SandboxSpec, began: float) -> AgentSandbox:
        assert pod.agent is not None
        assert pod.pristine is not None
        await self._network.check(pod, lambda: session.fleet.another(pod))
        stamps = await take_stamps(pod.agent, spec.workdir, spec.image)
        startup = pod.startup
        if startup.warm:
            startup = Startup(node=startup.node, start=time.monotonic() - began, warm=True)
        loop = asyncio.get_running_loop()
        lifetime = loop.call_later(spec.limits.lifetime_s, _expire, session.fleet, pod)

        async def end() -> None:
            lifetime.cancel()
            await asyncio.wait((session.fleet.remove(pod),), timeout=_CLOSE_S)

        return AgentSandbox(
            pod.name,
            spec,
            pod.agent,
            startup=replace(startup, pull=0.0) if startup.warm else startup,
            env={**_DEFAULT_ENV, **pod.env, **spec.env},
            base_tree=PodTree(stamps, spec.workdir, pod.pristine),
            end=end,
        )

    # --- the session -------------------------------------------------------------------------------

    async def _open_session(self) -> _Session:
        """Connect, hold the lease, create the agent's ConfigMap and watch the pods. Raises ApiError."""
        async with self._opening:
            if self._session is None:
                self._session = await self._new_session()
            return self._session

    async def _new_session(self) -> _Session:
        config = self.config.kubernetes
        api = await KubeApi.connect(config, self.rights)
        try:
            lease = await _hold_lease(api, config)
        except BaseException:
            await api.close()
            raise
        fleet = Fleet(self.config, api, lease, room=lambda: warm.room())
        warm = WarmPool(_warm_pods(fleet), self._warm)
        informer = asyncio.get_running_loop().create_task(fleet.informer.run())
        return _Session(api, lease, fleet, warm, informer)


def _warm_pods(fleet: Fleet) -> WarmSource[Pod]:
    return WarmSource(
        launch=partial(fleet.launch, warm=True),
        discard=fleet.remove,
        usable=lambda pod: not pod.failed and not pod.ending,
        existing=lambda: len(fleet.pods) + fleet.reserved,
    )


async def _hold_lease(api: KubeApi, config: KubernetesConfig) -> OwnerLease:
    """Hold a lease, whose reference protects the agent's ConfigMap, then create that. Raises ApiError."""
    lease = OwnerLease(config)
    await lease.hold(api)
    if not config.agent_image:
        try:
            await _ensure(api, f"/api/v1/namespaces/{config.namespace}/configmaps")
        except BaseException:
            await _best_effort(lease.release(api), lease.name)
            raise
    return lease


async def _best_effort(ending: Awaitable[None], owner: str) -> None:
    try:
        await ending
    except ApiError as error:
        _log.warning("pods are left to the reaper", owner=owner, error=str(error))


async def _ensure(api: KubeApi, config_maps: str) -> None:
    """Create the agent's ConfigMap unless it exists; its name depends on its content. Raises ApiError."""
    try:
        await api.create(config_maps, agent_config_map())
    except ApiError as error:
        if error.status != 409:
            raise


def _expire(fleet: Fleet, pod: Pod) -> None:
    pod.fail(SandboxDiedError("the sandbox reached the end of its lifetime"))
    fleet.remove(pod)
