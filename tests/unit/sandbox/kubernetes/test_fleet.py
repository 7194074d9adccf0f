"""Fleet of pods: places that become free, and deletions that the cluster refuses."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.config.sandbox import SandboxConfig
from engine.sandbox.base import SandboxSpec
from engine.sandbox.kubernetes.api.errors import ApiError
from engine.sandbox.kubernetes.backend import KubernetesBackend, _Session, _warm_pods
from engine.sandbox.kubernetes.fleet import Fleet
from engine.sandbox.kubernetes.pod import Pod
from engine.sandbox.warm import WarmPool, WarmSettings


class Cluster:
    """Fake API server that refuses every deletion."""

    def __init__(self) -> None:
        self.closed = False

    async def delete(self, _path: str, **_query: Any) -> None:
        raise ApiError("not today", status=403)

    async def close(self) -> None:
        self.closed = True


class Lease:
    """Fake lease of an owner that records its release."""

    name = "trainyard-1"
    released = False

    async def release(self, _api: Any) -> None:
        self.released = True


def fleet_of(api: Any, lease: Any) -> Fleet:
    return Fleet(SandboxConfig(backend="kubernetes"), api, lease, room=lambda: None)


def booked(fleet: Fleet, name: str) -> Pod:
    pod = fleet.pods[name] = Pod(name, SandboxSpec(image="i"), warm=False, failed=lambda _: None)
    return pod


async def test_freed_place_is_given_to_a_request_that_still_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = fleet_of(Cluster(), Lease())
    monkeypatch.setattr("engine.sandbox.kubernetes.fleet._ROOM_S", 0.01)
    await fleet.one_gone()  # times out
    monkeypatch.setattr("engine.sandbox.kubernetes.fleet._ROOM_S", 3600.0)
    waiting = asyncio.ensure_future(fleet.one_gone())
    await asyncio.sleep(0)
    done = asyncio.ensure_future(asyncio.sleep(0))
    await done
    fleet._removed("sb-1", done)
    async with asyncio.timeout(120):
        await waiting
    assert fleet.reserved == 0


async def test_closing_releases_the_lease_of_pods_that_cannot_be_removed() -> None:
    api: Any = Cluster()
    lease: Any = Lease()
    fleet = fleet_of(api, lease)
    backend = KubernetesBackend(SandboxConfig(backend="kubernetes"))
    informer = asyncio.ensure_future(asyncio.sleep(3600))
    settings = WarmSettings.of(backend.config, backend.config.kubernetes, "r")
    warm = WarmPool(_warm_pods(fleet), settings)
    backend._session = _Session(api, lease, fleet, warm, informer)
    removal = fleet.remove(booked(fleet, "sb-1"))
    booked(fleet, "sb-2")
    await asyncio.sleep(0.01)
    assert not removal.done(), "it is tried again"
    await backend.close()
    assert lease.released, "else nobody would take the pods for orphans while this process lives"
    assert api.closed
    assert removal.done()
    assert not fleet.pods
