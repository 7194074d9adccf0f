"""Parts of a rollout that live in the run's process, as a worker has them: policy, places, grader."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.config.sandbox import SandboxConfig
from engine.inference.base import (
    ChatPolicy,
    ChatRequest,
    ChatResponse,
    Generation,
    GenerationRequest,
    Policy,
    TokenPolicy,
)
from engine.models.chat.base import ToolDeclaration
from engine.rollout.processes.messages import (
    Answer,
    Ask,
    CheckPolicy,
    Generate,
    GradePatch,
    PolicySettings,
    Released,
    Report,
    Respond,
    RunServices,
    SandboxEnded,
    SandboxStarted,
    TakePlace,
    Withdraw,
    portable,
)
from engine.rollout.processes.stream import MessageStream
from engine.sandbox.base import SandboxBackend, Startup
from engine.sandbox.pool.lease import Lease
from engine.sandbox.pool.pool import SandboxPool
from engine.types import Grade, RolloutKey, TaskRow


class RunProcess:
    """The run's process (``RunServices``).

    Args:
        stream: connection with it.
    """

    def __init__(self, stream: MessageStream) -> None:
        self._stream = stream
        self._numbers = itertools.count()
        self._pending: dict[int, asyncio.Future[Any]] = {}

    def tell(self, message: object) -> None:
        """Send a message."""
        self._stream.send(message)

    async def ask(self, question: object) -> Any:
        """Return the answer to a question; a cancelled question is withdrawn."""
        number, future = next(self._numbers), asyncio.get_running_loop().create_future()
        self._pending[number] = future
        self._stream.send(Ask(number, question))
        try:
            return await future
        except asyncio.CancelledError:
            self._stream.send(Withdraw(number))
            raise
        finally:
            del self._pending[number]

    async def grade(self, row: TaskRow, patch: str, *, evaluation: bool = False) -> Grade:
        """Grade a patch in the run's process."""
        grade: Grade = await self.ask(GradePatch(row.task.id, patch, evaluation))
        return grade

    def answered(self, answer: Answer) -> None:
        """Hand an answer to whoever asked."""
        future = self._pending.get(answer.number)
        if future is None or future.done():
            return
        if answer.error is None:
            future.set_result(answer.value)
        else:
            future.set_exception(answer.error)


@dataclass(slots=True)
class LiveRollouts:
    """Numbers of a worker's rollouts, and how long they have waited for engines, seconds."""

    numbers: dict[RolloutKey, int] = field(default_factory=dict)
    waited: dict[int, float] = field(default_factory=dict)


class _RunPolicy(Policy):
    """A policy of the run's process.

    Args:
        settings: its properties.
        parts: number of the parts that it belongs to.
        run: the run's process.
        live: the rollouts that it serves.
    """

    def __init__(self, settings: PolicySettings, parts: int, run: RunServices, live: LiveRollouts) -> None:
        self.name, self.version, self.max_context = settings.name, settings.version, settings.max_context
        self._parts, self._run, self._live = parts, run, live

    async def check(self, tools: Sequence[ToolDeclaration]) -> None:
        """Prove that the policy answers."""
        await self._run.ask(CheckPolicy(self._parts, tools))

    def release(self, key: RolloutKey) -> None:
        """Let the policy forget the rollout; its cost is added there."""
        self._run.tell(Report(self._live.numbers[key], Released()))

    def waited_seconds(self, key: RolloutKey) -> float:
        """Return the time as the run's process told it last."""
        return self._live.waited.get(self._live.numbers[key], 0.0)

    async def close(self) -> None:
        """Do nothing: the run's process closes the policy."""


class RunTokenPolicy(_RunPolicy, TokenPolicy):
    """A token policy of the run's process."""

    def __init__(self, settings: PolicySettings, parts: int, run: RunServices, live: LiveRollouts) -> None:
        super().__init__(settings, parts, run, live)
        assert settings.chat is not None
        self.chat = settings.chat

    async def generate(self, request: GenerationRequest) -> Generation:
        """Sample a completion. Raises ModelError."""
        question = Generate(
            self._live.numbers[request.context.key],
            request.prompt_ids,
            request.sampling,
            request.seed,
            request.stop_ids,
            has_begun=bool(request.context.steps),
        )
        generation: Generation = await self._run.ask(question)
        return generation


class RunChatPolicy(_RunPolicy, ChatPolicy):
    """A chat policy of the run's process."""

    def __init__(self, settings: PolicySettings, parts: int, run: RunServices, live: LiveRollouts) -> None:
        super().__init__(settings, parts, run, live)
        self.sends_thinking = settings.sends_thinking

    async def respond(self, request: ChatRequest) -> ChatResponse:
        """Return the next message. Raises ModelError."""
        number = self._live.numbers[request.context.key]
        question = Respond(number, request.messages, request.tools, request.sampling, request.seed)
        response: ChatResponse = await self._run.ask(question)
        return response


class WorkerPool(SandboxPool):
    """Sandboxes of this process, each in a place that the run's pool gives.

    Args:
        backend: opens them here.
        config: as in the run; its limits hold in the run's pool.
        run: the run's process.
    """

    def __init__(self, backend: SandboxBackend, config: SandboxConfig, run: RunServices) -> None:
        super().__init__(backend, config)
        self._run = run

    async def take_place(self, lease: Lease) -> None:
        """Wait for a place. Raises ImageError, SandboxQueueTimeoutError."""
        try:
            await self._run.ask(TakePlace(lease.id, lease.spec))
        except asyncio.CancelledError as error:
            self._ended(lease, error)
            raise

    def started(self, lease: Lease, startup: Startup) -> None:
        """Report that the lease's sandbox is ready."""
        self._run.tell(SandboxStarted(lease.id, lease.sandbox_id, startup))

    def not_started(self, lease: Lease, error: BaseException) -> None:
        """Report that the lease's sandbox did not start."""
        self._ended(lease, error)

    def ended(self, lease: Lease, error: BaseException | None) -> None:
        """Report that the lease's sandbox is gone."""
        self._ended(lease, error)

    def _ended(self, lease: Lease, error: BaseException | None) -> None:
        cancelled = isinstance(error, asyncio.CancelledError)
        reason = asyncio.CancelledError() if cancelled else None if error is None else portable(error)
        self._run.tell(SandboxEnded(lease.id, reason))


def share(images: Mapping[str, int], workers: int) -> dict[str, int]:
    """Return a worker's share of the sandboxes that are wanted next."""
    return {image: -(-count // workers) for image, count in images.items()}
