"""Stored trajectories as token records to imitate.

Recorded ids are used unchanged if this tokenizer decodes them to the recorded responses: training then uses
the sampled ids. Other trajectories (of other models, endpoints or systems) are rendered as conversations of
the trained model, with the configured prompt, tools and format of calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from engine.agent.conversation import call_id
from engine.agent.prompts import Prompt, load_prompt
from engine.agent.token_conversation import TokenConversation, answers
from engine.config.learning.fine_tuning import ConversationConfig
from engine.datasets.conversations.base import Conversation
from engine.events.stored_trajectories import StoredStep, StoredTrajectory
from engine.events.token_block import decode
from engine.inference.base import Generation
from engine.models.chat.base import Chat, Message, Reply, Tokenizer, ToolDeclaration
from engine.models.chat.thinking import split_thinking
from engine.tokens import TOKEN_COLUMNS, TokenRecord
from engine.tools import printable
from engine.tools.formats import ToolFormat
from engine.tools.parser import THINK_END, THINK_START, NativeCall, parse, read_native, thinking_end
from engine.tools.rendering import render_call, render_thinking
from engine.tools.schemas import FINISH, SUBMIT, validate_call
from engine.tools.tool_sets import TOOL_SETS, ToolSet
from engine.types import CUT_OFF, Task, ToolCall, Verdict

_UNGRADED = frozenset({None, Verdict.INFRA_ERROR})
"""Verdicts without information on a trajectory."""


def fits(trajectory: StoredTrajectory, tokenizer: Tokenizer) -> bool:
    """Return whether recorded ids are this tokenizer's: each step's decode to the step's response."""
    if trajectory.tokens is None:
        return False
    record = decode(trajectory.tokens.data)
    if not trajectory.steps or not record.num_sampled:
        return False
    if int(record.ids.min()) < 0 or int(record.ids.max()) >= tokenizer.vocab_size:
        return False
    if any(sample.mask[0] for sample in record.samples()):  # of other trainers: nothing predicts that token
        return False
    return all(
        _decoded(record, index, tokenizer).startswith(step.response)
        for index, step in enumerate(trajectory.steps)
    )


def _decoded(record: TokenRecord, step: int, tokenizer: Tokenizer) -> str:
    sampled = record.ids[record.mask & (record.steps == step)]
    return printable(tokenizer.decode(sampled.tolist())) if len(sampled) else "\0"


class ConversationWriter:
    """Writer of trajectories as messages, with one prompt, tool set and format of calls.

    Args:
        config: prompt, tools and format of calls.

    Raises:
        ConfigError: there is no such prompt.
    """

    def __init__(self, config: ConversationConfig) -> None:
        self._config = config
        self._set = TOOL_SETS[config.tools]
        self._prompt: Prompt = load_prompt(config.prompt, config.tool_format, self._set.tools)
        self.declarations: Sequence[ToolDeclaration] = self._prompt.declarations
        """Functions declared to the model; empty unless calls are native."""

    def opening(self, trajectory: StoredTrajectory) -> list[Message]:
        """Return the messages before the first response."""
        texts = (("system", self._prompt.system), ("user", self._prompt.user(_task(trajectory))))
        return [{"role": role, "content": text} for role, text in texts if text]

    def conversation(self, trajectory: StoredTrajectory) -> Conversation:
        """Return the whole conversation, up to the last response that was not cut off."""
        messages = [dict(message) for message in self.opening(trajectory)]
        steps = trajectory.steps
        if len(steps) > 1 and is_cut_off(trajectory):  # messages cannot express a turn without an end
            steps = steps[:-1]
        for index, step in enumerate(steps):
            text, calls = self.response(step)
            messages.append(_assistant_message(text, calls, index))
            if index + 1 < len(steps):
                reply = Reply(text=text, thinking="", content=text, calls=tuple(calls))
                messages += [dict(message) for message in answers(step.observation, reply, index)]
        return Conversation(
            messages=tuple(messages),
            tools=tuple(self.declarations),
            name=trajectory.instance_id,
            resolved=None if trajectory.verdict in _UNGRADED else trajectory.verdict is Verdict.PASSED,
        )

    def response(self, step: StoredStep) -> tuple[str, Sequence[NativeCall]]:
        """Return a step's response as text and native calls, in the configured format."""
        step = step.model_copy(update={"response": _with_opened_thinking(step.response, self._set)})
        call = (
            translated(ToolCall(name=step.tool, arguments=step.arguments), self._set) if step.tool else None
        )
        if call is None:
            return step.response, ()
        if self._config.tool_format == "xml":
            if parse(step.response, "xml", self._set.tools).call == call:
                return step.response, ()
            try:
                return f"{_prose(step)}{render_call(call, 'xml')}", ()
            except ValueError:  # a value that XML without escapes cannot express
                return step.response, ()
        return _prose(step), (NativeCall(name=call.name, arguments=call.arguments),)


def _assistant_message(text: str, calls: Sequence[NativeCall], step: int) -> dict[str, Any]:
    """Return a response as a message; thinking stays in the text of responses without native calls."""
    if not calls:
        return {"role": "assistant", "content": text}
    thinking, content, _ = split_thinking(text)
    written = [
        {
            "id": call_id(step, position),
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for position, call in enumerate(calls)
    ]
    message: dict[str, Any] = {"role": "assistant", "content": content.strip(), "tool_calls": written}
    return message | ({"reasoning_content": thinking.strip()} if thinking else {})


class ConversationRenderer:
    """Renderer of trajectories as conversations of one model.

    Args:
        chat: the model's conversations.
        config: prompt, tools and format of calls.

    Raises:
        ConfigError: there is no such prompt.
    """

    def __init__(self, chat: Chat, config: ConversationConfig) -> None:
        self._chat = chat
        self._config = config
        self._writer = ConversationWriter(config)

    def render(self, trajectory: StoredTrajectory) -> TokenRecord:
        """Return the record of a policy that sampled the trajectory's responses.

        Raises:
            ModelError: the model's family cannot express the conversation.
        """
        conversation = TokenConversation(
            self._chat,
            self._writer.opening(trajectory),
            tools=self._writer.declarations,
            keep_thinking=self._config.thinking_history == "keep",
        )
        for index, step in enumerate(trajectory.steps):
            ids = self._chat.reply_ids(*self._writer.response(step))
            is_last = index + 1 == len(trajectory.steps)
            if is_last and is_cut_off(trajectory) and ids[-1] in self._chat.stop_ids:
                ids = ids[:-1]
            count = len(ids)
            sampled = Generation(ids=tuple(ids), logprobs=(0.0,) * count, versions=(0,) * count)
            reply = conversation.append_generation(sampled, step=index)
            if not is_last:
                messages = answers(step.observation, reply, index)
                conversation.append(conversation.continuation(messages), step=index)
        return conversation.record()


def is_cut_off(trajectory: StoredTrajectory) -> bool:
    """Return whether the last response may have been cut off before the model ended its turn."""
    steps = trajectory.steps
    return bool(steps) and not steps[-1].tool and trajectory.termination in CUT_OFF


def translated(call: ToolCall, target: ToolSet) -> ToolCall | None:
    """Return a call under the names of another tool set; None if a set does not support it.

    A call of ``finish`` or ``submit`` ends the work with any arguments, which differ between systems.
    """
    for known in (target, *TOOL_SETS.values()):
        schema = known.tools.get(call.name)
        if schema is None or not set(call.arguments) <= {p.name for p in schema.parameters}:
            continue
        try:
            published = target.published_call(known.implementation_call(call))
            return validate_call(published.name, published.arguments, target.tools)
        except ValueError:
            break
    if call.name not in (FINISH.name, SUBMIT.name):
        return None
    remark = call.arguments.get("result") or call.arguments.get("message")
    arguments = {"command": "submit"} | ({"result": remark} if isinstance(remark, str) else {})
    return target.published_call(ToolCall(name=FINISH.name, arguments=arguments))


def _with_opened_thinking(text: str, tools: ToolSet) -> str:
    """Return a response with the opening marker of its thinking, which some prompts end with."""
    if text.lstrip().startswith(THINK_START):
        return text.lstrip()
    if THINK_END not in text:
        return text
    formats: tuple[ToolFormat, ...] = ("xml", "native")
    is_value = any(thinking_end(text, known, tools.tools) == 0 for known in formats)
    return text if is_value else f"{THINK_START}{text}"


def _prose(step: StoredStep) -> str:
    """Return a response without its call: the thinking block, then the text before the call."""
    thinking, rest, _ = split_thinking(step.response)
    content, calls = read_native(rest)
    remark = content if calls else rest.partition("<function=")[0]
    parts = [render_thinking(thinking.strip())] if thinking is not None and thinking.strip() else []
    parts += [remark.strip()] if remark.strip() else []
    return "".join(f"{part}\n\n" for part in parts)


def _task(trajectory: StoredTrajectory) -> Task:
    return Task(
        id=trajectory.task_id,
        instance_id=trajectory.instance_id,
        repo="",
        base_commit="",
        problem_statement=trajectory.problem_statement,
        image="",
        workdir=trajectory.workdir,
        metadata=trajectory.metadata,
    )


def cut(record: TokenRecord, max_tokens: int) -> Iterator[TokenRecord]:
    """Yield the record's samples cut off after ``max_tokens``; those without sampled tokens are left out."""
    for sample in record.samples():
        kept = sample
        if len(sample) > max_tokens:  # copied: a view would keep the whole sample in memory
            kept = TokenRecord(*(getattr(sample, name)[:max_tokens].copy() for name in TOKEN_COLUMNS))
        if np.any(kept.mask):
            yield kept
