"""Subresources that are more than a part of their object, and reviews that are not stored."""

from __future__ import annotations

import json

from aiohttp import web

from tests.fakes.cluster import deletion
from tests.fakes.cluster.auth import Auth
from tests.fakes.cluster.calls import Call
from tests.fakes.cluster.disruptions import check_eviction
from tests.fakes.cluster.errors import ApiError, bad_request, conflict, not_found
from tests.fakes.cluster.execution import Execution
from tests.fakes.cluster.kubelet import Kubelet
from tests.fakes.cluster.resources import (
    ACCESSREVIEWS,
    NAMESPACES,
    PODS,
    SELFREVIEWS,
    SERVICEACCOUNTS,
    Object,
)
from tests.fakes.cluster.rest import Answer
from tests.fakes.cluster.store import Record, Store


class Subresources:
    """Answers log, exec, eviction, binding, finalize, token, and self-reviews."""

    def __init__(self, store: Store, auth: Auth, kubelet: Kubelet) -> None:
        self.store = store
        self.auth = auth
        self.kubelet = kubelet
        self.execution = Execution(kubelet)

    async def __call__(self, call: Call, request: web.BaseRequest) -> web.StreamResponse | Answer | None:
        """The answer, or None for what the plain verbs serve."""
        match call.resource, call.subresource:
            case _, "" if call.resource is ACCESSREVIEWS:
                return self._access_review(call)
            case _, "" if call.resource is SELFREVIEWS:
                return self._self_review(call)
            case _, "" | "status":
                return None
        if call.subresource not in call.resource.subresources:
            raise ApiError(404, "NotFound", "the server could not find the requested resource")
        record = self.store.get(call.resource, call.namespace, call.name)
        if record is None:
            raise not_found(call.resource, call.name)
        match call.subresource:
            case "log":
                return self._log(call, record)
            case "exec":
                return await self.execution.serve(call, record, request)
            case "eviction":
                return self._evict(call, record)
            case "binding":
                return self._bind(call, record)
            case "finalize":
                return self._finalize(call, record)
            case "token":
                return self._token(call)
        raise bad_request(f"{call.resource.plural}/{call.subresource} is not served here")

    def _access_review(self, call: Call) -> Answer:
        review = call.object()
        asked = (review.get("spec") or {}).get("resourceAttributes") or {}
        plural = asked.get("resource", "")
        if sub := asked.get("subresource"):
            plural = f"{plural}/{sub}"
        allowed = self.auth.allows(
            call.user,
            asked.get("verb", ""),
            asked.get("group", ""),
            plural,
            asked.get("namespace", ""),
            asked.get("name", ""),
        )
        review.update(
            apiVersion=ACCESSREVIEWS.api_version, kind=ACCESSREVIEWS.kind, status={"allowed": allowed}
        )
        return Answer(201, json.dumps(review).encode())

    def _self_review(self, call: Call) -> Answer:
        info = {"username": call.user.name, "groups": list(call.user.groups)}
        review: Object = {"apiVersion": SELFREVIEWS.api_version, "kind": SELFREVIEWS.kind, "metadata": {}}
        return Answer(201, json.dumps({**review, "status": {"userInfo": info}}).encode())

    def _log(self, call: Call, record: Record) -> web.Response:
        log = self.kubelet.log(record.uid, call.query.get("container", ""))
        if log is None:
            raise bad_request(
                f'container "{call.query.get("container", "")}" in pod "{call.name}" has no log'
            )
        lines = log.splitlines(keepends=True)
        if (tail := call.number("tailLines")) is not None:
            lines = lines[len(lines) - tail :] if tail < len(lines) else lines
        data = b"".join(lines)[: call.number("limitBytes")]
        return web.Response(body=data, content_type="text/plain")

    def _evict(self, call: Call, record: Record) -> Answer:
        body = call.object()
        check_eviction(self.store, record.obj)
        if not call.dry_run:
            deletion.delete(self.store, PODS, record, body.get("deleteOptions"))
        return Answer(201, b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","code":201}')

    def _bind(self, call: Call, record: Record) -> Answer:
        if record.obj["spec"].get("nodeName"):
            raise conflict(PODS, call.name, f"pod {call.name} is already assigned to a node")
        obj = record.copy()
        obj["spec"]["nodeName"] = call.object()["target"]["name"]
        self.store.put(PODS, obj)
        return Answer(201, b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","code":201}')

    def _finalize(self, call: Call, record: Record) -> Answer:
        obj = record.copy()
        obj["spec"] = call.object().get("spec") or {}
        return Answer(200, self.store.put(NAMESPACES, obj).data)

    def _token(self, call: Call) -> Answer:
        body = call.object()
        token = self.auth.service_account_token(call.namespace, call.name)
        body.update(apiVersion="authentication.k8s.io/v1", kind="TokenRequest", metadata={"name": call.name})
        body["status"] = {"token": token, "expirationTimestamp": "2099-01-01T00:00:00Z"}
        assert call.resource is SERVICEACCOUNTS
        return Answer(201, json.dumps(body).encode())
