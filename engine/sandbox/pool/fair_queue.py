"""Fair queue of sandbox requests: round-robin over lanes, first in first out within a lane."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass

from engine.sandbox.pool.lease import Lease


@dataclass(slots=True, eq=False)
class Ticket:
    """A waiting lease; ``admitted`` is done when its sandbox may start."""

    lease: Lease
    admitted: asyncio.Future[None]


class FairQueue:
    """Waiting tickets by the lane of their sandbox."""

    def __init__(self) -> None:
        self._lanes: OrderedDict[str, deque[Ticket]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, ticket: Ticket) -> None:
        """Append a ticket to its lane."""
        self._lanes.setdefault(ticket.lease.spec.lane, deque()).append(ticket)
        self._count += 1

    def next(self) -> Ticket:
        """Remove and return the first ticket of the next lane; the queue must not be empty."""
        lane, tickets = next(iter(self._lanes.items()))
        self._count -= 1
        ticket = tickets.popleft()
        if tickets:
            self._lanes.move_to_end(lane)
        else:
            del self._lanes[lane]
        return ticket

    def remove(self, ticket: Ticket) -> bool:
        """Remove a ticket; return False when it was not in the queue."""
        lane = ticket.lease.spec.lane
        tickets = self._lanes.get(lane)
        if tickets is None or ticket not in tickets:
            return False
        tickets.remove(ticket)
        self._count -= 1
        if not tickets:
            del self._lanes[lane]
        return True
