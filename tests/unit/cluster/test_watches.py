"""Watches: replay, selection, bookmarks, timeouts, 410, resuming."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest
from kubernetes import watch
from kubernetes.client import CoreV1Api

from tests.builders.cluster_builders import configmap, do, fails, pod
from tests.fakes.cluster import FakeCluster
from tests.fakes.cluster.calls import Call, User
from tests.fakes.cluster.resources import CONFIGMAPS
from tests.fakes.cluster.watches import stream


def _collect(core: CoreV1Api, count: int = 1000, **query: Any) -> list[tuple[str, str]]:
    """What a watch of ConfigMaps in kube-public says, until it ends or has said ``count`` things."""
    said = []
    stream = watch.Watch()
    for event in stream.stream(core.list_namespaced_config_map, "kube-public", **query):
        said.append((event["type"], event["raw_object"]["metadata"].get("name", "")))
        if len(said) == count:
            stream.stop()
    return said


def _raw(core: CoreV1Api, **query: Any) -> list[dict[str, Any]]:
    """The lines of a watch, unfiltered by the client."""
    response = core.list_namespaced_config_map(
        "kube-public", watch=True, _preload_content=False, _request_timeout=120, **query
    )
    return [json.loads(line) for line in response.data.splitlines()]


async def test_a_watch_without_a_version_begins_with_everything(core: CoreV1Api) -> None:
    await do(core.create_namespaced_config_map, "kube-public", configmap("a"))
    said = await do(_collect, core, timeout_seconds=1)
    assert said == [("ADDED", "kube-root-ca.crt"), ("ADDED", "a")]


async def test_a_watch_resumes_at_a_version(core: CoreV1Api) -> None:
    await do(core.create_namespaced_config_map, "kube-public", configmap("a"))
    version = (await do(core.list_namespaced_config_map, "kube-public")).metadata.resource_version
    await do(core.patch_namespaced_config_map, "a", "kube-public", {"data": {"key": "new"}})
    await do(core.delete_namespaced_config_map, "a", "kube-public")
    watching = asyncio.create_task(do(_collect, core, 3, resource_version=version, timeout_seconds=240))
    await asyncio.sleep(0.1)
    await do(core.create_namespaced_config_map, "kube-public", configmap("b"))
    await do(core.create_namespaced_config_map, "default", configmap("elsewhere"))
    assert await watching == [("MODIFIED", "a"), ("DELETED", "a"), ("ADDED", "b")]


async def test_a_selecting_watch_sees_entering_and_leaving(core: CoreV1Api) -> None:
    await do(core.create_namespaced_config_map, "kube-public", configmap("a", {"on": "no"}))
    version = (await do(core.list_namespaced_config_map, "kube-public")).metadata.resource_version
    for value in ("yes", "yes!", "yes", "no", "no"):
        labels = {"on": value.strip("!"), "other": str(len(value))}
        await do(core.patch_namespaced_config_map, "a", "kube-public", {"metadata": {"labels": labels}})
    await do(core.delete_namespaced_config_map, "a", "kube-public")
    said = await do(_collect, core, label_selector="on=yes", resource_version=version, timeout_seconds=1)
    assert said == [("ADDED", "a"), ("MODIFIED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]


async def test_the_end_of_an_object_has_a_version_of_its_own(core: CoreV1Api) -> None:
    made = await do(core.create_namespaced_config_map, "kube-public", configmap("a"))
    await do(core.delete_namespaced_config_map, "a", "kube-public")
    lines = await do(_raw, core, resource_version=made.metadata.resource_version, timeout_seconds=1)
    assert [line["type"] for line in lines] == ["DELETED"]
    assert int(lines[0]["object"]["metadata"]["resourceVersion"]) > int(made.metadata.resource_version)


async def test_bookmarks_carry_the_version_of_the_whole_cluster(
    cluster: FakeCluster, core: CoreV1Api
) -> None:
    lines = await do(_raw, core, resource_version="1", allow_watch_bookmarks=True, timeout_seconds=1)
    assert "BOOKMARK" in {line["type"] for line in lines}
    marks = [line["object"] for line in lines if line["type"] == "BOOKMARK"]
    assert marks[-1]["kind"] == "ConfigMap"
    assert marks[-1]["metadata"]["resourceVersion"] == str(cluster.store.version)
    without = await do(_raw, core, resource_version="1", timeout_seconds=1)
    assert "BOOKMARK" not in {line["type"] for line in without}


async def test_a_watch_list_ends_its_first_part_with_a_bookmark(core: CoreV1Api) -> None:
    query = {"send_initial_events": True, "allow_watch_bookmarks": True}
    lines = await do(_raw, core, resource_version_match="NotOlderThan", timeout_seconds=1, **query)
    assert [line["type"] for line in lines[:2]] == ["ADDED", "BOOKMARK"]
    assert lines[1]["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


async def test_a_forgotten_version_is_a_410_in_the_stream(cluster: FakeCluster, core: CoreV1Api) -> None:
    version = (await do(core.list_namespaced_config_map, "kube-public")).metadata.resource_version
    await do(core.create_namespaced_config_map, "kube-public", configmap("a"))
    cluster.store.compact()
    lines = await do(_raw, core, resource_version=version, timeout_seconds=1)
    assert [line["type"] for line in lines] == ["ERROR"]
    assert lines[0]["object"]["code"] == 410
    assert lines[0]["object"]["reason"] == "Expired"


async def test_a_watch_that_cannot_be_is_refused(core: CoreV1Api) -> None:
    await fails(400, core.list_namespaced_config_map, "default", watch=True, field_selector="data.key=1")
    await fails(400, core.list_namespaced_config_map, "default", watch=True, resource_version="yesterday")


async def test_many_watches_see_every_change_once_and_in_order(core: CoreV1Api) -> None:
    version = (await do(core.list_namespaced_pod, "default")).metadata.resource_version

    def follow() -> list[str]:
        names = []
        stream = watch.Watch()
        for event in stream.stream(
            core.list_namespaced_pod, "default", resource_version=version, timeout_seconds=240
        ):
            if event["type"] == "ADDED":  # the scheduler changes them too
                names.append(event["object"].metadata.name)
                if names[-1] == "last":
                    stream.stop()
        return names

    watching = [asyncio.create_task(do(follow)) for _ in range(4)]
    for number in range(20):
        await do(core.create_namespaced_pod, "default", pod(f"p{number}"))
    await do(core.create_namespaced_pod, "default", pod("last"))
    for names in await asyncio.gather(*watching):
        assert names == [*(f"p{number}" for number in range(20)), "last"]


async def _replayed(cluster: FakeCluster, query: dict[str, str], start: dict[str, str]) -> dict[str, str]:
    """Name → version of what a watch would hold that began with ``start``."""
    user = User("tester")
    call = Call(verb="watch", resource=CONFIGMAPS, namespace="kube-public", query=query, user=user)
    held = dict(start)
    async for line in stream(cluster.store, call, 60.0):
        event = json.loads(line)
        meta = event["object"]["metadata"]
        if event["type"] == "DELETED":
            del held[meta["name"]]  # a watch never deletes what it did not show
        else:
            assert (meta["name"] in held) is (event["type"] == "MODIFIED")
            held[meta["name"]] = meta["resourceVersion"]
    return held


@pytest.mark.parametrize("seed", range(5))
async def test_any_list_plus_its_watch_is_the_latest_list(cluster: FakeCluster, seed: int) -> None:
    draw = random.Random(seed)
    rest, user = cluster.server.rest, User("tester")

    def send(verb: str, name: str = "", body: object = None, **query: str) -> Any:
        data = b"" if body is None else json.dumps(body).encode()
        kind = "application/merge-patch+json"
        place = {"resource": CONFIGMAPS, "namespace": "kube-public", "user": user}
        call = Call(verb=verb, name=name, body=data, query=query, content_type=kind, **place)  # type: ignore[arg-type]
        return json.loads(rest.answer(call).data)

    def listed(**query: str) -> tuple[str, dict[str, str]]:
        found = send("list", **query)
        held = {one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in found["items"]}
        return found["metadata"]["resourceVersion"], held

    selectors = ["", "on=yes", "on!=yes", "on"]
    starts = []
    for _ in range(200):
        name, labels = f"c{draw.randrange(8)}", draw.choice([{}, {"on": "yes"}, {"on": "no"}])
        there = cluster.store.get(CONFIGMAPS, "kube-public", name) is not None
        if not there:
            send("create", body=configmap(name, labels))
        elif draw.random() < 0.4:
            send("delete", name)
        else:
            send(
                "patch",
                name,
                {"metadata": {"labels": {"on": None, **labels}}, "data": {"n": str(draw.random())}},
            )
        if draw.random() < 0.1:
            selector = draw.choice(selectors)
            starts.append((selector, *listed(labelSelector=selector)))
    assert len(starts) > 5
    replays = [
        _replayed(
            cluster, {"labelSelector": selector, "resourceVersion": version, "timeoutSeconds": "1"}, held
        )
        for selector, version, held in starts
    ]
    for (selector, version, _), found in zip(starts, await asyncio.gather(*replays), strict=True):
        assert found == listed(labelSelector=selector)[1], (selector, version)
