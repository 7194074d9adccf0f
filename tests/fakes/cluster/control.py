"""The switches of a cluster that runs in another process, under ``/_fake/`` with the administrator's token.

``POST /_fake/NAME`` with a JSON object of arguments; ``tests.fakes.cluster.process`` is the other end. To add
a switch, add a method here and one there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tests.fakes.cluster.errors import ApiError, bad_request

if TYPE_CHECKING:
    from tests.fakes.cluster.cluster import FakeCluster

PREFIX = "/_fake/"


class Control:
    """Does to the cluster what its methods would do in its own process."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster

    async def answer(self, name: str, body: bytes) -> bytes:
        """The JSON answer to one request. Raises ApiError 400, 404, 504."""
        method = getattr(self, f"_{name}", None) if name in _SWITCHES else None
        if method is None:
            raise ApiError(404, "NotFound", f"there is no switch '{name}'; there are {', '.join(_SWITCHES)}")
        try:
            result = await method(**json.loads(body or b"{}"))
        except (TypeError, ValueError, KeyError) as error:
            raise bad_request(f"switch '{name}': {error}") from None
        except TimeoutError as error:
            raise ApiError(504, "Timeout", str(error)) from None
        return json.dumps(result).encode()

    async def _state(self) -> Mapping[str, Any]:
        kubelet = self.cluster.kubelet
        counts = self.cluster.counters.snapshot()
        return {**counts, "sandboxes": kubelet.boxes, "workers": len(kubelet.workers)}

    async def _reset(self) -> None:
        self.cluster.counters.reset()

    async def _settled(self, timeout_s: float) -> None:
        await self.cluster.settled(timeout_s)


_SWITCHES = tuple(
    name[1:] for name, value in vars(Control).items() if callable(value) and name[0] == "_" and name[1] != "_"
)
