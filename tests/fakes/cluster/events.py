"""Events about objects, as ``kubectl describe`` shows them; the oldest are forgotten, as their TTL would
do."""

from __future__ import annotations

from collections import deque

from tests.fakes.cluster.objects import begin, now, random_name
from tests.fakes.cluster.resources import EVENTS, NAMESPACES, Object
from tests.fakes.cluster.store import Key, Store

_KEPT = 4000


class Recorder:
    """Writes events; the same one again raises its count."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._recent: dict[tuple[str, str, str], Key] = {}
        self._order: deque[tuple[tuple[str, str, str], Key]] = deque()

    def record(self, about: Object, reason: str, message: str, *, source: str, warning: bool = False) -> None:
        """Write an event about an object."""
        meta = about["metadata"]
        namespace = meta.get("namespace", "default")
        same = (meta["uid"], reason, message)
        known = self._recent.get(same)
        old = self.store.get(EVENTS, *known) if known else None
        if old is not None:
            again = old.copy()
            again["count"] += 1
            again["lastTimestamp"] = now()
            self.store.put(EVENTS, again)
            return
        place = self.store.get(NAMESPACES, "", namespace)
        if place is None or place.obj["metadata"].get("deletionTimestamp"):
            return
        event = {
            "metadata": {"name": f"{meta['name']}.{random_name(16)}"},
            "involvedObject": {
                "kind": about["kind"],
                "apiVersion": about["apiVersion"],
                "namespace": meta.get("namespace"),
                "name": meta["name"],
                "uid": meta["uid"],
                "resourceVersion": meta["resourceVersion"],
            },
            "reason": reason,
            "message": message,
            "type": "Warning" if warning else "Normal",
            "source": {"component": source},
            "reportingComponent": source,
            "reportingInstance": "",
            "firstTimestamp": now(),
            "lastTimestamp": now(),
            "count": 1,
        }
        record = self.store.put(EVENTS, begin(EVENTS, event, namespace))
        key = (namespace, record.obj["metadata"]["name"])
        self._recent[same] = key
        self._order.append((same, key))
        self._forget()

    def _forget(self) -> None:
        while len(self._order) > _KEPT:
            same, key = self._order.popleft()
            self._recent.pop(same, None)
            if self.store.get(EVENTS, *key) is not None:
                self.store.remove(EVENTS, key)
