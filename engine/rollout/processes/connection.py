"""The run's end of a worker's connection: answers its questions and hands its reports to the rollouts."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from engine.agent.replay import FinishedTurn
from engine.errors import ImageError, SandboxDiedError
from engine.inference.base import (
    ChatPolicy,
    ChatRequest,
    GenerationContext,
    GenerationRequest,
    Policy,
    TokenPolicy,
)
from engine.rollout.environments import RolloutGrader
from engine.rollout.processes.messages import (
    Answer,
    Ask,
    Begin,
    Cancel,
    CheckPolicy,
    Generate,
    GradePatch,
    News,
    Report,
    Respond,
    SandboxEnded,
    SandboxStarted,
    TakePlace,
    Waited,
    Withdraw,
    portable,
)
from engine.rollout.processes.stream import MessageStream, StreamEndedError
from engine.sandbox.pool.lease import Lease
from engine.sandbox.pool.pool import SandboxPool
from engine.types import RolloutKey, TaskRow

TELL_S = 0.5
"""Interval in which a worker is told how long its rollouts have waited for engines, seconds."""


class WorkerLostError(Exception):
    """A worker ended before its rollout did."""


class Rolling(Protocol):
    """A rollout in whose name a worker asks."""

    key: RolloutKey
    row: TaskRow

    @property
    def policy(self) -> Policy:
        """Return its policy."""

    @property
    def waited(self) -> float:
        """Return the time that it has waited for the policy's engines, seconds."""


class WorkerConnection:
    """One worker, from its first sign of life until it is lost.

    Args:
        stream: connection with it.
        name: for logs and errors.
        policies: policy of each set of parts.
        pool: sandbox pool of the run; None without sandboxes.
        grader: judge of patches; None where environments grade themselves.
    """

    def __init__(
        self,
        stream: MessageStream,
        name: str,
        *,
        policies: Mapping[int, Policy],
        pool: SandboxPool | None,
        grader: RolloutGrader | None,
    ) -> None:
        self.name = name
        self.seen = time.monotonic()
        """Time of its last message, monotonic seconds."""
        self._stream = stream
        self._policies, self._pool, self._grader = policies, pool, grader
        self._rollouts: dict[int, Rolling] = {}
        self._inboxes: dict[int, asyncio.Queue[News | None]] = {}
        self._rows: dict[str, TaskRow] = {}
        """Tasks of its rollouts, by id."""
        self._leases: dict[str, Lease] = {}
        """Places that it holds in the pool."""
        self._answering: dict[int, asyncio.Task[None]] = {}
        self._requests: dict[int, set[asyncio.Task[None]]] = defaultdict(set)
        """Requests to the policy, by rollout."""
        self._is_lost = False

    @property
    def load(self) -> int:
        """Return the number of its rollouts."""
        return len(self._rollouts)

    def send(self, message: object) -> None:
        """Send it a message."""
        self._stream.send(message)

    # --- rollouts ----------------------------------------------------------------------------------

    def begin(self, number: int, parts: int, rollout: Rolling, *, recorded: Sequence[FinishedTurn]) -> None:
        """Let it run a rollout. Raises WorkerLostError."""
        if self._is_lost:
            raise WorkerLostError(self.name)
        self._rollouts[number], self._inboxes[number] = rollout, asyncio.Queue()
        self._rows[rollout.row.task.id] = rollout.row
        self.send(Begin(number, parts, rollout.key, rollout.row, tuple(recorded)))

    async def news(self, number: int) -> News:
        """Return the next news of a rollout. Raises WorkerLostError."""
        news = await self._inboxes[number].get()
        if news is None:
            raise WorkerLostError(self.name)
        return news

    async def settle(self, number: int) -> None:
        """Wait for the rollout's requests to the policy; those left are withdrawn."""
        if requests := self._requests.pop(number, None):
            await asyncio.wait(requests)

    def leave(self, number: int, *, ended: bool) -> None:
        """Forget a rollout; one that has not ended is cancelled."""
        if not ended:
            self.send(Cancel(number, "the run has ended it"))
        del self._rollouts[number], self._inboxes[number]
        self._requests.pop(number, None)

    # --- the worker's side -------------------------------------------------------------------------

    async def serve(self) -> None:
        """Handle its messages until it ends."""
        telling = asyncio.create_task(self._tell_waits())
        try:
            while True:
                for message in await self._stream.receive():
                    self._handle(message)
                self.seen = time.monotonic()
        except StreamEndedError:
            pass
        finally:
            telling.cancel()

    async def lose(self) -> None:
        """Withdraw all it asked for, give its places back, and tell its rollouts."""
        self._is_lost = True
        answering = list(self._answering.values())
        for task in answering:
            task.cancel()
        if answering:
            await asyncio.wait(answering)
        for lease in list(self._leases.values()):
            self._return(lease, SandboxDiedError(f"{self.name} was lost"))
        for inbox in self._inboxes.values():
            inbox.put_nowait(None)

    async def close(self) -> None:
        """End the connection; the worker then ends by itself."""
        await self._stream.close()

    def _handle(self, message: object) -> None:
        match message:
            case Report(rollout, news):
                if (inbox := self._inboxes.get(rollout)) is not None:
                    inbox.put_nowait(news)
            case Ask(number, question):
                self._begin_answer(number, question)
            case Withdraw(number):
                if (task := self._answering.get(number)) is not None:
                    task.cancel()
            case SandboxStarted():
                lease = self._leases[message.lease]
                lease.sandbox_id, lease.startup = message.sandbox_id, message.startup
                lease.started_at = time.time()
                self._sandboxes.started(lease, message.startup)
            case SandboxEnded(name, error):
                if (held := self._leases.get(name)) is not None:  # else its question is withdrawn
                    self._return(held, error)

    def _return(self, lease: Lease, error: BaseException | None) -> None:
        """Give a place back."""
        del self._leases[lease.id]
        if lease.startup is not None:
            self._sandboxes.ended(lease, error)
        else:
            self._sandboxes.not_started(lease, error or asyncio.CancelledError())

    @property
    def _sandboxes(self) -> SandboxPool:
        assert self._pool is not None, "a worker without a pool has no sandboxes"
        return self._pool

    async def _tell_waits(self) -> None:
        """Tell the worker how long rollouts with open requests have waited for engines."""
        told: dict[int, float] = {}
        while True:
            await asyncio.sleep(TELL_S)
            waits = {number: self._rollouts[number].waited for number in self._requests}
            for number, seconds in waits.items():
                if seconds != told.get(number, 0.0):
                    self.send(Waited(number, seconds))
            told = waits

    # --- answers -----------------------------------------------------------------------------------

    def _begin_answer(self, number: int, question: Any) -> None:
        task = asyncio.create_task(self._answer(number, question))
        self._answering[number] = task
        task.add_done_callback(lambda _: self._answering.pop(number))
        if isinstance(question, Generate | Respond) and question.rollout in self._rollouts:
            requests = self._requests[question.rollout]
            requests.add(task)
            task.add_done_callback(requests.discard)

    async def _answer(self, number: int, question: Any) -> None:
        try:
            value = await self._found(question)
        except Exception as error:
            answer = Answer(number, error=portable(error))
        else:
            answer = Answer(number, value)
        asking = self._rollouts.get(question.rollout) if isinstance(question, Generate | Respond) else None
        if asking is not None and asking.waited:
            self.send(Waited(question.rollout, asking.waited))
        self.send(answer)

    async def _found(self, question: Any) -> Any:
        match question:
            case Generate():
                rollout = self._rollouts[question.rollout]
                policy = rollout.policy
                assert isinstance(policy, TokenPolicy)
                return await policy.generate(_generation_request(question, rollout))
            case Respond():
                rollout = self._rollouts[question.rollout]
                policy = rollout.policy
                assert isinstance(policy, ChatPolicy)
                return await policy.respond(_chat_request(question, rollout))
            case TakePlace():
                return await self._take_place(question)
            case GradePatch(task_id, patch, evaluation):
                assert self._grader is not None
                return await self._grader.grade(self._rows[task_id], patch, evaluation=evaluation)
            case CheckPolicy(parts, tools):
                return await self._policies[parts].check(tools)
            case _:
                raise TypeError(f"a rollout worker asked for {type(question).__name__}")

    async def _take_place(self, question: TakePlace) -> None:
        """Wait for a place; once there is one, the worker holds it."""
        pool = self._sandboxes
        lease = Lease(question.spec, pool.name, id=question.lease)
        began = time.monotonic()
        await pool.take_place(lease)
        lease.queue_seconds = time.monotonic() - began
        try:
            pool.check_image(lease.spec.image)
        except ImageError as error:
            pool.not_started(lease, error)
            raise
        self._leases[lease.id] = lease


def _generation_request(asked: Generate, rollout: Rolling) -> GenerationRequest:
    return GenerationRequest(
        prompt_ids=asked.prompt_ids,
        sampling=asked.sampling,
        seed=asked.seed,
        stop_ids=asked.stop_ids,
        context=GenerationContext(key=rollout.key, row=rollout.row, continues=asked.has_begun),
    )


def _chat_request(asked: Respond, rollout: Rolling) -> ChatRequest:
    return ChatRequest(
        messages=asked.messages,
        tools=asked.tools,
        sampling=asked.sampling,
        seed=asked.seed,
        context=GenerationContext(key=rollout.key, row=rollout.row),
    )
