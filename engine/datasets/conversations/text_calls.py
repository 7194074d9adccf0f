"""Conversion of native function calls to XML text and back, as SWE-Gym and OpenHands train on it.

The functions are declared at the end of the system message; a call ends the assistant's content; an answer is
a user message that begins with ``EXECUTION RESULT of [NAME]:``. Thinking is a block at the beginning of a
response. Values are lossless: their types are restored from the declared parameters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from engine.datasets.conversations.base import Conversation, ConversationError, Message
from engine.reading import parse_json
from engine.tools.formats import FoundCall, read_xml
from engine.tools.parser import THINK_END
from engine.tools.rendering import render_call, render_thinking
from engine.types import ToolCall

_DECLARED = re.compile(
    r"(?:\n\n|\A)The functions, as JSON schemas:\n\n<functions>\n(.*?)\n</functions>\n\n", re.S
)
_FORMAT = (
    "Write a call at the end of a response, one a response:\n\n"
    "<function=NAME>\n<parameter=KEY>VALUE</parameter>\n</function>"
)
_THOUGHT = re.compile(r"\A<think>\n(.*?)\n</think>\n\n", re.DOTALL)
_RESULT = re.compile(r"EXECUTION RESULT of \[([^\]\n]*)\]:\n")


def to_text(conversation: Conversation) -> Conversation:
    """Convert calls, answers and declarations of a conversation to text.

    Raises:
        ConversationError: XML cannot express a call, or a message's text looks like one.
    """
    messages = [
        _call_to_text(message, f"messages.{index}") for index, message in enumerate(conversation.messages)
    ]
    if conversation.tools:
        system = messages.pop(0)["content"] if messages[0]["role"] == "system" else ""
        messages.insert(0, {"role": "system", "content": _declare(system, conversation.tools)})
    return replace(conversation, messages=tuple(messages), tools=())


def to_native(conversation: Conversation) -> Conversation:
    """Convert calls, answers and declarations of a conversation to OpenAI's fields.

    Without declared functions, every argument is a string.

    Raises:
        ConversationError: a declaration is not JSON, or a value is not of its declared type.
    """
    messages = list(conversation.messages)
    tools = conversation.tools
    if messages[0]["role"] == "system" and (declaration := _DECLARED.search(messages[0]["content"])):
        if not messages[0]["content"].endswith(_FORMAT):
            raise ConversationError(
                "messages.0: the declared functions are not followed by the calls' format"
            )
        tools = tuple(_json(line, "messages.0") for line in declaration[1].split("\n"))
        system = messages[0]["content"][: declaration.start()]
        messages[:1] = [{"role": "system", "content": system}] if system else []
    types = _types(tools)
    result: list[Message] = []
    for index, message in enumerate(messages):
        called = result[-1].get("tool_calls") if result else None
        if message["role"] == "assistant":
            result.append(_text_to_call(message, types, len(result), f"messages.{index}"))
        elif message["role"] == "user" and called:
            result.append(_answer(message["content"], called[0]))
        else:
            result.append(message)
    return replace(conversation, messages=tuple(result), tools=tools)


def _declare(system: str, tools: Sequence[Mapping[str, Any]]) -> str:
    rows = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    declared = f"The functions, as JSON schemas:\n\n<functions>\n{rows}\n</functions>\n\n{_FORMAT}"
    return f"{system}\n\n{declared}" if system else declared


def _call_to_text(message: Message, place: str) -> Message:
    if message["role"] == "tool":
        content = f"EXECUTION RESULT of [{message['name']}]:\n{message['content']}"
        return {"role": "user", "content": content}
    thinking = message.get("reasoning_content", "")
    if THINK_END in thinking:
        raise ConversationError(f"{place}: the thinking itself contains {THINK_END}")
    content = f"{render_thinking(thinking)}\n\n{message['content']}" if thinking else message["content"]
    if message["role"] != "assistant":
        return {"role": message["role"], "content": content}
    if next(read_xml(content, 0, {}), None) is not None:
        raise ConversationError(f"{place}: the content itself looks like a call in XML")
    for call in message.get("tool_calls", ()):
        function = call["function"]
        try:
            rendered = render_call(ToolCall(name=function["name"], arguments=function["arguments"]), "xml")
        except ValueError as error:
            raise ConversationError(f"{place}: {error}") from None
        content = f"{content}\n\n{rendered}" if content else rendered
    return {"role": "assistant", "content": content}


def _text_to_call(
    message: Message, types: Mapping[str, Mapping[str, str]], index: int, place: str
) -> Message:
    thought = _THOUGHT.match(message["content"])
    content: str = message["content"][thought.end() :] if thought else message["content"]
    reply: Message = {"role": "assistant", "content": content}
    reply |= {"reasoning_content": thought[1]} if thought else {}
    parsed = next((part for part in read_xml(content, 0, {}) if isinstance(part, FoundCall)), None)
    if parsed is None or parsed.error or content[parsed.end :].strip():
        return reply
    declared = types.get(parsed.name, {})
    arguments = {
        key: _typed(str(value), declared.get(key, "string"), f"{place}: argument '{key}'")
        for key, value in parsed.arguments.items()
    }
    call = {
        "id": f"call_{index}",
        "type": "function",
        "function": {"name": parsed.name, "arguments": arguments},
    }
    prose = content[: parsed.start].removesuffix("\n\n")
    return reply | {"content": prose, "tool_calls": [call]}


def _answer(content: str, call: Message) -> Message:
    name = call["function"]["name"]
    prefix = _RESULT.match(content)
    text = content[prefix.end() :] if prefix and prefix[1] == name else content
    return {"role": "tool", "content": text, "tool_call_id": call["id"], "name": name}


def _types(tools: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Return the declared type of each parameter by function."""
    return {
        function["name"]: {
            key: str(schema.get("type", "string"))
            for key, schema in function.get("parameters", {}).get("properties", {}).items()
        }
        for tool in tools
        if isinstance(function := tool.get("function"), dict) and "name" in function
    }


def _typed(text: str, kind: str, place: str) -> Any:
    return text if kind == "string" else _json(text, place)


def _json(text: str, place: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise ConversationError(f"{place}: not JSON: {error}") from None
