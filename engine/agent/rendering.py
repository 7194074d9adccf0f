"""From a tool call to the text a model writes; ``engine.agent.parser`` reads it back without loss.

Used where responses are made rather than sampled: scripted policies and the warm start.
To add a format: see ``engine.agent.parser``.
"""

from __future__ import annotations

import json
import re

from engine.agent.parser import PARAMETER_END, THINK_END, THINK_START, ToolFormat
from engine.inference.base import Tokenizer
from engine.types import ToolCall

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def render_call(call: ToolCall, tool_format: ToolFormat) -> str:
    """The call's text; ``parse`` of it gives the same call.

    Raises:
        ValueError: a name is not an identifier, or (XML only) a value holds the very sequence that
            ends a parameter, which XML without escapes cannot express.
    """
    for name in (call.name, *call.arguments):
        if not _NAME.fullmatch(name):
            raise ValueError(f"'{name}' cannot be the name of a tool or an argument")
    if tool_format == "words":
        return " ".join((call.name, *map(str, call.arguments.values())))
    if tool_format == "function_calling":
        payload = {"name": call.name, "arguments": dict(call.arguments)}
        return f"<tool_call>\n{json.dumps(payload, ensure_ascii=False)}\n</tool_call>"
    rows = [
        f"<parameter={key}>{_xml_value(key, value)}</parameter>\n" for key, value in call.arguments.items()
    ]
    return f"<function={call.name}>\n{''.join(rows)}</function>"


def render_response(thought: str, call: ToolCall, tool_format: ToolFormat) -> str:
    """A whole turn's text: the thinking block, an empty line, the call; in words all on one line."""
    if tool_format == "words":
        return f"{thought} {render_call(call, tool_format)}".lstrip()
    return f"{THINK_START}\n{thought}\n{THINK_END}\n\n{render_call(call, tool_format)}"


def response_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids a policy would have sampled for a turn's text, the turn's end included.

    A leading ``<think>`` and the first ``</think>`` after it become the special ids; everything
    else is plain text.
    """
    head, opened, rest = text.partition(THINK_START) if text.startswith(THINK_START) else ("", "", text)
    ids = tokenizer.encode(head)
    if opened:
        thinking, closed, rest = rest.partition(THINK_END)
        ids += [tokenizer.think_start, *tokenizer.encode(thinking)]
        if closed:
            ids.append(tokenizer.think_end)
    return [*ids, *tokenizer.encode(rest), tokenizer.im_end]


def _xml_value(key: str, value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    if len(text) >= 2 and text[0] == "\n" and text[-1] == "\n":
        text = f"\n{text}\n"
    ending = PARAMETER_END.search(f"{text}</parameter>\n</function>")
    if ending is None or ending.start() != len(text):
        raise ValueError(f"argument '{key}' holds the text that ends a parameter; XML cannot express it")
    return text
