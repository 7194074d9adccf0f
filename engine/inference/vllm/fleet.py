"""Lifecycle of a policy's replicas: start, proof, restart, exclusion and recovery.

    starting ─▶ ready ⇄ publishing
                  │ fails
                  ├─ ours ─────▶ restarting ─▶ ready, or left_out after ``max_restarts`` in a row
                  └─ attached ─▶ left_out ⇄ ready, whenever it is healthy and has proven its weights

A replica becomes ready only after it has proven to serve the current weights. Our own servers are stopped
before they are started again; attached ones are never stopped.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Literal, Protocol

import structlog

from engine.config.policies import VllmConfig
from engine.errors import EngineError, TrainyardError, describe_error
from engine.inference.vllm.clients.client import VllmClient
from engine.inference.vllm.replicas import Replica, ReplicaState

STRIKES = 3
"""Failures within ``STRIKE_WINDOW_S`` after which an engine that seems healthy is restarted."""
STRIKE_WINDOW_S = 60.0
_CHECK_S = 10.0
"""Maximum time of a health check, seconds."""
_DRAIN_S = 5.0
"""Maximum time for requests to notice that their server has ended, seconds."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
"""Pauses between checks of an attached server that failed, seconds; doubled each time."""

log = structlog.get_logger("engines")
_FAILURES = (TrainyardError, OSError, TimeoutError)
"""Errors that a broken server causes; any other is a defect of this program."""


class Prover(Protocol):
    """Interface that restores a server's weights and verifies that it serves them."""

    async def restore(self, client: VllmClient) -> bool:
        """Load the current weights; return whether the server has proven to serve them."""


class FleetObserver(Protocol):
    """Observer of replicas."""

    def changed(self) -> None:
        """Handle a change of a replica's state."""

    def alert(self, severity: Literal["info", "warning", "error"], code: str, message: str) -> None:
        """Report a condition that needs attention."""

    def lost(self, reason: str) -> None:
        """Handle the loss of all replicas for longer than the stall time-out."""


class Fleet:
    """Supervisor of replicas; call ``start`` once and ``close`` at the end.

    Args:
        replicas: in state ``starting``.
        config: limits and times.
        prover: used once ``version`` is set.
        observer: receives changes and alerts.
    """

    version: int | None = None
    """Version that replicas have to prove; None until the first publication."""

    def __init__(
        self, replicas: Sequence[Replica], config: VllmConfig, *, prover: Prover, observer: FleetObserver
    ) -> None:
        self.replicas = replicas
        self.weights = asyncio.Lock()
        """Held while weights of any replica change or are proven."""
        self._config = config
        self._prover = prover
        self._observer = observer
        self._tasks: set[asyncio.Task[None]] = set()
        self._losing: asyncio.TimerHandle | None = None
        self._changed = asyncio.Condition()
        self._closing = False

    @property
    def ready(self) -> list[Replica]:
        """Return the replicas that serve."""
        return [replica for replica in self.replicas if replica.is_ready]

    def start(self) -> None:
        """Start our own servers and connect to attached ones, in the background."""
        for replica in self.replicas:
            self._spawn(self._begin(replica))

    async def started(self) -> list[Replica]:
        """Wait until every replica is up or left out; return those that are up."""
        await self._until(lambda: all(replica.is_left_out or replica.is_up for replica in self.replicas))
        return [replica for replica in self.replicas if replica.is_up]

    async def any_ready(self) -> bool:
        """Wait until a replica is ready or all are left out; return whether one is ready."""
        await self._until(lambda: bool(self.ready) or all(r.is_left_out for r in self.replicas))
        return bool(self.ready)

    async def close(self) -> None:
        """Cancel all work and stop our own servers."""
        self._closing = True
        if self._losing is not None:
            self._losing.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for replica in self.replicas:
            replica.interrupt()
        servers = [replica.server for replica in self.replicas if replica.server is not None]
        await asyncio.gather(*(server.stop() for server in servers), return_exceptions=True)
        await asyncio.gather(*(replica.connect(None) for replica in self.replicas), return_exceptions=True)

    # --- changes of state --------------------------------------------------------------------------

    def set_state(self, replica: Replica, state: ReplicaState, detail: str = "") -> None:
        """Change a replica's state."""
        replica.state, replica.detail = state, detail
        if self._closing:
            return
        self._watch_for_loss()
        self._observer.changed()
        self._spawn(self._notify())

    def mark_ready(self, replica: Replica) -> None:
        """Mark a replica as ready: it has proven the current version."""
        replica.version = self.version
        replica.strikes.clear()
        if replica.serving_since is None:
            replica.serving_since = time.monotonic()
        self.set_state(replica, ReplicaState.READY)

    def reset_proofs(self, replicas: Sequence[Replica]) -> None:
        """Reset replicas until the next publication: the last one was not completed.

        No version is current until then, so restarting replicas wait for it too. Responses in flight are
        rejected.
        """
        self.version = None
        for replica in replicas:
            replica.version = None
            replica.incarnation += 1
            replica.trusted_from = replica.incarnation
            replica.interrupt()
            self.set_state(replica, ReplicaState.STARTING, "a publication was not completed")

    async def request_failed(self, replica: Replica, incarnation: int, error: EngineError) -> None:
        """Check whether a replica caused a request's failure; if so, take it out of service."""
        survived = error.kind == "lost" and await self._is_healthy(replica)
        if incarnation != replica.incarnation or not replica.is_ready:
            return
        if not survived or replica.strike(within_s=STRIKE_WINDOW_S) >= STRIKES:
            self.fail(replica, str(error), trusted=error.kind != "garbage")

    def fail(self, replica: Replica, reason: str, *, trusted: bool = True) -> None:
        """Take a replica out of service and start its recovery.

        Args:
            replica: ready, or in a publication.
            reason: what is wrong with it.
            trusted: whether its sampled tokens are kept.
        """
        replica.incarnation += 1
        replica.is_up = False
        replica.version = None
        if not trusted:
            replica.trusted_from = replica.incarnation
        if replica.server is None:
            self._leave_out(replica, reason)
            self._spawn(self._recover(replica))
        else:
            reason = f"{reason}; its log is {replica.server.log}"
            self.set_state(replica, ReplicaState.RESTARTING, reason)
            self._spawn(self._restart(replica, reason))

    def _leave_out(self, replica: Replica, reason: str) -> None:
        self._observer.alert("warning", "engine_left_out", f"{replica.name} is left out: {reason}")
        self.set_state(replica, ReplicaState.LEFT_OUT, reason)

    def _watch_for_loss(self) -> None:
        """Start or cancel the timer of the observer's ``lost``, which runs while no replica is left."""
        if not all(replica.is_left_out for replica in self.replicas):
            if self._losing is not None:
                self._losing.cancel()
                self._losing = None
        elif self._losing is None:
            reasons = "; ".join(f"{replica.name}: {replica.detail}" for replica in self.replicas)
            message = f"no engine is left ({reasons})"
            self._observer.alert("error", "engines_lost", message)
            loop = asyncio.get_running_loop()
            self._losing = loop.call_later(self._config.stall_timeout_s, self._observer.lost, message)

    async def _is_healthy(self, replica: Replica) -> bool:
        """Return whether the server is alive and answers."""
        if replica.server is not None and not replica.server.is_alive():
            return False
        try:
            async with asyncio.timeout(_CHECK_S):
                return await replica.client.healthy()
        except TimeoutError:
            return False

    # --- background --------------------------------------------------------------------------------

    async def _begin(self, replica: Replica) -> None:
        reason = await self._bring_up(replica)
        if reason is None:
            return
        if replica.server is not None:
            await self._restart(replica, reason)
        else:
            self._leave_out(replica, reason)
            await self._recover(replica)

    async def _restart(self, replica: Replica, reason: str) -> None:
        """Restart a server of our own until it is up and proven, or has failed too often."""
        failure: str | None = reason
        while failure is not None:
            if not replica.may_restart(self._config.max_restarts):
                assert replica.server is not None
                await replica.server.stop()
                self._leave_out(replica, f"{failure} (restarted {replica.restarts_in_a_row} times)")
                return
            replica.restarts += 1
            replica.restarts_in_a_row += 1
            self._observer.alert("warning", "engine_restarted", f"{replica.name} is restarted: {failure}")
            self.set_state(replica, ReplicaState.RESTARTING, failure)
            failure = await self._bring_up(replica)

    async def _recover(self, replica: Replica) -> None:
        """Check an attached server repeatedly until it is healthy and proven."""
        await self._interrupt(replica)
        pause_s = _FIRST_PAUSE_S
        while (failure := await self._bring_up(replica)) is not None:
            if failure != replica.detail:
                self.set_state(replica, ReplicaState.LEFT_OUT, failure)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _bring_up(self, replica: Replica) -> str | None:
        """Start a replica's server and prove the current weights; return the reason of a failure."""
        try:
            if replica.server is None:
                facts = await replica.client.check()
                await replica.client.resume()  # a run that was killed may have left it paused
            else:
                await replica.server.stop()
                await self._interrupt(replica)
                await replica.connect(None)
                facts = await replica.server.start()
                await replica.connect(replica.server.client(stall_timeout_s=self._config.stall_timeout_s))
            replica.cache_tokens = facts.cache_tokens
            replica.load.restart()
            async with self.weights:
                if self.version is None:
                    replica.is_up = True
                    self.set_state(replica, ReplicaState.STARTING, "its weights are yet to be proven")
                    return None
                if not await self._prover.restore(replica.client):
                    return f"it does not prove that it serves version {self.version}"
                replica.is_up = True
                self.mark_ready(replica)
        except Exception as error:  # an unsupervised replica would never become ready
            if not isinstance(error, _FAILURES):
                log.error("engine_supervision_failed", engine=replica.name, traceback=traceback.format_exc())
            return _brief(str(error)) or type(error).__name__
        return None

    async def _interrupt(self, replica: Replica) -> None:
        """Cancel requests that have not noticed the end of their server; they are sent again."""
        if replica.requests:
            await asyncio.wait(replica.requests, timeout=_DRAIN_S)
        replica.interrupt()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("engine_supervision_failed", error=describe_error(error))

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with self._changed:
            await self._changed.wait_for(condition)


def _brief(message: str) -> str:
    """Return a message's first line and its last three, which end the quoted log."""
    lines = message.splitlines()
    return " | ".join([*lines[:1], *lines[1:][-3:]])
