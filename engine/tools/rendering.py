"""Rendering of tool calls as text; ``engine.tools.parser`` is the lossless inverse.

Used for responses that are composed, not sampled: scripted policies and the warm start.
To add a format: see ``engine.tools.formats``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from engine.tools.formats import PARAMETER_END, ToolFormat
from engine.tools.parser import THINK_END, THINK_START, NativeCall
from engine.types import ToolCall

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def render_call(call: ToolCall, tool_format: ToolFormat) -> str:
    """Render a call; ``parse`` returns the same call.

    Raises:
        ValueError: a name is not an identifier, or (XML only) a value contains the sequence that ends a
            parameter, which XML without escapes cannot express.
    """
    for name in (call.name, *call.arguments):
        if not _NAME.fullmatch(name):
            raise ValueError(f"'{name}' cannot be the name of a tool or an argument")
    if tool_format == "words":
        return " ".join((call.name, *map(str, call.arguments.values())))
    if tool_format == "native":
        return render_native(call.name, call.arguments)
    rows = [
        f"<parameter={key}>{_xml_value(key, value)}</parameter>\n" for key, value in call.arguments.items()
    ]
    return f"<function={call.name}>\n{''.join(rows)}</function>"


def render_native(name: str, arguments: Mapping[str, Any] | str) -> str:
    """Render a function call as ChatML does; ``read_native`` is the inverse.

    Args:
        arguments: an object, or the JSON text of one.
    """
    text = arguments if isinstance(arguments, str) else json.dumps(dict(arguments), ensure_ascii=False)
    quoted_name = json.dumps(name, ensure_ascii=False)
    return f'<tool_call>\n{{"name": {quoted_name}, "arguments": {text}}}\n</tool_call>'


def render_thinking(thought: str) -> str:
    """Render a turn's thinking block."""
    return f"{THINK_START}\n{thought}\n{THINK_END}"


def render_response(thought: str, call: ToolCall, tool_format: ToolFormat) -> str:
    """Render a whole turn: thinking block, empty line, call; in words format all on one line."""
    if tool_format == "words":
        return f"{thought} {render_call(call, tool_format)}".lstrip()
    return f"{render_thinking(thought)}\n\n{render_call(call, tool_format)}"


def render_turn(thinking: str, content: str, calls: Sequence[NativeCall] = ()) -> str:
    """Render the parts of a response as one text: thinking block, content, function calls in ChatML."""
    parts = [f"{render_thinking(thinking)}\n"] if thinking else []
    parts += [content] if content or not calls else []
    parts += [render_native(call.name, call.arguments) for call in calls]
    return "\n".join(parts)


def _xml_value(key: str, value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    if len(text) >= 2 and text[0] == "\n" and text[-1] == "\n":
        text = f"\n{text}\n"
    ending = PARAMETER_END.search(f"{text}</parameter>\n</function>")
    if ending is None or ending.start() != len(text):
        raise ValueError(f"argument '{key}' holds the text that ends a parameter; XML cannot express it")
    return text
