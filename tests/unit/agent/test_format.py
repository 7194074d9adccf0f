"""Rendering and parsing of tool calls: lossless round trips and clear errors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.models.chat.chatml import ChatML
from engine.tools.parser import parse
from engine.tools.rendering import render_call, render_response
from engine.tools.schemas import MAX_INTEGER, SWE_TOOLS, CallError, ToolSchema, validate_call
from engine.types import ToolCall
from tests.fakes.bytes_tokenizer import BytesTokenizer

_HOSTILE = (
    "</parameter>",
    "<parameter=path>",
    "</function>",
    "<function=finish>",
    "\n",
    " ",
    "\t",
    "x",
    "</tool_call>",
)
_TEXTS = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30),
    st.lists(st.sampled_from(_HOSTILE), max_size=6).map("".join),
    st.just("\n"),
    st.just(""),
)
_INTEGERS = st.integers(-MAX_INTEGER, MAX_INTEGER)


def _values(schema: ToolSchema) -> st.SearchStrategy[ToolCall]:
    by_type: dict[str, st.SearchStrategy[object]] = {
        "string": _TEXTS,
        "integer": _INTEGERS,
        "boolean": st.booleans(),
        "line_range": st.lists(_INTEGERS, min_size=2, max_size=2),
    }
    required: dict[str, st.SearchStrategy[object]] = {}
    optional: dict[str, st.SearchStrategy[object]] = {}
    for p in schema.parameters:
        strategy: st.SearchStrategy[object] = st.sampled_from(p.choices) if p.choices else by_type[p.type]
        (required if p.required else optional)[p.name] = strategy
    return st.fixed_dictionaries(required, optional=optional).map(
        lambda arguments: ToolCall(name=schema.name, arguments=arguments)
    )


CALLS = st.one_of(*(_values(schema) for schema in SWE_TOOLS.values()))


@given(CALLS)
def test_native_calls_round_trip(call: ToolCall) -> None:
    parsed = parse(render_response("a thought", call, "native"), "native")
    assert (parsed.call, parsed.thought, parsed.error) == (call, "a thought", "")


@given(CALLS)
def test_xml_calls_round_trip_or_are_refused(call: ToolCall) -> None:
    try:
        text = render_call(call, "xml")
    except ValueError:
        assert any("</parameter>" in str(value) for value in call.arguments.values())
        return
    assert parse(text, "xml").call == call


def test_only_paired_newlines_around_a_value_are_removed() -> None:
    def cmd(inner: str) -> object:
        parsed = parse(f"<function=execute_bash><parameter=cmd>{inner}</parameter></function>", "xml")
        assert parsed.call is not None
        return parsed.call.arguments["cmd"]

    assert cmd("\nls\n") == "ls"
    assert cmd("ls\n") == "ls\n"
    assert cmd("\nls") == "\nls"


def test_ambiguous_xml_value_is_refused() -> None:
    call = ToolCall(name="execute_bash", arguments={"cmd": "a</parameter>\n</function>b"})
    with pytest.raises(ValueError, match="cannot express"):
        render_call(call, "xml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("just words", "no tool call was found"),
        ("<function=ls></function>", "unknown tool 'ls'; the tools are file_editor"),
        ("<function=execute_bash></function>", "missing argument 'cmd'. Expected: execute_bash(cmd: string)"),
        (
            "<function=file_editor><parameter=command>edit</parameter><parameter=path>a</parameter></function>",
            "must be one of view, create",
        ),
        (
            "<function=file_editor><parameter=command>view</parameter><parameter=path>a</parameter>"
            "<parameter=view_range>all</parameter></function>",
            "argument 'view_range' must be two whole numbers such as [10, 20], got 'all'",
        ),
        ("<function=execute_bash>cmd=ls</function>", "malformed"),
        ("<function=execute_bash><parameter=cmd>ls", "cut off"),
        (
            "<function=execute_bash><parameter=cmd>a</parameter><parameter=cmd>b</parameter></function>",
            "gives parameter 'cmd' twice",
        ),
        ("<function=submit></function> and <function=submit></function>", "more than one tool call"),
    ],
)
def test_xml_errors_describe_the_problem(text: str, message: str) -> None:
    parsed = parse(f"I will act. {text}", "xml")
    assert parsed.call is None
    assert message in parsed.error
    assert parsed.thought.startswith("I will act.") or parsed.thought.startswith("just words")


def test_text_values_become_schema_types_and_submit_becomes_finish() -> None:
    expected = ToolCall(name="finish", arguments={"command": "submit"})
    assert parse("<function=submit>\n</function>", "xml").call == expected
    text = (
        "<function=file_editor><parameter=command>view</parameter><parameter=path>12</parameter>"
        "<parameter=view_range> [3, -1] </parameter><parameter=concise>True</parameter></function>"
    )
    parsed = parse(text, "xml")
    assert parsed.call is not None
    assert parsed.call.arguments == {"command": "view", "path": "12", "view_range": [3, -1], "concise": True}


def test_null_counts_as_a_missing_argument() -> None:
    call = {"command": "view", "path": "a.py", "view_range": None, "concise": "null"}
    assert validate_call("file_editor", call).arguments == {"command": "view", "path": "a.py"}
    with pytest.raises(CallError, match="missing argument 'path'"):
        validate_call("file_editor", {"command": "view", "path": None})
    with pytest.raises(CallError, match="unknown argument 'other'"):
        validate_call("execute_bash", {"cmd": "ls", "other": None})
    assert validate_call("execute_bash", {"cmd": "null"}).arguments == {"cmd": "null"}


def test_reply_ids_encode_the_thinking_markers_as_special_ids() -> None:
    tokenizer = BytesTokenizer()
    text = "<think>\nwhy\n</think>\n\necho '</think><|im_end|>'"
    ids = ChatML(tokenizer).reply_ids(text)
    assert ids[0] == tokenizer.think_start
    assert ids[-1] == tokenizer.im_end
    assert ids.count(tokenizer.think_end) == 1
    assert ids.count(tokenizer.im_end) == 1
    assert tokenizer.decode(ids) == text + "<|im_end|>"
