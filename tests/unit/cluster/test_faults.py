"""Every switch of requests and watches, seen from the client."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import urllib3.exceptions
from kubernetes.client import CoreV1Api

from tests.builders.cluster_builders import configmap, do, fails
from tests.fakes.cluster import FakeCluster, Fault, FaultKind
from tests.fakes.cluster.faults import Faults

_NO_ANSWER = (urllib3.exceptions.HTTPError, OSError)


def _add(cluster: FakeCluster, kind: FaultKind, **settings: Any) -> Fault:
    return cluster.faults.add(Fault(kind, **settings))


async def _make(core: CoreV1Api, name: str, **options: Any) -> Any:
    return await do(core.create_namespaced_config_map, "default", configmap(name), **options)


async def test_refusals_strike_where_and_as_often_as_told(cluster: FakeCluster, core: CoreV1Api) -> None:
    busy = _add(
        cluster,
        FaultKind.TOO_MANY_REQUESTS,
        verbs={"create"},
        resources={"configmaps"},
        count=2,
        retry_after_s=3,
    )
    for _ in range(2):
        error = await fails(429, core.create_namespaced_config_map, "default", configmap("a"))
        assert error.headers["Retry-After"] == "3"
        assert json.loads(error.body)["details"] == {"retryAfterSeconds": 3}
    await _make(core, "a")
    assert busy.hits == 2
    broken = _add(cluster, FaultKind.SERVER_ERROR, name="^b$")
    error = await fails(500, core.create_namespaced_config_map, "default", configmap("b"))
    assert json.loads(error.body)["reason"] == "InternalError"
    await do(core.read_namespaced_config_map, "a", "default")
    cluster.faults.remove(broken)
    await fails(404, core.read_namespaced_config_map, "b", "default")
    _add(cluster, FaultKind.CONFLICT, verbs={"patch"}, count=1)
    await fails(409, core.patch_namespaced_config_map, "a", "default", {"data": {"x": "y"}})


@pytest.mark.parametrize(
    ("kind", "code"), [(FaultKind.CREATED_BUT_ERROR, 500), (FaultKind.CREATED_BUT_RESET, None)]
)
async def test_work_that_is_done_although_the_client_is_told_otherwise(
    cluster: FakeCluster, core: CoreV1Api, kind: FaultKind, code: int | None
) -> None:
    _add(cluster, kind, verbs={"create"}, count=1)
    if code:
        await fails(code, core.create_namespaced_config_map, "default", configmap("a"))
    else:
        with pytest.raises(_NO_ANSWER):
            await _make(core, "a", _request_timeout=60)
    await do(core.read_namespaced_config_map, "a", "default")


async def test_silence_and_broken_connections(cluster: FakeCluster, core: CoreV1Api) -> None:
    hang = _add(cluster, FaultKind.HANG, verbs={"create"}, count=1)
    with pytest.raises(_NO_ANSWER):
        await _make(core, "a", _request_timeout=1.0)
    reset = _add(cluster, FaultKind.RESET, verbs={"create"}, count=1)
    with pytest.raises(_NO_ANSWER):
        await _make(core, "a", _request_timeout=60)
    half = _add(cluster, FaultKind.HALF_OPEN, verbs={"list"})
    with pytest.raises(_NO_ANSWER):
        await do(core.list_namespaced_config_map, "default", _request_timeout=1.0)
    cluster.faults.remove(half)
    slow = _add(cluster, FaultKind.SLOW, verbs={"get"}, count=1, delay_s=0.3)
    await _make(core, "a")
    began = time.monotonic()
    await do(core.read_namespaced_config_map, "a", "default")
    assert time.monotonic() - began >= 0.3
    assert [one.hits for one in (hang, reset, slow)] == [1, 1, 1]
    assert half.hits >= 1  # the official client tries reads again by itself


async def test_stale_lists_show_an_older_world(cluster: FakeCluster, core: CoreV1Api) -> None:
    for name in ("a", "b", "c"):
        await _make(core, name, field_manager="test")
    _add(cluster, FaultKind.STALE_LIST, behind=1, count=1)
    stale = await do(core.list_namespaced_config_map, "default")
    fresh = await do(core.list_namespaced_config_map, "default")
    assert [one.metadata.name for one in stale.items] == ["a", "b", "kube-root-ca.crt"]
    assert [one.metadata.name for one in fresh.items] == ["a", "b", "c", "kube-root-ca.crt"]
    assert int(stale.metadata.resource_version) < int(fresh.metadata.resource_version)


def _watch(core: CoreV1Api, **query: Any) -> list[str]:
    response = core.list_namespaced_config_map("default", watch=True, _preload_content=False, **query)
    return [json.loads(line)["type"] for line in response.data.splitlines()]


async def test_watches_break_fall_silent_repeat_and_are_gone(cluster: FakeCluster, core: CoreV1Api) -> None:
    first = await _make(core, "a")
    version = str(int(first.metadata.resource_version) - 1)
    _add(cluster, FaultKind.DUPLICATE, verbs={"watch"}, count=1)
    assert await do(_watch, core, resource_version=version, timeout_seconds=1) == ["ADDED", "ADDED"]
    _add(cluster, FaultKind.GONE, verbs={"watch"}, count=1)
    assert await do(_watch, core, resource_version=version, timeout_seconds=1) == ["ERROR"]
    _add(cluster, FaultKind.DROP_WATCH, verbs={"watch"}, count=1, delay_s=0.1)
    with pytest.raises(_NO_ANSWER):
        await do(_watch, core, resource_version=version, timeout_seconds=20, _request_timeout=60)
    _add(cluster, FaultKind.HALF_OPEN, verbs={"watch"}, count=1)
    with pytest.raises(_NO_ANSWER):
        await do(_watch, core, resource_version=version, timeout_seconds=1, _request_timeout=2)
    assert await do(_watch, core, resource_version=version, timeout_seconds=1) == ["ADDED"]


def test_the_same_seed_draws_the_same_faults() -> None:
    def draw(seed: int) -> list[bool]:
        faults = Faults(seed)
        faults.add(Fault(FaultKind.SERVER_ERROR, probability=0.3))
        return [
            faults.draw(FaultKind.SERVER_ERROR, verb="get", resource="pods") is not None for _ in range(200)
        ]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert 30 < sum(draw(1)) < 90


async def test_requests_are_counted(cluster: FakeCluster, core: CoreV1Api) -> None:
    cluster.counters.reset()
    await _make(core, "a")
    await fails(409, core.create_namespaced_config_map, "default", configmap("a"))
    await do(core.patch_namespaced_config_map, "a", "default", {"data": {"x": "y"}})
    await do(core.read_namespaced_config_map, "a", "default")
    await do(core.list_namespaced_config_map, "default")
    await do(core.delete_namespaced_config_map, "a", "default")
    assert (cluster.counters.writes, cluster.counters.reads) == (4, 2)
    snapshot = cluster.counters.snapshot()
    assert snapshot["requests"]["create configmaps"] == 2
    assert snapshot["codes"] == {"200": 4, "201": 1, "409": 1}
