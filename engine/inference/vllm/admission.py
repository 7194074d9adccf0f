"""Admission of conversations to replicas by the room in their KV caches.

A conversation reserves its current tokens and the room for its next response on one replica, where it stays
for the prefix cache. New conversations are admitted in order of arrival to the least loaded replica, once
they fit into the configured share of its cache. A conversation that has begun never waits for room, so
deadlock is impossible. A conversation larger than that share is admitted to an empty replica.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from engine.errors import ModelError
from engine.inference.vllm.replicas import Replica
from engine.types import RolloutKey

FORGET_S = 1800.0
"""Time after which an idle conversation that was never released loses its room, seconds."""

log = structlog.get_logger("engines")


@dataclass(slots=True, eq=False)
class Conversation:
    """A rollout's conversation with the policy."""

    key: RolloutKey
    replica: Replica | None = None
    need: int = 0
    """Tokens reserved on its replica: its length and the room for its next response."""
    used_at: float = 0.0
    """Time of its last request, monotonic seconds."""


@dataclass(slots=True, eq=False)
class _Waiting:
    conversation: Conversation
    placed: asyncio.Future[Replica]
    has_begun: bool


class Admission:
    """Assignment of conversations to replicas.

    Args:
        replicas: all replicas, in any state.
        share: share of a replica's KV cache that reservations may fill.
    """

    def __init__(self, replicas: Sequence[Replica], *, share: float) -> None:
        self._replicas = replicas
        self._share = share
        self._conversations: dict[RolloutKey, Conversation] = {}
        self._waiting: deque[_Waiting] = deque()
        self._lost: str = ""

    @property
    def num_waiting(self) -> int:
        """Return the number of conversations that wait for room or for any replica."""
        return len(self._waiting)

    async def place(self, key: RolloutKey, *, tokens: int, room: int, has_begun: bool) -> Conversation:
        """Return the key's conversation, placed on a ready replica.

        Args:
            key: of the rollout.
            tokens: length of its prompt.
            room: maximum length of the response.
            has_begun: whether earlier turns exist; the conversation then does not wait for room.

        Raises:
            ModelError: no replica is left.
        """
        conversation = self._conversations.get(key)
        if conversation is None:
            conversation = Conversation(key)
        else:
            has_begun = True
        self._reserve(conversation, tokens + room)
        conversation.used_at = time.monotonic()
        if conversation.replica is None or not conversation.replica.keeps_conversations:
            self._move(conversation, None)
            await self._wait(conversation, has_begun)
        self._conversations[key] = conversation
        return conversation

    def release(self, key: RolloutKey) -> None:
        """Forget a conversation."""
        conversation = self._conversations.pop(key, None)
        if conversation is not None:
            self._move(conversation, None)
            self.admit()

    def forget_idle(self) -> None:
        """Release conversations idle for ``FORGET_S``: their end was not reported."""
        limit = time.monotonic() - FORGET_S
        idle = [key for key, conversation in self._conversations.items() if conversation.used_at < limit]
        for key in idle:
            log.warning("conversation_not_released", key=key)
            self.release(key)

    def lose(self, reason: str) -> None:
        """Fail waiting and new requests with ModelError until a replica is ready again."""
        self._lost = reason
        for waiting in self._waiting:
            if not waiting.placed.done():
                waiting.placed.set_exception(ModelError(reason))
        self._waiting.clear()

    def admit(self) -> None:
        """Place waiting conversations that fit; called when a replica becomes ready or room becomes free."""
        if any(replica.is_ready for replica in self._replicas):
            self._lost = ""
        kept: deque[_Waiting] = deque()
        is_full = False
        for waiting in self._waiting:
            if waiting.placed.done():
                continue
            replica = None if is_full and not waiting.has_begun else self._replica_for(waiting)
            if replica is None:
                is_full = is_full or not waiting.has_begun  # later new conversations do not overtake
                kept.append(waiting)
            else:
                self._move(waiting.conversation, replica)
                waiting.placed.set_result(replica)
        self._waiting = kept

    async def _wait(self, conversation: Conversation, has_begun: bool) -> None:
        if self._lost:
            raise ModelError(self._lost)
        waiting = _Waiting(conversation, asyncio.get_running_loop().create_future(), has_begun)
        self._waiting.append(waiting)
        self.admit()
        try:
            await waiting.placed
        except BaseException:
            waiting.placed.cancel()
            self._conversations.pop(conversation.key, None)
            self._move(conversation, None)
            self.admit()
            raise

    def _replica_for(self, waiting: _Waiting) -> Replica | None:
        ready = [replica for replica in self._replicas if replica.is_ready]
        if not waiting.has_begun:
            ready = [replica for replica in ready if self._fits(replica, waiting.conversation.need)]
        return min(ready, key=lambda r: (r.reserved / max(r.cache_tokens, 1), r.conversations), default=None)

    def _fits(self, replica: Replica, need: int) -> bool:
        return not replica.conversations or replica.reserved + need <= self._share * replica.cache_tokens

    def _reserve(self, conversation: Conversation, need: int) -> None:
        if conversation.replica is not None:
            conversation.replica.reserved += need - conversation.need
        conversation.need = need

    def _move(self, conversation: Conversation, replica: Replica | None) -> None:
        if conversation.replica is not None:
            conversation.replica.reserved -= conversation.need
            conversation.replica.conversations -= 1
        conversation.replica = replica
        if replica is not None:
            replica.reserved += conversation.need
            replica.conversations += 1
