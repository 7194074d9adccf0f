"""Subresources that are more than a part of their object, and reviews that are not stored."""

from __future__ import annotations

import json

from aiohttp import web

from tests.fakes.cluster.auth import Auth
from tests.fakes.cluster.calls import Call
from tests.fakes.cluster.errors import ApiError, not_found
from tests.fakes.cluster.execution import Execution
from tests.fakes.cluster.kubelet import Kubelet
from tests.fakes.cluster.resources import ACCESSREVIEWS, SERVICEACCOUNTS
from tests.fakes.cluster.rest import Answer
from tests.fakes.cluster.store import Store


class Subresources:
    """Answers exec, token, and reviews of one's own access."""

    def __init__(self, store: Store, auth: Auth, kubelet: Kubelet) -> None:
        self.store = store
        self.auth = auth
        self.kubelet = kubelet
        self.execution = Execution(kubelet)

    async def __call__(self, call: Call, request: web.BaseRequest) -> web.StreamResponse | Answer | None:
        """The answer, or None for what the plain verbs serve."""
        if call.resource is ACCESSREVIEWS:
            return self._access_review(call)
        if not call.subresource:
            return None
        if call.subresource not in call.resource.subresources:
            raise ApiError(404, "NotFound", "the server could not find the requested resource")
        record = self.store.get(call.resource, call.namespace, call.name)
        if record is None:
            raise not_found(call.resource, call.name)
        if call.resource is SERVICEACCOUNTS:
            return self._token(call)
        return await self.execution.serve(call, record, request)

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
        )
        review.update(
            apiVersion=ACCESSREVIEWS.api_version, kind=ACCESSREVIEWS.kind, status={"allowed": allowed}
        )
        return Answer(201, json.dumps(review).encode())

    def _token(self, call: Call) -> Answer:
        body = call.object()
        token = self.auth.service_account_token(call.namespace, call.name)
        body.update(apiVersion="authentication.k8s.io/v1", kind="TokenRequest", metadata={"name": call.name})
        body["status"] = {"token": token, "expirationTimestamp": "2099-01-01T00:00:00Z"}
        return Answer(201, json.dumps(body).encode())
