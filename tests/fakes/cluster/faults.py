"""Fault switches: what goes wrong, for which requests or pods, how often; drawn from a seeded generator.

    fault = Fault(FaultKind.TOO_MANY_REQUESTS, verbs={"create"}, resources={"pods"}, count=3)
    cluster.faults.add(fault)
    ...
    assert fault.hits == 3

To add a kind: a member here, and the place that draws it (``api.server`` for requests and watches,
``nodes.worker`` for pods, ``nodes.containers`` for connections to agents).
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum


class FaultKind(StrEnum):
    """What goes wrong."""

    TOO_MANY_REQUESTS = "too_many_requests"
    """429 with Retry-After; nothing was done."""
    SERVER_ERROR = "server_error"
    """500; nothing was done."""
    FORBIDDEN = "forbidden"
    """403 of an API server that has not loaded its RBAC rules yet; nothing was done. Administrators never see
    it. Access reviews are concerned like everything else, under ``selfsubjectaccessreviews``: they deny."""
    CONFLICT = "conflict"
    """409 Conflict; nothing was done."""
    HANG = "hang"
    """Nothing is done and no answer ever comes; the connection stays."""
    HALF_OPEN = "half_open"
    """The answer begins and never ends: a watch falls silent, anything else stops in the middle of its
    body."""
    RESET = "reset"
    """The connection breaks before anything was done."""
    SLOW = "slow"
    """The answer comes ``delay_s`` later."""
    CREATED_BUT_ERROR = "created_but_error"
    """Everything was done, and the client is told 500."""
    CREATED_BUT_RESET = "created_but_reset"
    """Everything was done, and the connection breaks."""
    STALE_LIST = "stale_list"
    """A list is answered as of ``behind`` versions ago."""
    DROP_WATCH = "drop_watch"
    """A watch's connection breaks after ``delay_s``."""
    GONE = "gone"
    """A watch that begins at a version is told 410."""
    DUPLICATE = "duplicate"
    """A watch delivers every change twice."""
    START_FAILURE = "start_failure"
    """The runtime cannot start a container: RunContainerError, and the pod fails."""
    EVICT = "evict"
    """A running pod is evicted after ``delay_s``."""
    CUT = "cut"
    """A client's connection to an agent breaks after ``delay_s``."""
    STUCK_TERMINATING = "stuck_terminating"
    """A pod's end is confirmed only ``delay_s`` later."""


@dataclass(slots=True, eq=False)
class Fault:
    """One switch. Empty collections and patterns match everything."""

    kind: FaultKind
    verbs: Collection[str] = ()
    """For requests: get, list, watch, create, patch, delete, deletecollection."""
    resources: Collection[str] = ()
    """For requests: plural names, e.g. ``pods``, ``pods/exec``."""
    name: str = ""
    """Pattern searched in the object's name."""
    probability: float = 1.0
    count: int | None = None
    """How many times it strikes; None for ever."""
    delay_s: float = 0.0
    behind: int = 5
    hits: int = field(default=0, init=False)
    """How often it struck."""

    def concerns(self, verb: str, resource: str, name: str) -> bool:
        """Whether it could strike there."""
        if self.count is not None and self.hits >= self.count:
            return False
        if (self.verbs and verb not in self.verbs) or (self.resources and resource not in self.resources):
            return False
        return not self.name or re.search(self.name, name) is not None


class Faults:
    """The switches of one cluster."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._faults: list[Fault] = []

    def add(self, fault: Fault) -> Fault:
        """Switch a fault on."""
        self._faults.append(fault)
        return fault

    def clear(self) -> None:
        """Switch everything off."""
        self._faults.clear()

    def all(self) -> list[Fault]:
        """What is switched on."""
        return list(self._faults)

    def draw(self, *kinds: FaultKind, verb: str = "", resource: str = "", name: str = "") -> Fault | None:
        """The first fault of these kinds that strikes here and now; it is counted."""
        for fault in self._faults:
            concerned = fault.kind in kinds and fault.concerns(verb, resource, name)
            if concerned and self._random.random() < fault.probability:
                fault.hits += 1
                return fault
        return None
