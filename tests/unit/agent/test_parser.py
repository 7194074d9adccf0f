"""Parsing of tool calls: their location in a response, and the forms that count as a call."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config.rollout import AgentConfig
from engine.tools import formats
from engine.tools.formats import ToolFormat
from engine.tools.parser import NativeCall, parse, parse_content, parse_native
from engine.tools.rendering import render_call
from engine.types import ToolCall

LS = ToolCall(name="execute_bash", arguments={"cmd": "ls"})
DONE = ToolCall(name="finish", arguments={"command": "submit"})
TEXT_FORMATS: tuple[ToolFormat, ...] = ("xml", "native")
MENTIONS = (
    "<function=",
    "<function=execute_bash>",
    "<function=finish> ",
    "<tool_call>",
    "<tool_call> {",
    "`<function=NAME>`",
)


BEGUN = {"xml": "<function=execute_bash>\n<parameter=cmd>rm", "native": '<tool_call>{"name": "finish", '}


@pytest.mark.parametrize("tool_format", TEXT_FORMATS)
def test_exactly_one_complete_call_is_accepted(tool_format: ToolFormat) -> None:
    call, done = render_call(LS, tool_format), render_call(DONE, tool_format)
    mention = {"xml": "<function=execute_bash>", "native": "<tool_call>"}[tool_format]
    for text in (f"I could write {BEGUN[tool_format]} ...</think>{call}", f"I write {mention} now: {call}"):
        assert parse(text, tool_format).call == LS, text
    unclosed = parse(f"so {done}", tool_format, thinking_open=True)
    assert (unclosed.call, "not closed" in unclosed.error) == (None, True)
    alone = parse(f"I would write {mention}", tool_format)
    assert (alone.call, alone.thought) == (None, "I would write")
    for between in ("", "\n\nand then\n", " <function=x> ", " <tool_call> "):
        several = parse(f"{call}{between}{done}", tool_format)
        assert (several.call, "more than one tool call" in several.error) == (None, True), between


@pytest.mark.parametrize("tool_format", TEXT_FORMATS)
def test_values_may_contain_the_thinking_marker(tool_format: ToolFormat) -> None:
    call = ToolCall(name="execute_bash", arguments={"cmd": "grep -c '</think>' a.txt"})
    text = render_call(call, tool_format)
    assert parse(text, tool_format).call == call
    assert parse(text, tool_format, thinking_open=False).call == call
    assert parse_content(text, tool_format, thinking="t").call == call


def test_malformed_calls_are_not_skipped_for_later_calls() -> None:
    broken = "<function=execute_bash>cmd=ls</function>"
    assert "malformed" in parse(f"{broken} {render_call(DONE, 'xml')}", "xml").error
    broken = '<tool_call>{"name": "execute_bash", "arguments": {"cmd": ls}}</tool_call>'
    assert "not valid JSON" in parse(f"{broken} {render_call(DONE, 'native')}", "native").error


@pytest.mark.parametrize("wrapper", ["<tool_call>", "<tool_call>\n", "<tool_call>\n\n"])
def test_wrappers_of_calls_are_removed_from_the_thought(wrapper: str) -> None:
    call = render_call(LS, "xml")
    parsed = parse(f"<think>\nwhy\n</think>\n\nLook.\n{wrapper}{call}\n</tool_call>", "xml")
    assert (parsed.thought, parsed.call) == ("why\n\n\nLook.", LS)
    assert parse(f"Look. {wrapper}<function=ls></function></tool_call>", "xml").thought == "Look."


def test_calls_after_too_many_mentions_are_not_parsed() -> None:
    text = "<function=x> " * formats._MAX_PLACES + render_call(LS, "xml")
    assert "malformed" in parse(text, "xml").error


def _pieces(*more: str) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from([*MENTIONS, *more, "a ", "\n", '"', "}"]), max_size=8)


@settings(max_examples=150, deadline=None)
@given(
    _pieces("</function>", "</tool_call>", "<function=submit></function>"),
    st.sampled_from(TEXT_FORMATS),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20),
)
def test_thinking_does_not_change_the_parsed_call(thinking: list[str], form: ToolFormat, value: str) -> None:
    call = ToolCall(name="execute_bash", arguments={"cmd": value})
    inside = "".join(thinking)
    text = f"{inside}</think>\n\n{render_call(call, form)}"
    assert parse(text, form, thinking_open=True).call == call
    assert parse(f"<think>{text}", form).call == call
    assert parse_content(render_call(call, form), form, thinking=inside).call == call


@settings(max_examples=150, deadline=None)
@given(_pieces("</parameter>", "</function>"), st.sampled_from(TEXT_FORMATS))
def test_prose_after_a_call_does_not_change_it(prose: list[str], form: ToolFormat) -> None:
    after = "".join(prose)
    parsed = parse(f"{render_call(LS, form)} {after}", form)
    has_second_call = form == "xml" and re.search(r"<function=\w+>\s*</function>", after)
    if has_second_call:
        assert parsed.call is None
        assert "more than one tool call" in parsed.error
    else:
        assert (parsed.call, parsed.error) == (LS, "")


def native(name: str, arguments: Any) -> NativeCall:
    return NativeCall(name=name, arguments=arguments)


@pytest.mark.parametrize("arguments", [{"cmd": "ls"}, '{"cmd": "ls"}'])
def test_native_calls_are_validated(arguments: Any) -> None:
    parsed = parse_native([native("execute_bash", arguments)], thinking="why\n", content="Look.")
    assert (parsed.call, parsed.thought, parsed.error) == (LS, "why\n\nLook.", "")


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        ([], "no tool call was found"),
        ([native("execute_bash", {"cmd": 3})], "argument 'cmd' must be text"),
        ([native("execute_bash", [1])], "must be an object"),
        ([native("execute_bash", None)], "missing argument 'cmd'"),
        ([native("execute_bash", {"cmd": "\ud800"})], "must be text"),
    ],
)
def test_native_errors_describe_the_problem(calls: list[NativeCall], message: str) -> None:
    parsed = parse_native(calls, content="I act. ")
    assert parsed.call is None
    assert message in parsed.error
    assert parsed.thought == "I act."


def test_native_errors_equal_those_of_the_text_formats() -> None:
    for name, arguments in (("ls", {}), ("execute_bash", {}), ("search", {"search_term": "a", "x": 1})):
        text = f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
        assert parse_native([native(name, arguments)]).error == parse(text, "native").error


def test_stored_configurations_may_use_the_former_name_of_a_format() -> None:
    assert AgentConfig.model_validate({"tool_format": "function_calling"}).tool_format == "native"


@pytest.mark.parametrize("tool_format", TEXT_FORMATS)
def test_a_call_that_cannot_run_is_told_from_prose(tool_format: ToolFormat) -> None:
    call = render_call(LS, tool_format)
    held = {
        call: True,
        call + call: True,
        call.replace("execute_bash", "unknown"): True,
        BEGUN[tool_format]: True,
        "I would run ls.": False,
        f"I could write {MENTIONS[0] if tool_format == 'xml' else MENTIONS[3]} here": False,
    }
    assert {text: parse(text, tool_format).has_call for text in held} == held


def test_native_calls_of_a_family_are_held_whether_valid_or_not() -> None:
    valid, broken = (
        NativeCall(name="finish", arguments={"command": "submit"}),
        NativeCall(name="", arguments={}),
    )
    assert [parse_native(calls).has_call for calls in ((valid,), (broken,), (valid, valid), ())] == [
        True, True, True, False,
    ]  # fmt: skip
