"""pods/exec over websockets, subprotocols v4 and v5 of ``channel.k8s.io``."""

from __future__ import annotations

from aiohttp import web

from tests.fakes.cluster.calls import Call
from tests.fakes.cluster.errors import bad_request
from tests.fakes.cluster.kubelet import Kubelet
from tests.fakes.cluster.store import Record


class Execution:
    """Runs commands in containers."""

    def __init__(self, kubelet: Kubelet) -> None:
        self.kubelet = kubelet

    async def serve(self, call: Call, record: Record, request: web.BaseRequest) -> web.StreamResponse:
        """One exec."""
        raise bad_request("not served yet")
