"""The verbs on stored resources: create, get, list, patch (merge patches), delete, deletecollection."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any

from tests.fakes.cluster import deletion, objects, schema, selectors
from tests.fakes.cluster.admission import Admission
from tests.fakes.cluster.calls import Call
from tests.fakes.cluster.errors import ApiError, already_exists, bad_request, conflict, gone, not_found
from tests.fakes.cluster.resources import Object
from tests.fakes.cluster.store import Key, Record, Store

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


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer: a code and JSON."""

    code: int
    data: bytes


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
        schema.check(call.resource, body)
        obj = objects.begin(call.resource, body, call.namespace)
        name = obj["metadata"]["name"]
        self.admission.create(call.resource, obj)
        if self.store.get(call.resource, call.namespace, name) is not None:
            raise already_exists(call.resource, name)
        record = self.store.put(call.resource, obj)
        self.admission.created(call.resource, record)
        return Answer(201, record.data)

    def _patch(self, call: Call) -> Answer:
        record = self._found(call)
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

    def _delete(self, call: Call) -> Answer:
        record = self._found(call)
        return Answer(200, deletion.delete(self.store, call.resource, record, call.object()).data)

    def _delete_collection(self, call: Call) -> Answer:
        match, options = selectors.parse(call), call.object()
        deleted = [
            deletion.delete(self.store, call.resource, record, options).data
            for record in self.store.all(call.resource, call.namespace)
            if match(record.obj)
        ]
        return Answer(200, _list_data(call, self.store.version, deleted, {}))

    def _list(self, call: Call, behind: int) -> bytes:
        match, limit = selectors.parse(call), call.number("limit")
        version, after = max(1, self.store.version - behind), None
        if token := call.query.get("continue", ""):
            version, after = _read_token(token)
        matching = [
            (key, record)
            for key, record in sorted(self._state(call, version).items())
            if (not call.namespace or key[0] == call.namespace)
            and (after is None or key > after)
            and match(record.obj)
        ]
        page = matching[:limit]
        more = {"continue": _write_token(version, page[-1][0])} if len(page) < len(matching) else {}
        return _list_data(call, version, [record.data for _, record in page], more)

    def _state(self, call: Call, version: int) -> dict[Key, Record]:
        try:
            return self.store.at(call.resource, version)
        except ApiError:
            raise gone(f"The resourceVersion for the provided list is too old: {version}") from None


def _merged(old: Any, patch: Any) -> Any:
    """The object with a patch applied (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), value)
    return merged


def _list_data(call: Call, version: int, items: list[bytes], meta: Object) -> bytes:
    head = {
        "kind": f"{call.resource.kind}List",
        "apiVersion": call.resource.api_version,
        "metadata": {"resourceVersion": str(version), **meta},
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
