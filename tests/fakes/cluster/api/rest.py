"""The verbs on resources: create, get, list, patch (merge patches), delete, deletecollection, watch."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from tests.fakes.cluster.api import objects, schema
from tests.fakes.cluster.api.admission import Admission
from tests.fakes.cluster.api.auth import Auth
from tests.fakes.cluster.api.calls import Call, Match
from tests.fakes.cluster.api.errors import ApiError, already_exists, conflict, not_found
from tests.fakes.cluster.api.resources import ACCESSREVIEWS, PODS, Object, Resource
from tests.fakes.cluster.api.store import Change, Record, Store

_MERGE_PATCH = "application/merge-patch+json"
_SERVER_FIELDS = (
    "uid",
    "name",
    "namespace",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "resourceVersion",
)
_DEFAULT_WATCH_S = 1800


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer: a code and JSON."""

    code: int
    data: bytes


class Rest:
    """Answers calls from the store."""

    def __init__(self, store: Store, admission: Admission, auth: Auth) -> None:
        self.store = store
        self.admission = admission
        self.auth = auth

    def answer(self, call: Call, *, behind: int = 0) -> Answer:
        """Do what the call asks.

        Args:
            behind: lists are answered as of that many versions ago.

        Raises:
            ApiError: it cannot be done.
        """
        match call.verb:
            case "create" if call.subresource:
                return Answer(201, json.dumps(self._token(call)).encode())
            case "create":
                return self._create(call)
            case _ if call.subresource:
                pass
            case "get":
                return Answer(200, self._record(call).data)
            case "list":
                return self._list(call, behind)
            case "patch":
                return self._patch(call)
            case "delete":
                return Answer(200, delete(self.store, call.resource, self._record(call), call.object()).data)
            case "deletecollection":
                return self._delete_collection(call)
        raise ApiError(
            405, "MethodNotAllowed", "the server does not allow this method on the requested resource"
        )

    def _record(self, call: Call) -> Record:
        record = self.store.get(call.resource, call.namespace, call.name)
        if record is None:
            raise not_found(call.resource, call.name)
        return record

    def _create(self, call: Call) -> Answer:
        body = call.object()
        if call.resource is ACCESSREVIEWS:
            return Answer(201, json.dumps(self._review(call, body)).encode())
        schema.check(call.resource, body)
        obj = objects.begin(call.resource, body, call.namespace)
        name = obj["metadata"]["name"]
        self.admission.create(call.resource, obj)
        if self.store.get(call.resource, call.namespace, name) is not None:
            raise already_exists(call.resource, name)
        record = self.store.put(call.resource, obj)
        self.admission.created(call.resource, record)
        return Answer(201, record.data)

    def _review(self, call: Call, review: Object) -> Object:
        """Answer a SelfSubjectAccessReview; it is not stored."""
        asked = review["spec"]["resourceAttributes"]
        sub = asked.get("subresource")
        plural = f"{asked['resource']}/{sub}" if sub else asked["resource"]
        namespace = asked.get("namespace", "")
        allowed = self.auth.allows(call.user, asked["verb"], asked.get("group", ""), plural, namespace)
        return review | {"status": {"allowed": allowed}}

    def _token(self, call: Call) -> Object:
        """Answer a TokenRequest of a service account."""
        self._record(call)
        token = self.auth.service_account_token(call.namespace, call.name)
        return call.object() | {"status": {"token": token, "expirationTimestamp": "2099-01-01T00:00:00Z"}}

    def _patch(self, call: Call) -> Answer:
        record = self._record(call)
        if call.content_type != _MERGE_PATCH:
            message = f"the body of the request was in an unknown format - {call.content_type}"
            raise ApiError(415, "UnsupportedMediaType", message)
        patch = call.object()
        schema.check(call.resource, patch)
        obj, old = _merged(record.copy(), patch), record.obj
        if obj["metadata"].get("resourceVersion") != old["metadata"]["resourceVersion"]:
            raise conflict(call.resource, call.name)
        obj["metadata"] |= {key: old["metadata"][key] for key in _SERVER_FIELDS if key in old["metadata"]}
        if "status" in old:
            obj["status"] = old["status"]
        objects.check_metadata(call.resource, obj)
        self.admission.update(call.resource, old, obj)
        return Answer(200, (record if obj == old else self.store.put(call.resource, obj)).data)

    def _delete_collection(self, call: Call) -> Answer:
        match, options = call.selection(), call.object()
        deleted = [
            delete(self.store, call.resource, record, options)
            for record in self.store.all(call.resource, call.namespace)
            if match(record.obj)
        ]
        return _listed(call, self.store.version, deleted)

    def _list(self, call: Call, behind: int) -> Answer:
        match, limit = call.selection(), call.number("limit")
        version = max(1, self.store.version - behind)
        records = [
            record
            for key, record in sorted(self.store.at(call.resource, version).items())
            if (not call.namespace or key[0] == call.namespace) and match(record.obj)
        ]
        if limit is not None and len(records) > limit:
            raise ApiError(501, "NotImplemented", f"{len(records)} objects need pages, which are not served")
        return _listed(call, version, records)

    async def watch(self, call: Call, bookmark_every_s: float) -> AsyncIterator[bytes]:
        """Yield the events after the call's version until its ``timeoutSeconds``."""
        resource, bookmarks = call.resource, call.flag("allowWatchBookmarks")
        ends = time.monotonic() + (call.number("timeoutSeconds") or _DEFAULT_WATCH_S)
        match = call.selection()
        position = self.store.position(resource, call.number("resourceVersion"))
        while (left := ends - time.monotonic()) > 0:
            wait = min(left, bookmark_every_s) if bookmarks else left
            changes, position = await self.store.changes(resource, position, wait)
            for change in changes:
                seen = _seen(change, match)
                if seen is not None and change.key[0] == call.namespace:
                    yield event(seen[0], seen[1].data)
            if not changes and bookmarks:
                yield _bookmark(call, self.store.version)


def delete(store: Store, resource: Resource, record: Record, options: Object | None = None) -> Record:
    """Begin or finish an object's end; a pod on a node ends when its kubelet says so (grace above 0).

    Args:
        options: ``DeleteOptions``.

    Returns:
        The object as it is now.
    """
    meta = record.obj["metadata"]
    grace = _grace(resource, record, options or {})
    if not grace:
        return store.remove(resource, (meta.get("namespace", ""), meta["name"]))
    if meta.get("deletionTimestamp") and meta["deletionGracePeriodSeconds"] <= grace:
        return record
    obj = record.copy()
    obj["metadata"].setdefault("deletionTimestamp", objects.now())
    obj["metadata"]["deletionGracePeriodSeconds"] = grace
    return store.put(resource, obj)


def _grace(resource: Resource, record: Record, options: Object) -> int:
    if resource is not PODS:
        return 0
    spec, status = record.obj["spec"], record.obj["status"]
    if not spec.get("nodeName") or status["phase"] in ("Succeeded", "Failed"):
        return 0
    grace: int = options.get("gracePeriodSeconds", spec["terminationGracePeriodSeconds"])
    return max(0, grace)


def event(kind: str, data: bytes) -> bytes:
    """Return one event of a watch."""
    return b'{"type":"' + kind.encode() + b'","object":' + data + b"}\n"


def _bookmark(call: Call, version: int) -> bytes:
    meta = {"resourceVersion": str(version), "creationTimestamp": None}
    obj = {"kind": call.resource.kind, "apiVersion": call.resource.api_version, "metadata": meta}
    return event("BOOKMARK", json.dumps(obj).encode())


def _seen(change: Change, match: Match) -> tuple[str, Record] | None:
    """Return the event of a selecting watcher: leaving the selection is a deletion, entering it an
    addition."""
    before = change.old is not None and match(change.old.obj)
    if change.type != "DELETED" and match(change.new.obj):
        return ("MODIFIED" if before else "ADDED"), change.new
    return ("DELETED", change.new) if before else None


def _merged(old: Any, patch: Any) -> Any:
    """Return the object with a patch applied (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), value)
    return merged


def _listed(call: Call, version: int, records: list[Record]) -> Answer:
    head = {
        "kind": f"{call.resource.kind}List",
        "apiVersion": call.resource.api_version,
        "metadata": {"resourceVersion": str(version)},
    }
    items = b",".join(record.data for record in records)
    return Answer(200, json.dumps(head).encode()[:-1] + b',"items":[' + items + b"]}")
