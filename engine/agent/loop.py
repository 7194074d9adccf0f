"""The agent loop: model → parse → tool → observe, until one termination reason applies.

A response without a runnable call yields an error observation; a command that exceeds its deadline
yields an observation too. Only limits, submission, infrastructure failures and cancellation end a rollout.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from engine.agent.conversation import Continuation, Conversation, Turn
from engine.agent.conversation_factory import open_conversation
from engine.agent.prompts import Prompt
from engine.agent.replay import FinishedTurn, Replay
from engine.config.rollout import AgentConfig
from engine.environments.base import Environment, EnvironmentStep
from engine.errors import ContextLengthError, ModelError, SandboxError, describe_error
from engine.inference.base import GenerationContext, Policy, SamplingParams
from engine.models.chat.base import Message, Reply
from engine.tokens import TokenRecord
from engine.tools import cap_characters, printable
from engine.tools.parser import ParsedResponse, parse_content, parse_native, unclosed_thinking
from engine.types import (
    OpeningMessage,
    ReplaySummary,
    RolloutKey,
    RolloutPhase,
    Step,
    TaskRow,
    TerminationReason,
)

_MIN_COMMAND_S = 0.1
_MAX_COUNT = 2**31 - 1
"""Upper limit of the count of characters left out of an observation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOutcome:
    """Result of a rollout before its patch is graded."""

    termination: TerminationReason
    steps: tuple[Step, ...]
    tokens: TokenRecord
    error: str = ""
    """Description of an infrastructure failure."""
    failure: str = ""
    """Kind of the sandbox failure that ended the rollout; empty without one."""
    opening: tuple[OpeningMessage, ...] = ()
    """Messages before the first response."""
    replay: ReplaySummary | None = None
    """Replay of an earlier attempt's steps; None where there was none."""


class _Ended(Exception):
    def __init__(self, reason: TerminationReason, error: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.error = error


@dataclass(slots=True, kw_only=True)
class AgentLoop:
    """One rollout in an environment that has been reset.

    ``outcome`` returns its progress at any time, also after cancellation.
    """

    environment: Environment
    policy: Policy
    prompt: Prompt
    config: AgentConfig
    key: RolloutKey
    row: TaskRow
    sampling: SamplingParams
    """``max_tokens`` is set by the loop from the limits."""
    seed_of_step: Callable[[int], int]
    on_step: Callable[[FinishedTurn], None]
    on_phase: Callable[[RolloutPhase], None] = lambda _phase: None
    """Called when the wait for a response begins, and when it ends."""
    recorded: Sequence[FinishedTurn] = ()
    """Turns of an earlier attempt to repeat first; all limits count them."""
    _steps: list[Step] = field(init=False, default_factory=list)
    _conversation: Conversation = field(init=False)
    _opening: tuple[OpeningMessage, ...] = field(init=False)
    _room: int = field(init=False)
    """Minimum room for a response within the context, tokens."""
    _deadline: float = field(init=False, default=0.0)
    _replay: Replay = field(init=False)
    _waited: float = field(init=False, default=0.0)
    """Time that the last response waited for the policy's engines, seconds."""
    _has_call: bool = field(init=False, default=False)
    """Whether the last response held a call, valid or not."""

    def __post_init__(self) -> None:
        self._room = min(self.config.min_response, self.config.max_response)
        self._replay = Replay(self.recorded)
        user = self.prompt.user(self.row.task) + self._countdown(self.config.max_steps)
        texts = (("system", self.prompt.system), ("user", user))
        turns = [{"role": role, "content": text} for role, text in texts if text or role == "user"]
        self._opening = _opening(turns, self.prompt)
        self._conversation = open_conversation(
            self.policy,
            turns,
            prompt=self.prompt,
            config=self.config,
            tools=self.environment.tools,
        )

    @property
    def _context(self) -> int:
        """Return the maximum length of a prompt and its response: the agent's limit or the model's, if lower.

        Endpoints may report the model's limit only when they refuse a request.
        """
        return min(self.config.max_context, self.policy.max_context or self.config.max_context)

    async def run(self) -> AgentOutcome:
        """Run until the rollout ends. Failures of sandbox and model are outcomes, not exceptions."""
        self._deadline = time.monotonic() + self.config.rollout_timeout_s
        try:
            for index in range(self.config.max_steps):
                await self._turn(index)
        except _Ended as ended:
            return self.outcome(ended.reason, ended.error)
        except SandboxError as error:
            return self.outcome(TerminationReason.ENV_ERROR, describe_error(error), failure=error.kind)
        except ContextLengthError:
            return self.outcome(TerminationReason.MAX_CONTEXT)
        except ModelError as error:
            return self.outcome(TerminationReason.MODEL_ERROR, describe_error(error))
        return self.outcome(TerminationReason.MAX_STEPS)

    def outcome(self, termination: TerminationReason, error: str = "", *, failure: str = "") -> AgentOutcome:
        """Return the rollout so far with a termination reason."""
        return AgentOutcome(
            termination=termination,
            steps=tuple(self._steps),
            tokens=self._conversation.record(),
            error=error,
            failure=failure,
            opening=self._opening,
            replay=self._replay.summary(),
        )

    async def _turn(self, index: int) -> None:
        """Run one turn. Raises _Ended when it was the last."""
        room = self._context - len(self._conversation)
        if room < self._room:
            raise _Ended(TerminationReason.MAX_CONTEXT)
        began = time.monotonic()
        recorded = self._replay.take(prompt_tokens=len(self._conversation))
        if recorded is None:
            turn = await self._respond(index, room)
            step = self._read(index, turn, time.monotonic() - began)
        else:
            turn = self._conversation.repeat(recorded.response, step=index)
            step = self._read(index, turn, recorded.step.model_seconds)
            step = replace(step, policy_version=recorded.step.policy_version)
            self._waited = recorded.waited_seconds
            self._deadline -= step.model_seconds - self._waited
        if not turn.stopped:
            self._finish_step(step, was_cut_off=True)
            full = room <= self.config.max_response or len(self._conversation) >= self._context
            raise _Ended(TerminationReason.MAX_CONTEXT if full else TerminationReason.MAX_RESPONSE)
        step = await self._act(step)
        continuation = None
        if not step.done and index + 1 < self.config.max_steps:
            step, continuation = self._continued(step)
        self._finish_step(step)
        if step.done:
            raise _Ended(TerminationReason.SUBMITTED)
        if self._time_left() <= 0:
            raise _Ended(TerminationReason.ROLLOUT_TIMEOUT)
        if continuation is not None:
            if continuation.length + self._room > self._context:
                raise _Ended(TerminationReason.MAX_CONTEXT)
            self._conversation.append(continuation, step=index)

    def _continued(self, step: Step) -> tuple[Step, Continuation]:
        """Return the step with its observation as the model sees it, and the next prompt."""
        shown = step.observation + self._countdown(self.config.max_steps - step.index - 1)
        continuation = self._conversation.answer(shown)
        if self._context - continuation.length < self.config.token_warning:
            shown += self.prompt.token_warning
            continuation = self._conversation.answer(shown)
        settled = self._replay.settle(replace(step, observation=shown))
        if settled.observation != shown:
            continuation = self._conversation.answer(settled.observation)
        return settled, continuation

    def _time_left(self) -> float:
        """Return the rollout's remaining time, seconds; waiting for the policy's engines is not counted."""
        return self._deadline + self.policy.waited_seconds(self.key) - time.monotonic()

    @asynccontextmanager
    async def _within_time(self) -> AsyncIterator[None]:
        """Limit the body to the remaining time, which may grow meanwhile. Raises TimeoutError."""
        async with asyncio.timeout(None) as timeout:
            timer: list[asyncio.TimerHandle] = []
            self._watch_time(timeout, timer)
            try:
                yield
            finally:
                for handle in timer:
                    handle.cancel()

    def _watch_time(self, timeout: asyncio.Timeout, timer: list[asyncio.TimerHandle]) -> None:
        """End the body when no time is left, else check again by a timer after the remaining time.

        Cancelling the timer drops its references, which would keep the conversation in memory.
        """
        loop = asyncio.get_running_loop()
        if (left := self._time_left()) > 0:
            timer[:] = [loop.call_later(left, self._watch_time, timeout, timer)]
        else:
            timeout.reschedule(loop.time())

    async def _respond(self, index: int, room: int) -> Turn:
        self.on_phase(RolloutPhase.MODEL)
        waited = self.policy.waited_seconds(self.key)
        try:
            async with self._within_time():
                return await self._conversation.respond(
                    step=index,
                    sampling=replace(self.sampling, max_tokens=min(room, self.config.max_response)),
                    seed=self.seed_of_step(index),
                    context=GenerationContext(key=self.key, row=self.row, steps=tuple(self._steps)),
                )
        except TimeoutError:
            raise _Ended(TerminationReason.ROLLOUT_TIMEOUT) from None
        finally:
            self._waited = self.policy.waited_seconds(self.key) - waited
            self.on_phase(RolloutPhase.TOOLS)

    def _read(self, index: int, turn: Turn, model_seconds: float) -> Step:
        """Parse one response into a step (thought, tool call, parse error)."""
        parsed = self._parsed(turn.reply)
        self._has_call = parsed.has_call
        if not turn.stopped:
            after = f" after {turn.generated_tokens} tokens" if turn.generated_tokens else ""
            message = f"the response was cut off{after}; nothing was run"
            parsed = ParsedResponse(parsed.thought, None, message)
        return Step(
            index=index,
            thought=parsed.thought,
            response=printable(turn.reply.text),
            call=parsed.call,
            observation=f"ERROR: {parsed.error}" if parsed.error else "",
            error=parsed.error,
            prompt_tokens=turn.prompt_tokens,
            cached_tokens=turn.cached_tokens,
            generated_tokens=turn.generated_tokens,
            thinking_tokens=turn.thinking_tokens,
            cost=turn.cost,
            provider_state=turn.provider_state,
            model_seconds=model_seconds,
            policy_version=turn.version,
        )

    def _parsed(self, reply: Reply) -> ParsedResponse:
        tools, thinking, content = self.environment.tools, printable(reply.thinking), printable(reply.content)
        if not reply.thinking_closed:
            return unclosed_thinking(printable(reply.text))
        if self.config.tool_format == "native":
            return parse_native(reply.calls, tools, thinking=thinking, content=content)
        return parse_content(content, self.config.tool_format, tools, thinking=thinking)

    async def _act(self, step: Step) -> Step:
        """Execute the step's call, if it has one."""
        if step.call is None:
            return step
        began = time.monotonic()
        timeout_s = min(self.config.command_timeout_s, max(self._time_left(), _MIN_COMMAND_S))
        try:
            async with asyncio.timeout(self.environment.step_deadline_s):
                result = await self.environment.step(step.call, timeout_s=timeout_s)
        except TimeoutError:
            message = f"the environment did not answer within {self.environment.step_deadline_s:g} s"
            self._finish_step(replace(step, error=message, tool_seconds=time.monotonic() - began))
            raise _Ended(TerminationReason.ENV_TIMEOUT, message) from None
        return self._observed(step, result, time.monotonic() - began)

    def _observed(self, step: Step, result: EnvironmentStep, tool_seconds: float) -> Step:
        shown, cut = cap_characters(printable(result.observation), self.config.observation_chars)
        shown, more = self._conversation.cap(shown, self.config.observation_tokens)
        return replace(
            step,
            observation=shown,
            error=result.error,
            exit_code=result.exit_code,
            done=result.done,
            truncated_chars=min(result.truncated_chars + cut + more, _MAX_COUNT),
            tool_seconds=tool_seconds,
        )

    def _finish_step(self, step: Step, *, was_cut_off: bool = False) -> None:
        step = self._replay.settle(step)
        self._steps.append(step)
        self.on_step(
            FinishedTurn(
                step=step,
                response=self._conversation.last_response,
                waited_seconds=self._waited,
                is_replayed=self._replay.agreed(step),
                has_call=self._has_call,
                was_cut_off=was_cut_off,
            )
        )

    def _countdown(self, remaining: int) -> str:
        return self.prompt.countdown(remaining) if self.config.step_reminder else ""


def _opening(turns: Sequence[Message], prompt: Prompt) -> tuple[OpeningMessage, ...]:
    """Return the messages before the first response, functions that the chat template declares included."""
    messages = [OpeningMessage(role=turn["role"], content=turn["content"]) for turn in turns]
    if prompt.declarations:
        messages.append(OpeningMessage.of_tools(prompt.declarations))
    return tuple(messages)
