"""Whose turn it is for a place in the pool: lanes take turns, each is first come, first served."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass

from engine.sandbox.lease import Lease


@dataclass(slots=True, eq=False)
class Ticket:
    """A lease that waits; ``turn`` is done when it may go on."""

    lease: Lease
    turn: asyncio.Future[None]


class Turns:
    """The tickets that wait, by the lane of their sandbox."""

    def __init__(self) -> None:
        self._lanes: OrderedDict[str, deque[Ticket]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, ticket: Ticket) -> None:
        """Stand at the end of its lane."""
        self._lanes.setdefault(ticket.lease.spec.lane, deque()).append(ticket)
        self._count += 1

    def next(self) -> Ticket:
        """Take the first ticket of the lane whose turn it is; there must be one."""
        lane, tickets = next(iter(self._lanes.items()))
        self._count -= 1
        ticket = tickets.popleft()
        if tickets:
            self._lanes.move_to_end(lane)
        else:
            del self._lanes[lane]
        return ticket

    def remove(self, ticket: Ticket) -> bool:
        """Leave the queue; False when it no longer waited."""
        lane = ticket.lease.spec.lane
        tickets = self._lanes.get(lane)
        if tickets is None or ticket not in tickets:
            return False
        tickets.remove(ticket)
        self._count -= 1
        if not tickets:
            del self._lanes[lane]
        return True
