"""Whatever a model writes is parsed within limits and is its own doing: a call, or an error to show it."""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Iterator, Mapping
from re import _constants as constants  # type: ignore[attr-defined]
from re import _parser as sre  # type: ignore[attr-defined]
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.tools import FileEditor, MemoryFileStore, ToolResult, printable, run_immediately
from engine.tools import formats as formats_module
from engine.tools import parser as parser_module
from engine.tools.base import CommandResult
from engine.tools.elide import elided_lines
from engine.tools.formats import ToolFormat
from engine.tools.parser import MAX_MESSAGE_CHARS, MAX_RESPONSE_CHARS, ParsedResponse, parse
from engine.tools.schemas import LAKE_TOOLS, MAX_INTEGER, SWE_TOOLS, CallError, Tools, validate_call
from engine.tools.search import Search
from engine.tools.tool_sets import OPENHANDS

RESPONSES = 100_000
SEEDS = 10
FORMATS: tuple[tuple[ToolFormat, Tools], ...] = (
    ("xml", SWE_TOOLS),
    ("native", SWE_TOOLS),
    ("words", LAKE_TOOLS),
    ("xml", OPENHANDS.tools),
)
FRAGMENTS = [
    "<think>",
    "</think>",
    "<function=file_editor>",
    "<function = execute_bash >",
    "<function=>",
    "<function=submit>",
    "</function>",
    "<parameter=command>",
    "<parameter=path>",
    "<parameter=view_range>",
    "<parameter=insert_line>",
    "<parameter=cmd>",
    "<parameter=concise>",
    "<parameter",
    "</parameter>",
    "<tool_call>",
    "</tool_call>",
    "view",
    "create",
    "str_replace",
    "insert",
    "a.py",
    "/testbed/a.py",
    "../..",
    "[1, 20]",
    "[[[[",
    "[" * 300,
    "]" * 300,
    "9" * 5000,
    "-1",
    "1e999",
    "NaN",
    "Infinity",
    "-Infinity",
    "true",
    "TRUE",
    "null",
    "{}",
    "[]",
    '{"name": "finish"',
    '{"name": "file_editor", "arguments": {"command": "view", "path": "a.py", "view_range": ',
    '{"name": "search", "arguments": {"search_term": "x"}}',
    '"arguments": {',
    '"command": "submit"',
    ', "a": 1',
    "}",
    "}}",
    '"',
    "\\",
    "\\ud800",
    "\\u0000",
    "\\udfff\\ud800",
    "\0",
    "\ud800",
    "\udcff",
    "\n",
    "\r",
    "\t",
    " ",
    "\u2028",
    "\u0085",
    "\x1c",
    "²",
    "move up",
    "move  left",
    "move",
    "up",
    "é",
    "😀",
    "<",
    ">",
    "=",
    "&lt;",
    "<![CDATA[",
    "]]>",
    "<!--",
    "-->",
    "%s",
    "${x}",
    "x" * 100,
    "<function=" * 20,
    "<parameter=x>" * 20,
]
VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    2**63,
    -(2**63),
    10**400,
    1.5,
    float("inf"),
    float("nan"),
    "",
    "x",
    "[1,2]",
    "[1, 2, 3]",
    "[" * 2000,
    "[" * 150 + "]" * 150,
    "1" * 5000,
    "-7",
    " 12 ",
    "1e3",
    "true",
    " FALSE ",
    "nul\0",
    "\ud800",
    [],
    [1],
    [1, 2],
    [1, -1],
    [True, 2],
    ["1", "2"],
    [1.0, 2.0],
    [10**30, 1],
    {},
    {"a": []},
    "view",
    "submit",
    "a.py",
    "\n",
    "x" * 10_000,
    "/" * 5000,
    "../" * 500,
]
PATHOLOGICAL = [
    "<function=" * 20_000,
    "<function" + " " * 200_000,
    "<function=" + " " * 200_000,
    "<function=a>" * 20_000,
    "<function=a>" + "<parameter=a>x</parameter>" * 10_000,
    "<function=a>" + "</parameter>" * 20_000,
    "<function=a><parameter=b>" + "</parameter><parameter=" * 10_000,
    "<function=a><parameter=b>" + "</parameter> " * 9999,
    "<function=a><parameter=b>" + "</parameter>" + " " * 200_000,
    "<function=a>" + "\n" * 200_000,
    "<tool_call>" * 20_000,
    "<tool_call>" + "[" * 200_000,
    "<tool_call>" + '{"a":' * 50_000,
    "<tool_call>" + '"' + "\\" * 100_000,
    "<tool_call>" + "9" * 200_000,
    "<tool_call>" + " " * 200_000,
    '<tool_call>{"name": "finish", "arguments": {'
    + ", ".join(f'"k{n}": 0' for n in range(20_000))
    + "}}</tool_call>",
    '<tool_call>{"name": "' + "x" * 200_000 + '"}</tool_call>',
    "<think>" * 30_000,
    "</think>" * 30_000,
    "move" * 50_000,
    "move " * 40_000,
    "move" + " " * 200_000,
    "move\n" * 40_000,
    "x" * (MAX_RESPONSE_CHARS + 1),
]


def check(found: ParsedResponse) -> None:
    """A call or an error, and nothing that cannot be stored, shown or tokenised."""
    assert (found.call is None) == bool(found.error)
    assert len(found.error) <= MAX_MESSAGE_CHARS + 3
    found.error.encode()
    assert "\0" not in found.error
    if found.call is not None:
        text = json.dumps(dict(found.call.arguments), allow_nan=False, ensure_ascii=False)
        text.encode()
        assert "\\u0000" not in text
        for value in found.call.arguments.values():
            numbers = value if isinstance(value, list) else [value]
            assert all(isinstance(n, str | bool) or abs(n) <= MAX_INTEGER for n in numbers)


def use(editor: FileEditor, found: ParsedResponse) -> None:
    """Run a call of the editor on files in memory."""
    if found.call is not None and found.call.name == "file_editor":
        result = run_immediately(editor.run(found.call.arguments))
        assert isinstance(result, ToolResult)
        result.observation.encode()


def some_response(generator: random.Random) -> str:
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


@pytest.mark.parametrize("seed", range(SEEDS))
def test_hostile_responses_are_calls_or_errors(seed: int) -> None:
    """A hundred thousand over all seeds, each in one of the formats, raw or as the loop hands them over."""
    generator = random.Random(seed)
    editor = FileEditor(MemoryFileStore({"/testbed/a.py": b"a = 1\n" * 200}), workdir="/testbed")
    calls = 0
    for number in range(RESPONSES // SEEDS):
        text = some_response(generator)
        tool_format, tools = FORMATS[number % len(FORMATS)]
        found = parse(text if generator.random() < 0.1 else printable(text), tool_format, tools)
        check(found)
        use(editor, found)
        calls += found.call is not None
    assert calls > 100


@settings(max_examples=300, deadline=None)
@given(
    st.text(max_size=200),
    st.sampled_from(FORMATS),
    st.sampled_from(["{}", "<tool_call>{}</tool_call>", "<function={}>"]),
)
def test_any_text_is_a_call_or_an_error(text: str, known: tuple[ToolFormat, Tools], around: str) -> None:
    check(parse(around.replace("{}", text), *known))


@pytest.mark.parametrize("tool", [*SWE_TOOLS, *LAKE_TOOLS])
def test_any_arguments_of_any_tool_are_a_call_or_an_error(tool: str) -> None:
    tools = {**SWE_TOOLS, **LAKE_TOOLS}
    generator = random.Random(tool)
    names = [parameter.name for parameter in tools[tool].parameters]
    accepted = 0
    for _ in range(5000):
        given = {name: generator.choice(VALUES) for name in names if generator.random() < 0.6}
        for parameter in tools[tool].parameters:
            if parameter.choices and generator.random() < 0.7:
                given[parameter.name] = generator.choice(parameter.choices)
        try:
            call = validate_call(tool, given, tools)
        except CallError:
            continue
        accepted += 1
        check(ParsedResponse("", call))
    assert accepted


@pytest.mark.parametrize("form", ["xml", "native"])
def test_a_range_of_two_thousand_brackets_is_an_error(form: ToolFormat) -> None:
    if form == "xml":
        text = "<function=file_editor><parameter=command>view</parameter><parameter=path>a</parameter>"
        text += f"<parameter=view_range>{'[' * 2000}</parameter></function>"
    else:
        arguments = {"command": "view", "path": "a", "view_range": "[" * 2000}
        text = f"<tool_call>{json.dumps({'name': 'file_editor', 'arguments': arguments})}</tool_call>"
    found = parse(text, form)
    assert found.call is None
    assert "two whole numbers" in found.error


@pytest.mark.parametrize("depth", [10, 300, 900, 990, 5000])
def test_nested_values_of_any_depth_are_an_error(depth: int) -> None:
    nested = "[" * depth + "]" * depth
    text = f'<tool_call>{{"name": "execute_bash", "arguments": {{"cmd": {nested}}}}}</tool_call>'
    found = parse(text, "native")
    check(found)
    assert found.call is None


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "9" * 4000, "1e999", '0, "insert_line": 1'])
def test_numbers_that_are_none_are_an_error(word: str) -> None:
    arguments = f'{{"command": "insert", "path": "a", "new_str": "", "insert_line": {word}}}'
    text = f'<tool_call>{{"name": "file_editor", "arguments": {arguments}}}</tool_call>'
    assert parse(text, "native").call is None


@pytest.mark.parametrize("tool", ["\\ud800", "\\u0000", "x" * 10_000])
def test_a_name_that_cannot_be_shown_is_named_all_the_same(tool: str) -> None:
    found = parse(f'<tool_call>{{"name": "{tool}", "arguments": {{}}}}</tool_call>', "native")
    check(found)
    assert "unknown tool" in found.error


@pytest.mark.parametrize("number", range(len(PATHOLOGICAL)))
def test_no_text_takes_more_steps_than_it_is_long(number: int) -> None:
    """Steps of Python are counted; patterns take none but those that the next test allows."""
    text = PATHOLOGICAL[number]
    steps = 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1

    for tool_format, tools in FORMATS:
        steps = 0
        sys.setprofile(count)
        try:
            found = parse(text, tool_format, tools)
        finally:
            sys.setprofile(None)
        check(found)
        assert steps <= 500 + len(text)


def patterns() -> Iterator[re.Pattern[str]]:
    for module in (formats_module, parser_module):
        yield from (value for value in vars(module).values() if isinstance(value, re.Pattern))


def unbounded(node: Any) -> Iterator[str]:
    """Repetitions that may be tried again, with another length, as often as a text is long."""
    for operation, argument in node:
        if operation in (constants.MAX_REPEAT, constants.MIN_REPEAT) and argument[1] == constants.MAXREPEAT:
            yield str(operation)
        for part in argument if isinstance(argument, list | tuple) else [argument]:
            for inner in part if isinstance(part, list) else [part]:
                if isinstance(inner, sre.SubPattern):
                    yield from unbounded(inner)


def test_no_pattern_of_the_parser_tries_a_repetition_twice() -> None:
    found = list(patterns())
    assert len(found) >= 6
    for pattern in found:
        assert list(unbounded(sre.parse(pattern.pattern))) == [], pattern.pattern
    assert list(unbounded(sre.parse(r"(?:a(?=\s*b))"))) == ["MAX_REPEAT"]


class Shell:
    """Answers every command with the same text."""

    timeout_s = 1.0

    def __init__(self, output: str, exit_code: int) -> None:
        self.output, self.exit_code, self.commands = output, exit_code, 0

    async def run(self, command: str | list[str], *, split: bool = False) -> CommandResult:
        assert not split
        self.commands += 1
        assert sum(map(len, command)) < 100_000
        return CommandResult(exit_code=self.exit_code, output=self.output)


@pytest.mark.parametrize("output", ["a:²", "a:٣", f"a:{'9' * 5000}", ":1", "a:1\nb:\n", "\x85:1"])
def test_names_of_files_are_no_numbers(output: str) -> None:
    for exit_code in (40, 41, 42, 43, 0):
        tool = Search(Shell(output, exit_code), workdir="/testbed")
        assert isinstance(run_immediately(tool.run({"search_term": "x"})), ToolResult)


@pytest.mark.parametrize(
    "arguments", [{"search_term": "x" * 200_000}, {"search_term": "x", "path": "y" * 200_000}]
)
def test_arguments_longer_than_a_program_takes_are_refused(arguments: Mapping[str, str]) -> None:
    shell = Shell("", 0)
    result = run_immediately(Search(shell, workdir="/testbed").run(arguments))
    assert (bool(result.error), shell.commands) == (True, 0)


def test_a_text_that_occurs_everywhere_is_counted_to_a_limit() -> None:
    editor = FileEditor(MemoryFileStore({"/t/a": b"a\n" * 2_000_000}), workdir="/t")
    call = {"command": "str_replace", "path": "a", "old_str": "a", "new_str": "b"}
    result = run_immediately(editor.run(call))
    assert (
        "occurs at least 1000 times in /t/a, at lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 990 more"
        in result.error
    )


@pytest.mark.parametrize(
    "source", ["x = " + "1 + " * 2500 + "1", "x = " + "-" * 2500 + "1", "x" + ".y" * 2500]
)
def test_code_of_any_depth_is_shown(source: str) -> None:
    editor = FileEditor(MemoryFileStore({"/t/a.py": f"{source}\n".encode() + b"y = 1\n" * 200}), workdir="/t")
    result = run_immediately(editor.run({"command": "view", "path": "a.py"}))
    assert "y = 1" in result.observation
    assert elided_lines(source) is None or elided_lines(source) == [(1, source)]
