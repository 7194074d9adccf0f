"""Replica of a policy: one vLLM server with its state, requests in flight and latest metrics."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

from engine.inference.vllm.clients.client import VllmClient
from engine.inference.vllm.clients.facts import EngineMetrics
from engine.inference.vllm.servers.server import VllmServer

STABLE_S = 600.0
"""Time of service after which the count of consecutive restarts is reset, seconds."""


class ReplicaState(StrEnum):
    """State of a replica; only a ``ready`` one serves requests."""

    STARTING = "starting"
    """The server starts, or has yet to prove its first weights."""
    READY = "ready"
    PUBLISHING = "publishing"
    RESTARTING = "restarting"
    LEFT_OUT = "left_out"


@dataclass(slots=True, eq=False, kw_only=True)
class Replica:
    """One server; ``server`` is None for an attached one, which is not ours to stop."""

    name: str
    server: VllmServer | None = None
    _client: VllmClient | None = None
    """None before the first start; replaced at each start."""
    state: ReplicaState = ReplicaState.STARTING
    detail: str = ""
    """Reason of the state, where it is not ``ready``."""
    version: int | None = None
    """Version of the weights that it has proven to serve."""
    cache_tokens: int = 0
    """Capacity of its KV cache, tokens."""
    is_up: bool = False
    """True once the server has answered since its last start."""
    incarnation: int = 0
    """Number of failures; requests sent in an earlier incarnation report no new failure."""
    trusted_from: int = 0
    """First incarnation whose answers are accepted: an earlier one answered garbage."""
    restarts: int = 0
    """Number of restarts since the policy was opened."""
    reserved: int = 0
    """Tokens of its cache reserved for conversations."""
    conversations: int = 0
    requests: set[asyncio.Task[object]] = field(default_factory=set)
    """Requests in flight."""
    load: Load = field(default_factory=lambda: Load())
    strikes: deque[float] = field(default_factory=deque)
    """Times of failures that a healthy server survived, monotonic seconds."""
    restarts_in_a_row: int = 0
    """Restarts since it last served for ``STABLE_S``."""
    serving_since: float | None = None
    """Time at which it proved its first weights since its last start, monotonic seconds."""

    @classmethod
    def attached(cls, name: str, client: VllmClient) -> Replica:
        """Return a replica for a server that is already running."""
        return cls(name=name, _client=client)

    @property
    def client(self) -> VllmClient:
        """Return the client; the server must have been started."""
        assert self._client is not None, f"{self.name} has not been started"
        return self._client

    async def connect(self, client: VllmClient | None) -> None:
        """Replace the client; the previous one is closed."""
        previous, self._client = self._client, client
        if previous is not None:
            await previous.close()

    @property
    def is_ready(self) -> bool:
        """Return whether it may serve requests."""
        return self.state is ReplicaState.READY

    @property
    def keeps_conversations(self) -> bool:
        """Return whether it keeps its conversations: it is ready or in a publication."""
        return self.state in (ReplicaState.READY, ReplicaState.PUBLISHING)

    @property
    def is_left_out(self) -> bool:
        """Return whether it is left out."""
        return self.state is ReplicaState.LEFT_OUT

    def may_restart(self, limit: int) -> bool:
        """Return whether a restart is within the limit; ``STABLE_S`` of service resets the count."""
        if self.serving_since is not None and time.monotonic() - self.serving_since >= STABLE_S:
            self.restarts_in_a_row = 0
        self.serving_since = None
        return self.restarts_in_a_row < limit

    def strike(self, *, within_s: float) -> int:
        """Count a failure that the server survived; return their number in the last ``within_s``."""
        now = time.monotonic()
        self.strikes.append(now)
        while now - self.strikes[0] > within_s:
            self.strikes.popleft()
        return len(self.strikes)

    def interrupt(self) -> None:
        """Cancel the requests in flight; their callers send them again."""
        for task in self.requests:
            task.cancel()


@dataclass(slots=True)
class Load:
    """Metrics of a replica over time; the server's counters restart with it."""

    latest: EngineMetrics | None = None
    at: float = 0.0
    """Time of ``latest``, monotonic seconds."""
    prefix_queries: int = 0
    prefix_hits: int = 0
    tokens_per_s: float = 0.0
    """Rate between the last two measurements."""
    prefix_hit_rate: float = 0.0
    """Share of prompt tokens found in the prefix cache, between the last two measurements with any."""

    def restart(self) -> None:
        """Handle a restart of the server: its counters begin at zero."""
        self.latest = None
        self.tokens_per_s = 0.0

    def observe(self, now: EngineMetrics) -> None:
        """Add a measurement."""
        at, before = time.monotonic(), self.latest
        generated = _growth(now.generated_tokens, before.generated_tokens if before else 0)
        queries = _growth(now.prefix_queries, before.prefix_queries if before else 0)
        hits = _growth(now.prefix_hits, before.prefix_hits if before else 0)
        if before is not None:
            self.prefix_queries += queries
            self.prefix_hits += hits
            self.tokens_per_s = generated / max(at - self.at, 1e-3)
            if queries:
                self.prefix_hit_rate = min(hits / queries, 1.0)
        self.latest, self.at = now, at


def _growth(now: int, before: int) -> int:
    """Return the growth of a counter that may have started again from zero."""
    return now - before if now >= before else now
