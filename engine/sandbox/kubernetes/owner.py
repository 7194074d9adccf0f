"""Ownership of pods: one Lease per process, renewed while it runs, is the owner reference of all its pods.

Times are the cluster's, taken from its responses, so that local clocks do not matter. When a process dies its
lease expires. A reaper then deletes the lease, and the cluster's garbage collection deletes the pods.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import secrets
import socket
from typing import Any

import structlog

from engine.config.kubernetes import KubernetesConfig
from engine.sandbox.kubernetes.api.client import KubeApi
from engine.sandbox.kubernetes.api.errors import ApiError
from engine.sandbox.kubernetes.api.retries import retrying
from engine.sandbox.kubernetes.api.rights import Rights
from engine.sandbox.kubernetes.manifests import labels
from engine.sandbox.kubernetes.manifests.spec import Owner, agent_config_map

Json = dict[str, Any]
_log = structlog.get_logger(__name__)


def leases_path(namespace: str) -> str:
    """Return the API path of the namespace's leases."""
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"


class OwnerLease:
    """Lease of this process: ``hold`` it before the first pod, ``release`` it after the last."""

    def __init__(self, config: KubernetesConfig) -> None:
        self.name = f"trainyard-{secrets.token_hex(6)}"
        self._config = config
        self._path = leases_path(config.namespace)
        self._uid = ""
        self._rights = Rights()
        self._renewals: asyncio.Task[None] | None = None

    @property
    def owner(self) -> Owner:
        """Return the owner reference for pods."""
        return Owner(name=self.name, uid=self._uid)

    async def hold(self, api: KubeApi) -> None:
        """Create the lease and start renewing it. Raises ApiError."""
        self._rights = api.rights
        await self._create(api)
        self._renewals = asyncio.create_task(self._keep())

    async def release(self, api: KubeApi) -> None:
        """Stop renewing and delete the lease. Raises ApiError; it then expires by itself."""
        if self._renewals is not None:
            self._renewals.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._renewals
        await api.delete(f"{self._path}/{self.name}")

    async def _create(self, api: KubeApi) -> None:
        try:
            lease = await api.create(self._path, self._body(api.now()))
        except ApiError as error:
            if error.status != 409:
                raise
            lease = await api.get(f"{self._path}/{self.name}")  # created by an earlier attempt, response lost
        self._uid = lease["metadata"]["uid"]

    def _body(self, now: float) -> Json:
        stamp = _stamp(now)
        agent = "" if self._config.agent_image else agent_config_map()["metadata"]["name"]
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self.name, "labels": {**labels.COMMON, labels.AGENT: agent}},
            "spec": {
                "holderIdentity": f"{socket.gethostname()}/{os.getpid()}",
                "leaseDurationSeconds": max(1, round(self._config.owner_timeout_s)),
                "acquireTime": stamp,
                "renewTime": stamp,
            },
        }

    async def _keep(self) -> None:
        """Renew until cancelled, with a separate client: a renewal must not queue behind pod creations."""
        api = await KubeApi.connect(self._config, self._rights)
        try:
            while True:
                await asyncio.sleep(self._config.heartbeat_s)
                async for attempt in retrying():
                    with attempt:
                        await self._renew(api)
        except Exception as error:
            _log.error("the lease is not renewed any more", lease=self.name, error=str(error))
        finally:
            await api.close()

    async def _renew(self, api: KubeApi) -> None:
        try:
            await api.patch(
                f"{self._path}/{self.name}", {"spec": {"renewTime": _stamp(api.now())}}, patience_s=0
            )
        except ApiError as error:
            if error.status != 404:
                raise
            # A reaper deleted the lease after a long silence: create it again for further pods.
            _log.error("the lease was deleted; its pods are gone", lease=self.name)
            await self._create(api)


def expired(lease: Json, now: float) -> bool:
    """Return whether a lease's holder has been silent for too long; ``now`` is the cluster's clock."""
    spec = lease.get("spec") or {}
    renewed = datetime.datetime.fromisoformat(str(spec["renewTime"]).replace("Z", "+00:00")).timestamp()
    return now - renewed > float(spec["leaseDurationSeconds"])


def _stamp(now: float) -> str:
    moment = datetime.datetime.fromtimestamp(now, datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
