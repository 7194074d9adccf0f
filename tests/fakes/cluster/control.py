"""The switches of a cluster that runs in another process, under ``/_fake/`` with the administrator's token.

``POST /_fake/NAME`` with a JSON object of arguments; ``tests.fakes.cluster.process`` is the other end. To add
a switch, add a method here and one there.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tests.fakes.cluster.errors import ApiError, bad_request
from tests.fakes.cluster.faults import Fault, FaultKind
from tests.fakes.cluster.nodes import NodeSpec

if TYPE_CHECKING:
    from tests.fakes.cluster.cluster import FakeCluster

PREFIX = "/_fake/"


class Control:
    """Does to the cluster what its methods would do in its own process."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self._faults: dict[int, Fault] = {}

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
        hits = {str(number): fault.hits for number, fault in self._faults.items()}
        counts = self.cluster.counters.snapshot()
        return {**counts, "sandboxes": kubelet.boxes, "workers": len(kubelet.workers), "fault_hits": hits}

    async def _reset(self) -> None:
        self.cluster.counters.reset()

    async def _fault(self, kind: str, **settings: Any) -> int:
        fault = self.cluster.faults.add(Fault(FaultKind(kind), **settings))
        number = len(self._faults)
        self._faults[number] = fault
        return number

    async def _unfault(self, number: int | None = None) -> None:
        for fault in self._faults.values() if number is None else [self._faults[number]]:
            self.cluster.faults.remove(fault)

    async def _image(self, reference: str, local: str | None = None, pull_s: float = 0.0) -> None:
        self.cluster.registry.add(reference, local, pull_s=pull_s)

    async def _evict(self, namespace: str, name: str) -> None:
        self.cluster.evict(namespace, name)

    async def _kill_for_memory(self, namespace: str, name: str) -> None:
        self.cluster.kill_for_memory(namespace, name)

    async def _add_node(self, **spec: Any) -> None:
        self.cluster.nodes.add(NodeSpec(**spec))

    async def _lose_node(self, name: str) -> None:
        self.cluster.nodes.lose(name)

    async def _recover_node(self, name: str) -> None:
        self.cluster.nodes.recover(name)

    async def _remove_node(self, name: str) -> None:
        self.cluster.nodes.remove(name)

    async def _compact(self) -> None:
        self.cluster.store.compact()

    async def _settled(self, timeout_s: float) -> None:
        await self.cluster.settled(timeout_s)


def fault_settings(fault: Fault) -> dict[str, Any]:
    """A fault as JSON."""
    settings = dataclasses.asdict(fault)
    del settings["hits"]
    return {**settings, "verbs": sorted(fault.verbs), "resources": sorted(fault.resources)}


_SWITCHES = tuple(
    name[1:] for name, value in vars(Control).items() if callable(value) and name[0] == "_" and name[1] != "_"
)
