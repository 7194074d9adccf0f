"""The verbs on stored resources: create, get, list, patch, delete, deletecollection."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass

from tests.fakes.cluster import deletion, objects, patches, selectors
from tests.fakes.cluster.admission import Admission
from tests.fakes.cluster.calls import Call
from tests.fakes.cluster.errors import ApiError, already_exists, bad_request, conflict, gone, not_found
from tests.fakes.cluster.resources import Object
from tests.fakes.cluster.store import Key, Record, Store

_SERVER_FIELDS = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation")


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer: a code, JSON, and warnings for the client's user."""

    code: int
    data: bytes
    warnings: tuple[str, ...] = ()


class Rest:
    """Answers calls from the store."""

    def __init__(self, store: Store, admission: Admission) -> None:
        self.store = store
        self.admission = admission

    def answer(self, call: Call, *, behind: int = 0) -> Answer:
        """Do what the call asks.

        Args:
            behind: lists are answered as of that many versions ago.

        Raises:
            ApiError: it cannot be done.
        """
        match call.verb:
            case "create":
                return self._create(call)
            case "get":
                return Answer(200, self._found(call).data)
            case "list":
                return Answer(200, self._list(call, behind))
            case "patch":
                return self._patch(call)
            case "delete":
                return self._delete(call)
            case "deletecollection":
                return self._delete_collection(call)
        raise ApiError(
            405, "MethodNotAllowed", "the server does not allow this method on the requested resource"
        )

    def _found(self, call: Call) -> Record:
        record = self.store.get(call.resource, call.namespace, call.name)
        if record is None:
            raise not_found(call.resource, call.name)
        return record

    def _create(self, call: Call) -> Answer:
        body = call.object()
        warnings = self.admission.schema(call, body)
        obj = objects.begin(call.resource, body, call.namespace)
        name = obj["metadata"]["name"]
        self.admission.create(call.resource, obj)
        if self.store.get(call.resource, call.namespace, name) is not None:
            raise already_exists(call.resource, name)
        record = self.store.put(call.resource, obj)
        self.admission.created(call.resource, record)
        return Answer(201, record.data, warnings)

    def _patch(self, call: Call) -> Answer:
        record = self._found(call)
        patched = patches.apply(call.content_type, call.body, record.copy())
        warnings = self.admission.schema(call, patched)
        return Answer(200, self._replace(call, record, patched).data, warnings)

    def _replace(self, call: Call, record: Record, obj: Object) -> Record:
        resource, old = call.resource, record.obj
        meta = obj.setdefault("metadata", {})
        if meta.get("name", call.name) != call.name:
            raise bad_request(
                f"the name of the object ({meta['name']}) does not match the name on the URL ({call.name})"
            )
        if meta.get("resourceVersion") not in (None, "", old["metadata"]["resourceVersion"]):
            raise conflict(resource, call.name)
        if meta.get("uid") not in (None, "", record.uid):
            raise conflict(
                resource,
                call.name,
                f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta: {record.uid}",
            )
        obj = _merged(call, old, obj)
        objects.check_metadata(resource, obj)
        self.admission.update(resource, old, obj, call.subresource)
        obj["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
        if obj == old:
            return record
        if obj.get("spec") != old.get("spec") and "generation" in obj["metadata"]:
            obj["metadata"]["generation"] += 1
        new = self.store.put(resource, obj)
        deletion.finish(self.store, resource, new)
        return new

    def _delete(self, call: Call) -> Answer:
        record = self._found(call)
        last, over = deletion.delete(self.store, call.resource, record, _options(call))
        if not over or call.resource.kind == "Pod":
            return Answer(200, last.data)
        details = {"name": call.name, "kind": call.resource.plural, "uid": last.uid}
        if call.resource.group:
            details["group"] = call.resource.group
        body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
        return Answer(200, json.dumps(body).encode())

    def _delete_collection(self, call: Call) -> Answer:
        match = _match(call)
        options = _options(call)
        deleted: list[Record] = []
        for record in self.store.all(call.resource, call.namespace):
            if match is None or match(record.obj):
                deleted.append(deletion.delete(self.store, call.resource, record, options)[0])
        return Answer(200, _list_data(call, self.store.version, [record.data for record in deleted]))

    def _list(self, call: Call, behind: int) -> bytes:
        match, limit = _match(call), call.number("limit")
        asked, token = call.version(), call.query.get("continue", "")
        version, after = self.store.version, None
        if token:
            version, after = _read_token(token)
        elif asked and asked > version:
            raise ApiError(
                504,
                "Timeout",
                f"Too large resource version: {asked}, current: {version}",
                details={"retryAfterSeconds": 1},
            )
        elif behind:
            version = max(1, version - behind)
        keys = self._state(call, version)
        chosen: list[bytes] = []
        last: Key | None = None
        matching = [
            (key, record)
            for key, record in sorted(keys.items())
            if (not call.namespace or key[0] == call.namespace)
            and (after is None or key > after)
            and (match is None or match(record.obj))
        ]
        for key, record in matching[:limit] if limit else matching:
            chosen.append(record.data)
            last = key
        left = len(matching) - len(chosen)
        meta: Object = {}
        if left and last is not None:
            meta["continue"] = _write_token(version, last)
            if match is None:
                meta["remainingItemCount"] = left
        return _list_data(call, version, chosen, meta)

    def _state(self, call: Call, version: int) -> dict[Key, Record]:
        try:
            return self.store.at(call.resource, version)
        except ApiError:
            if "continue" not in call.query:
                raise gone(f"The resourceVersion for the provided list is too old: {version}") from None
            raise gone(
                "The provided continue parameter is too old to display a consistent list result. You can "
                "start a new list without the continue parameter, or use the continue token in this "
                "response to retrieve the remainder of the results."
            ) from None


def _merged(call: Call, old: Object, obj: Object) -> Object:
    """The new object with what a client cannot write taken from the old one."""
    merged = dict(obj)
    if call.subresource == "status":
        merged = {**old, "status": obj.get("status", {})}
        merged["metadata"] = dict(old["metadata"])
        return merged
    if "status" in call.resource.subresources:
        merged.pop("status", None)
        if "status" in old:
            merged["status"] = old["status"]
    meta = dict(obj["metadata"])
    for field in _SERVER_FIELDS:
        meta.pop(field, None)
        if field in old["metadata"]:
            meta[field] = old["metadata"][field]
    meta["name"] = old["metadata"]["name"]
    if "namespace" in old["metadata"]:
        meta["namespace"] = old["metadata"]["namespace"]
    merged["metadata"] = meta
    merged["apiVersion"], merged["kind"] = old["apiVersion"], old["kind"]
    return merged


def _options(call: Call) -> Object:
    options = call.object() if call.body else {}
    if "gracePeriodSeconds" in call.query:
        options.setdefault("gracePeriodSeconds", call.number("gracePeriodSeconds"))
    return options


def _match(call: Call) -> selectors.Match | None:
    return selectors.parse(
        call.resource, call.query.get("labelSelector", ""), call.query.get("fieldSelector", "")
    )


def _list_data(call: Call, version: int, items: list[bytes], meta: Object | None = None) -> bytes:
    head = {
        "kind": f"{call.resource.kind}List",
        "apiVersion": call.resource.api_version,
        "metadata": {"resourceVersion": str(version), **(meta or {})},
    }
    return json.dumps(head).encode()[:-1] + b',"items":[' + b",".join(items) + b"]}"


def _write_token(version: int, last: Key) -> str:
    return base64.urlsafe_b64encode(json.dumps([version, *last]).encode()).decode()


def _read_token(token: str) -> tuple[int, Key]:
    try:
        version, namespace, name = json.loads(base64.urlsafe_b64decode(token))
        return int(version), (namespace, name)
    except ValueError:
        raise bad_request("continue key is not valid") from None
