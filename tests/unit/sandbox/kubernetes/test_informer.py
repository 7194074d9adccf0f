"""Pod informer against a scripted API: broken watches, stale lists and notifications."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from engine.sandbox.kubernetes.api.client import KubeApi
from engine.sandbox.kubernetes.api.errors import ApiError
from engine.sandbox.kubernetes.informer import PodInformer

Json = dict[str, Any]
PATH = "/api/v1/namespaces/n/pods"


def pod(name: str, version: int, uid: str = "") -> Json:
    return {"metadata": {"name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}}


class Script(KubeApi):
    """Fake API that answers lists and watches from a script, then blocks."""

    def __init__(self, lists: list[Json], watches: list[list[Json | ApiError]]) -> None:
        self.lists = lists
        self.watches = watches
        self.versions: list[str] = []
        self.by_name: dict[str, Json] = {}

    async def list(self, path: str, **query: str) -> Json:
        return self.lists.pop(0)

    async def get(self, path: str, *, patience_s: float = 0) -> Json:
        name = path.rpartition("/")[2]
        if name not in self.by_name:
            raise ApiError("no such pod", status=404)
        return self.by_name[name]

    async def watch(self, path: str, *, silence_s: float, **query: str) -> AsyncIterator[Json]:
        self.versions.append(query["resourceVersion"])
        if not self.watches:
            await asyncio.Event().wait()
        for event in self.watches.pop(0):
            if isinstance(event, ApiError):
                raise event
            yield event


def listed(version: int, *pods: Json) -> Json:
    return {"metadata": {"resourceVersion": str(version)}, "items": list(pods)}


def event(kind: str, thing: Json) -> Json:
    return {"type": kind, "object": thing}


async def follow(script: Script, rounds: int) -> tuple[PodInformer, list[tuple[str, bool]]]:
    """Run an informer until ``rounds`` watches began; return its notifications: name, pod exists."""
    notified: list[tuple[str, bool]] = []
    informer = PodInformer(
        script,
        PATH,
        "",
        silence_s=1,
        resync_s=100,
        changed=lambda name, pod: notified.append((name, pod is not None)),
    )
    task = asyncio.create_task(informer.run())
    async with asyncio.timeout(120):
        while len(script.versions) < rounds:
            await asyncio.sleep(0.01)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return informer, notified


async def test_broken_watch_resumes_at_the_last_version() -> None:
    script = Script(
        [listed(5, pod("a", 3))],
        [
            [event("ADDED", pod("b", 6)), event("BOOKMARK", pod("", 9)), ApiError("reset")],
            [ApiError("reset")],
            [event("DELETED", pod("a", 12))],
        ],
    )
    informer, notified = await follow(script, 4)
    assert script.versions == ["5", "9", "9", "12"]
    assert set(informer.pods) == {"b"}
    assert notified == [("a", True), ("b", True), ("a", False)]


async def test_expired_version_causes_a_new_list() -> None:
    gone = {"code": 410, "message": "too old"}
    script = Script([listed(5, pod("a", 3)), listed(20, pod("a", 15))], [[event("ERROR", gone)], []])
    informer, _ = await follow(script, 3)
    assert script.versions[:2] == ["5", "20"]
    assert informer.pods["a"]["metadata"]["resourceVersion"] == "15"


async def test_stale_list_neither_replaces_nor_revives_nor_hides_pods() -> None:
    script = Script(
        [listed(10, pod("a", 8), pod("b", 9), pod("c", 10)), listed(4, pod("a", 2), pod("b", 3))],
        [[event("DELETED", pod("b", 11)), ApiError("too old", status=410)], []],
    )
    script.by_name["c"] = pod("c", 10)
    informer, notified = await follow(script, 3)
    assert {name: known["metadata"]["resourceVersion"] for name, known in informer.pods.items()} == {
        "a": "8",
        "c": "10",
    }
    assert notified.count(("b", True)) == 1
    assert ("c", False) not in notified


async def test_pod_missing_from_the_list_and_the_api_is_removed() -> None:
    script = Script([listed(10, pod("a", 8)), listed(20)], [[ApiError("too old", status=410)], []])
    informer, notified = await follow(script, 3)
    assert informer.pods == {}
    assert notified == [("a", True), ("a", False)]


async def test_waiters_are_notified_of_changes_and_of_removal() -> None:
    script = Script([listed(1)], [])
    informer = PodInformer(script, PATH, "", silence_s=1, resync_s=100, changed=lambda *_: None)
    informer.note(pod("a", 1))
    newer = asyncio.create_task(
        informer.wait("a", lambda p: p if p and p["metadata"]["resourceVersion"] == "3" else None, 20)
    )
    over = asyncio.create_task(informer.wait("a", lambda p: True if p is None else None, 20))
    await asyncio.sleep(0)
    for version in (2, 3):
        informer.note(pod("a", version))
        await asyncio.sleep(0)
    assert (await newer)["metadata"]["resourceVersion"] == "3"
    assert not over.done()
    await informer._refresh("a")
    assert await over
