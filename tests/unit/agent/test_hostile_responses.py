"""Hostile model responses: parsed within limits, into a call or an error for the model."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Mapping
from typing import Any

import pytest

from engine.tools import FileEditor, MemoryFileStore, ToolResult, printable, run_immediately
from engine.tools.base import CommandResult
from engine.tools.elide import elided_lines
from engine.tools.formats import ToolFormat
from engine.tools.parser import MAX_MESSAGE_CHARS, MAX_RESPONSE_CHARS, ParsedResponse, parse
from engine.tools.schemas import LAKE_TOOLS, MAX_INTEGER, SWE_TOOLS, Tools
from engine.tools.search import Search
from engine.tools.tool_sets import OPENHANDS
from tests.builders.process_memory import forget_peak, memory

RESPONSES = 6_000
FORMATS: tuple[tuple[ToolFormat, Tools], ...] = (
    ("xml", SWE_TOOLS),
    ("native", SWE_TOOLS),
    ("words", LAKE_TOOLS),
    ("xml", OPENHANDS.tools),
)
FRAGMENTS = [
    "<think>", "</think>", "<function=file_editor>", "<function = execute_bash >", "<function=>",
    "<function=submit>", "</function>", "<parameter=command>", "<parameter=path>", "<parameter=view_range>",
    "<parameter=insert_line>", "<parameter=cmd>", "<parameter=concise>", "<parameter", "</parameter>",
    "<tool_call>", "</tool_call>", "view", "create", "str_replace", "insert", "a.py", "../..", "[1, 20]",
    "[" * 300, "]" * 300, "9" * 5000, "-1", "1e999", "NaN", "-Infinity", "true", "null", "{}", "[]",
    '{"name": "file_editor", "arguments": {"command": "view", "path": "a.py", "view_range": ',
    '{"name": "search", "arguments": {"search_term": "x"}}', '"command": "submit"', "}", "}}", '"', "\\",
    "\\ud800", "\\u0000", "\0", "\ud800", "\n", "\r", "\t", " ", "\u2028", "\x1c", "²", "move up", "move",
    "up", "é", "<", ">", "=", "&lt;", "<![CDATA[", "<!--", "%s", "x" * 100, "<function=" * 20,
    "<parameter=x>" * 20,
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, -1, 2**63, -(2**63), 10**400, 1.5, float("inf"), float("nan"), "", "x", "[1, 2, 3]",
    "[" * 2000, "1" * 5000, " 12 ", "1e3", " FALSE ", "nul\0", "\ud800", [], [1], [1, 2], [1, -1], [True, 2],
    ["1", "2"], [1.0, 2.0], [10**30, 1], {}, {"a": []}, "view", "submit", "\n", "x" * 10_000, "../" * 500,
]  # fmt: skip
PATHOLOGICAL = [
    "<function=" * 20_000,
    "<function" + " " * 200_000,
    "<function=a>" + "<parameter=a>x</parameter>" * 10_000,
    "<function=a><parameter=b>" + "</parameter><parameter=" * 10_000,
    "<function=a><parameter=b>" + "</parameter>" + " " * 200_000,
    "<tool_call>" * 20_000,
    "<tool_call>" + "[" * 200_000,
    "<tool_call>" + '"' + "\\" * 100_000,
    '<tool_call>{"name": "finish", "arguments": {'
    + ", ".join(f'"k{n}": 0' for n in range(20_000))
    + "}}</tool_call>",
    "<think>" * 30_000,
    "move " * 40_000,
    "x" * (MAX_RESPONSE_CHARS + 1),
]


def check(parsed: ParsedResponse) -> None:
    """Assert that a parse has a call or an error, and only text that can be stored."""
    assert (parsed.call is None) == bool(parsed.error)
    assert len(parsed.error) <= MAX_MESSAGE_CHARS + 3
    parsed.error.encode()
    assert "\0" not in parsed.error
    if parsed.call is not None:
        text = json.dumps(dict(parsed.call.arguments), allow_nan=False, ensure_ascii=False)
        text.encode()
        assert "\\u0000" not in text
        for value in parsed.call.arguments.values():
            numbers = value if isinstance(value, list) else [value]
            assert all(isinstance(n, str | bool) or abs(n) <= MAX_INTEGER for n in numbers)


def random_response(generator: random.Random) -> str:
    parts = generator.choices(FRAGMENTS, k=generator.randrange(1, 14))
    if generator.random() < 0.3:
        arguments = "".join(
            f"<parameter={generator.choice(['command', 'path', 'view_range', 'insert_line', 'x'])}>"
            f"{generator.choice(FRAGMENTS)}</parameter>"
            for _ in range(generator.randrange(5))
        )
        parts.insert(generator.randrange(len(parts)), f"<function=file_editor>{arguments}</function>")
    if generator.random() < 0.3:
        names = ["command", "path", "view_range", "insert_line", "file_text", "old_str", "concise", "cmd"]
        given = {name: generator.choice(VALUES) for name in generator.sample(names, 3)}
        name = generator.choice([*SWE_TOOLS, "submit", "nothing"])
        parts = ["<tool_call>", json.dumps({"name": name, "arguments": given}), "</tool_call>"]
    text = "".join(parts)
    if generator.random() < 0.5 and text:
        at = generator.randrange(len(text))
        text = text[:at] + generator.choice(FRAGMENTS) + text[at + generator.randrange(3) :]
    return text


def test_hostile_responses_are_calls_or_errors() -> None:
    """Parse each in one format, raw or sanitised as in the loop; run calls of the editor."""
    generator = random.Random(0)
    editor = FileEditor(MemoryFileStore({"/testbed/a.py": b"a = 1\n" * 200}), workdir="/testbed")
    calls = 0
    for number in range(RESPONSES):
        text = random_response(generator)
        parsed = parse(text if generator.random() < 0.1 else printable(text), *FORMATS[number % len(FORMATS)])
        check(parsed)
        if parsed.call is not None and parsed.call.name == "file_editor":
            result = run_immediately(editor.run(parsed.call.arguments))
            assert isinstance(result, ToolResult)
            result.observation.encode()
        calls += parsed.call is not None
    assert calls > 60


VIEW = '"file_editor", "arguments": {"command": "view", "path": "a", "view_range": "%s"}'
INSERT = '"file_editor", "arguments": {"command": "insert", "path": "a", "new_str": "", "insert_line": %s}'
BASH = '"execute_bash", "arguments": {"cmd": %s}'
WRONG = [
    (VIEW % ("[" * 2000), "two whole numbers"),
    *((BASH % ("[" * depth + "]" * depth), "") for depth in (10, 900, 990, 5000)),
    *((INSERT % word, "") for word in ("NaN", "-Infinity", "9" * 4000, "1e999", '0, "insert_line": 1')),
    *((f'"{name}", "arguments": {{}}', "unknown tool") for name in ("\\ud800", "\\u0000", "x" * 10_000)),
]


@pytest.mark.parametrize(("call", "error"), WRONG, ids=range(len(WRONG)))
def test_invalid_values_and_names_are_errors(call: str, error: str) -> None:
    parsed = parse(f'<tool_call>{{"name": {call}}}</tool_call>', "native")
    check(parsed)
    assert parsed.call is None
    assert error in parsed.error


def test_parsing_takes_linear_time() -> None:
    """Count the steps of Python; a backtracking pattern would take minutes of CPU time."""
    steps = 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1

    for text in PATHOLOGICAL:
        for tool_format, tools in FORMATS:
            steps, began = 0, time.thread_time()
            sys.setprofile(count)
            try:
                parsed = parse(text, tool_format, tools)
            finally:
                sys.setprofile(None)
            check(parsed)
            assert steps <= 500 + len(text)
            assert time.thread_time() - began < 5.0, text[:40]


class Shell:
    """Shell that answers every command with the same text."""

    timeout_s = 1.0

    def __init__(self, output: str, exit_code: int) -> None:
        self.output, self.exit_code, self.commands = output, exit_code, 0

    async def run(self, command: str | list[str], *, split: bool = False) -> CommandResult:
        assert not split
        self.commands += 1
        assert sum(map(len, command)) < 100_000
        return CommandResult(exit_code=self.exit_code, output=self.output)


def test_search_accepts_malformed_counts() -> None:
    for output in ("a:²", "a:٣", f"a:{'9' * 5000}", ":1", "a:1\nb:\n", "\x85:1"):
        for exit_code in (40, 41, 42, 43, 0):
            tool = Search(Shell(output, exit_code), workdir="/testbed")
            assert isinstance(run_immediately(tool.run({"search_term": "x"})), ToolResult)


@pytest.mark.parametrize(
    "arguments", [{"search_term": "x" * 200_000}, {"search_term": "x", "path": "y" * 200_000}]
)
def test_search_refuses_overlong_arguments(arguments: Mapping[str, str]) -> None:
    shell = Shell("", 0)
    result = run_immediately(Search(shell, workdir="/testbed").run(arguments))
    assert (bool(result.error), shell.commands) == (True, 0)


def test_occurrences_are_counted_up_to_a_limit() -> None:
    editor = FileEditor(MemoryFileStore({"/t/a": b"a\n" * 200_000}), workdir="/t")
    call = {"command": "str_replace", "path": "a", "old_str": "a", "new_str": "b"}
    error = run_immediately(editor.run(call)).error
    assert "occurs at least 1000 times in /t/a, at lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 990 more" in error


def test_deeply_nested_code_is_shown() -> None:
    for source in ("x = " + "1 + " * 2500 + "1", "x = " + "-" * 2500 + "1", "x" + ".y" * 2500):
        store = MemoryFileStore({"/t/a.py": f"{source}\n".encode() + b"y = 1\n" * 200})
        result = asyncio.run(FileEditor(store, workdir="/t").run({"command": "view", "path": "a.py"}))
        assert "y = 1" in result.observation
        assert elided_lines(source) is None or elided_lines(source) == [(1, source)]


def test_code_that_fills_memory_is_parsed_in_another_process() -> None:
    source = "import a" + ".a" * 60_000
    editor = FileEditor(MemoryFileStore({"/t/a.py": f"{source}\n".encode()}), workdir="/t")
    forget_peak()
    before = memory("VmHWM")
    result = asyncio.run(editor.run({"command": "view", "path": "a.py", "concise": True}))
    assert "import a.a.a" in result.observation
    assert memory("VmHWM") < before + (200 << 20)
