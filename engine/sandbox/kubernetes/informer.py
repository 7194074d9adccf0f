"""Informer of the cluster's pods: one list and one watch, kept consistent when watches fail.

A dropped or silent connection is reopened at the last seen version; status 410 requires a new list. All pods
are listed every few minutes anyway. A list may be stale: older versions never replace newer ones, and deleted
pods do not reappear. A pod missing from a list counts as gone only after a request for it by name.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

import structlog

from engine.sandbox.kubernetes.api.client import KubeApi
from engine.sandbox.kubernetes.api.errors import ApiError
from engine.sandbox.kubernetes.api.retries import retrying

Json = dict[str, Any]
T = TypeVar("T")
_WATCH_S = 240.0
_LOOK_AGAIN_S = 15.0
_GONE = 410
_SHORT_S = 0.25
_REMEMBERED = 20_000
_log = structlog.get_logger(__name__)


class PodInformer:
    """Current pods of a namespace that match a selector, by name.

    Args:
        path: API path of the collection.
        silence_s: see ``KubeApi.watch``.
        resync_s: interval between full listings, seconds.
        changed: called on every change with the name and the pod, or None when it is gone.
    """

    def __init__(
        self,
        api: KubeApi,
        path: str,
        selector: str,
        *,
        silence_s: float,
        resync_s: float,
        changed: Callable[[str, Json | None], None],
    ) -> None:
        self.pods: dict[str, Json] = {}
        self._api = api
        self._path = path
        self._selector = selector
        self._silence_s = silence_s
        self._resync_s = resync_s
        self._changed = changed
        self._version = ""
        """Last resource version seen; empty before the first list, and when it is too old to watch from."""
        self._listed = 0.0
        self._waiters: dict[str, set[asyncio.Event]] = {}
        self._refreshes: dict[str, asyncio.Task[None]] = {}
        self._deleted_uids: OrderedDict[str, None] = OrderedDict()

    async def run(self) -> None:
        """Follow the cluster until cancelled."""
        try:
            await self._run()
        finally:
            for refresh in self._refreshes.values():
                refresh.cancel()

    async def _run(self) -> None:
        while True:
            async for attempt in retrying():
                with attempt:
                    await self._follow_on()

    async def _follow_on(self) -> None:
        """List the pods if due, then watch until the watch ends. Raises ApiError."""
        listing = not self._version or time.monotonic() - self._listed > self._resync_s
        if listing:
            self._version, self._listed = await self._list(), time.monotonic()
        began = time.monotonic()
        try:
            await self._follow()
        except ApiError as error:
            if error.status != _GONE:
                raise
            self._version = ""
            if listing:  # the list just read is too old already: wait before the next
                raise
            return
        if time.monotonic() - began < _SHORT_S:  # a proxy cuts watches at once
            await asyncio.sleep(_SHORT_S * random.uniform(0.5, 1.0))

    def note(self, pod: Json) -> None:
        """Store a pod returned by a request."""
        meta = pod["metadata"]
        known = self.pods.get(meta["name"])
        if meta["uid"] in self._deleted_uids or (known is not None and not _newer(meta, known["metadata"])):
            return
        self.pods[meta["name"]] = pod
        self._notify(meta["name"], pod)

    async def wait(self, name: str, check: Callable[[Json | None], T | None], timeout_s: float | None) -> T:
        """Wait until ``check`` returns a value for a pod (None once it is gone), and return the value.

        ``check`` also runs periodically without a change, on a freshly read pod, and may raise.

        Raises:
            TimeoutError: ``check`` returned no value in time.
        """
        event = asyncio.Event()
        self._waiters.setdefault(name, set()).add(event)
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    event.clear()
                    value = check(self.pods.get(name))
                    if value is not None:
                        return value
                    try:
                        async with asyncio.timeout(_LOOK_AGAIN_S):
                            await event.wait()
                    except TimeoutError:
                        self._schedule_refresh(name)
        finally:
            waiters = self._waiters[name]
            waiters.discard(event)
            if not waiters:
                del self._waiters[name]

    async def _list(self) -> str:
        listing = await self._api.list(self._path, labelSelector=self._selector)
        names = set()
        for pod in listing["items"]:
            names.add(pod["metadata"]["name"])
            self.note(pod)
        for name in set(self.pods) - names:
            await self._refresh(name)
        return str(listing["metadata"]["resourceVersion"])

    def _schedule_refresh(self, name: str) -> None:
        if name not in self._refreshes:
            task = self._refreshes[name] = asyncio.create_task(self._refresh(name))
            task.add_done_callback(lambda _: self._refreshes.pop(name))

    async def _refresh(self, name: str) -> None:
        """Read one pod and let its waiters check again. Errors are ignored until the next time."""
        try:
            self.note(await self._api.get(f"{self._path}/{name}", patience_s=0))
        except ApiError as error:
            if error.status == 404:
                self._drop(name)
        for event in self._waiters.get(name, ()):
            event.set()

    async def _follow(self) -> None:
        """Watch from the last resource version seen. Raises ApiError."""
        began_at = self._version
        query = {
            "labelSelector": self._selector,
            "resourceVersion": began_at,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(int(min(_WATCH_S, self._resync_s) * random.uniform(0.8, 1.0)) or 1),
        }
        try:
            async for event in self._api.watch(self._path, silence_s=self._silence_s, **query):
                kind, resource = event["type"], event["object"]
                if kind == "ERROR":
                    raise ApiError(str(resource.get("message")), status=int(resource.get("code") or 0))
                self._version = str(resource["metadata"]["resourceVersion"])
                if kind == "DELETED":
                    self._mark_deleted(resource["metadata"]["uid"])
                    self._drop(resource["metadata"]["name"])
                elif kind != "BOOKMARK":
                    self.note(resource)
        except ApiError as error:
            if error.status != 0 or self._version == began_at:
                raise
            _log.info("pod watch is reopened", error=str(error))

    def _drop(self, name: str) -> None:
        pod = self.pods.pop(name, None)
        if pod is not None:
            self._mark_deleted(pod["metadata"]["uid"])
        if pod is not None or name in self._waiters:
            self._notify(name, None)

    def _mark_deleted(self, uid: str) -> None:
        self._deleted_uids[uid] = None
        if len(self._deleted_uids) > _REMEMBERED:
            self._deleted_uids.popitem(last=False)

    def _notify(self, name: str, pod: Json | None) -> None:
        for event in self._waiters.get(name, ()):
            event.set()
        self._changed(name, pod)


def _newer(one: Json, other: Json) -> bool:
    """Return whether metadata has a later version than ``other``; versions are decimal numbers."""
    versions = str(one.get("resourceVersion")), str(other.get("resourceVersion"))
    if all(version.isdecimal() for version in versions):
        return int(versions[0]) > int(versions[1])
    return versions[0] != versions[1]
