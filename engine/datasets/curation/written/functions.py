"""Functions into which a model writes a fault, and the reading of its answers.

An answer counts only if it is the same function with another body: whatever else differs, it is rejected.
"""

from __future__ import annotations

import ast
import io
import re
import textwrap
import tokenize
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import structlog

from engine.datasets.cached_model import find_code
from engine.datasets.curation.baseline import Baseline
from engine.datasets.curation.candidates import MIN_FUNCTION_LINES, Candidate, relevant_tests
from engine.datasets.curation.faults import Fault, FunctionNode, apply_fault, functions_of, trees_differ
from engine.errors import HostileInputError
from engine.isolation import SOURCE_LIMITS, call_isolated
from engine.python_syntax import parse_python

_log = structlog.get_logger(__name__)
_WRITTEN = "written"
"""Kind and family of all faults by a model."""
REASONS = frozenset({"not_written", "other_function", "unchanged", "too_many_lines", "reveals"})
"""Reasons of functions for which the model wrote no fault."""
_MAX_LINES = 12
"""Maximum number of lines from the first to the last changed one."""
_REVEALING = re.compile(
    r"\b(?:\w*_)?(bugs?|buggy|faults?|faulty|mistakes?|incorrect|incorrectly|wrong|wrongly|broken|mutated|"
    r"mutation|injected|sabotage|subtle|fixme|todo)(?:_\w*)?\b",
    re.IGNORECASE,
)


def find_functions(baseline: Baseline, *, max_function_lines: int) -> list[Candidate]:
    """Return a candidate for each function that stable tests execute; its fault has yet to be written.

    Functions whose body does not begin on a line of its own are left out, and those with text left of their
    first line, such as in a string of several lines.

    Args:
        baseline: baseline of the intact tree's tests.
        max_function_lines: longer functions are left out.
    """
    candidates = []
    for path, executed in sorted(baseline.executed_by.items()):
        try:
            source = (baseline.source.tree / path).read_text(encoding="utf-8")
            faults = call_isolated(partial(_unwritten_faults, source, max_function_lines), SOURCE_LIMITS)
        except (UnicodeDecodeError, HostileInputError) as error:
            _log.warning("source_left_out", path=path, reason=str(error))
            continue
        for fault in faults:
            lines = range(fault.function_first_line + 1, fault.function_last_line + 1)
            suspects = [line for line in lines if line in executed]
            if suspects:
                candidate = Candidate(
                    baseline=baseline,
                    path=path,
                    source=source,
                    faults=(fault,),
                    num_faults=len(suspects),
                    tests=relevant_tests(baseline, path, fault, suspects[0]),
                )
                candidates.append(candidate)
    return candidates


def _unwritten_faults(source: str, max_lines: int) -> list[Fault]:
    """Return a fault per usable function; its lines are the function with its decorators, unchanged."""
    try:
        functions = list(functions_of(parse_python(source)))
    except ValueError:
        return []
    lines = source.split("\n")
    faults = []
    for function in functions:
        first = _first_line(function.node)
        text = "\n".join(lines[first - 1 : function.last_line])
        if (
            MIN_FUNCTION_LINES <= function.last_line - function.first_line + 1 <= max_lines
            and _begins_line(function.node.body[0], lines)
            and textwrap.indent(unindented(text), _margin(text)) == text
        ):
            fault = Fault(
                kind=_WRITTEN,
                family=_WRITTEN,
                function=function.name,
                function_first_line=function.first_line,
                function_last_line=function.last_line,
                line=first,
                original=text,
                mutated=text,
            )
            faults.append(fault)
    return faults


def _first_line(statement: ast.stmt) -> int:
    """Return the line of a statement's first decorator, or else of the statement."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(item.lineno for item in decorators)])


def _begins_line(statement: ast.stmt, lines: list[str]) -> bool:
    return not lines[statement.lineno - 1].encode()[: statement.col_offset].strip()


def _margin(text: str) -> str:
    return text[: len(text) - len(text.lstrip())]


def unindented(text: str) -> str:
    """Return a function without the indentation of its first line."""
    margin = _margin(text)
    return "\n".join(line.removeprefix(margin) for line in text.split("\n"))


def is_unwritten(candidate: Candidate) -> bool:
    """Return whether the candidate's fault has yet to be written."""
    return candidate.fault.mutated == candidate.fault.original


class Reading(NamedTuple):
    """Fault of an answer; without one, the reason and its detail."""

    fault: Fault | None = None
    reason: str = ""
    detail: str = ""


def read_fault(answer: str, candidate: Candidate) -> Reading:
    """Return the fault in an answer about the function of an unwritten candidate.

    Raises:
        NoAnswerError: there is no code, or much more than the function has.
        HostileInputError: the code exceeds the parser's limits.
    """
    code = find_code(answer, max_chars=2 * len(candidate.fault.original) + 2000)
    return call_isolated(partial(_read, candidate.source, candidate.fault, code), SOURCE_LIMITS)


def _read(source: str, unwritten: Fault, code: str) -> Reading:
    before = unindented(unwritten.original)
    code = textwrap.dedent(code)
    try:
        old, new = parse_python(before).body[0], parse_python(code).body
    except ValueError as error:
        return Reading(reason="not_written", detail=str(error)[:500])
    if len(new) != 1 or not isinstance(new[0], FunctionNode) or not isinstance(old, FunctionNode):
        return Reading(reason="other_function", detail="expected the function and nothing else")
    node, lines = new[0], code.split("\n")
    if trees_differ(_header(old), _header(node)) or not _begins_line(node.body[0], lines):
        return Reading(
            reason="other_function",
            detail="expected the same name, decorators, parameters, annotations and docstring",
        )
    if not trees_differ(ast.Module(old.body, []), ast.Module(node.body, [])):
        return Reading(reason="unchanged", detail="the function does the same as before")
    # What stands above the body is the original's: comments there would be changes, too.
    head = before.split("\n")[: _first_line(old.body[0]) - 1]
    after = "\n".join([*head, *lines[_first_line(node.body[0]) - 1 : node.end_lineno]])
    try:
        problem = _revealing(before, after)
    except (SyntaxError, tokenize.TokenError) as error:
        return Reading(reason="not_written", detail=str(error)[:500])
    if problem:
        return Reading(reason="reveals", detail=problem)
    fault = _changed_lines(unwritten, textwrap.indent(after, _margin(unwritten.original)))
    if fault.mutated == fault.original:
        return Reading(reason="unchanged", detail="nothing but white space at ends of lines is changed")
    if max(fault.original.count("\n"), fault.mutated.count("\n")) >= _MAX_LINES:
        detail = f"more than {_MAX_LINES} lines from the first to the last changed one"
        return Reading(reason="too_many_lines", detail=detail)
    if not _changes_body_only(source, fault):
        return Reading(reason="other_function", detail="in its place, the code changes more than the body")
    return Reading(fault)


def _header(node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
    """Return a function with nothing but its docstring."""
    fields = {name: getattr(node, name) for name in node._fields if name != "body"}
    docstring = ast.Expr(ast.Constant(ast.get_docstring(node, clean=False)))
    return type(node)(**fields, body=[docstring])


def _revealing(before: str, after: str) -> str:
    """Return what points at the fault in a changed function; empty if nothing does.

    Raises SyntaxError, TokenError: its lines do not fit together.
    """
    added = Counter(_comments(after)) - Counter(_comments(before))
    if added:
        return f"a new comment: {next(iter(added))[:200]}"
    old_lines = set(before.split("\n"))
    new_text = "\n".join(line for line in after.split("\n") if line not in old_lines)
    old_words = {word.lower() for word in _REVEALING.findall(before)}
    words = [word for word in _REVEALING.findall(new_text) if word.lower() not in old_words]
    return f"the word '{words[0]}'" if words else ""


def _comments(code: str) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    return [token.string for token in tokens if token.type == tokenize.COMMENT]


def _changed_lines(unwritten: Fault, text: str) -> Fault:
    """Return the fault of the lines in which a function's new text differs, at least one on each side.

    Differences in white space at the end of lines around them are left out.
    """
    old, new = unwritten.original.split("\n"), text.split("\n")
    most = min(len(old), len(new))
    same = [a.rstrip() == b.rstrip() for a, b in zip(old, new, strict=False)]
    same_at_end = [a.rstrip() == b.rstrip() for a, b in zip(reversed(old), reversed(new), strict=False)]
    # The line of ``def`` is always the same, so that there is one to add above inserted or removed lines.
    start = min([*(number for number, equal in enumerate(same) if not equal), most - 1])
    end = min([*(number for number, equal in enumerate(same_at_end) if not equal), most - start - 1])
    return replace(
        unwritten,
        line=unwritten.line + start,
        original="\n".join(old[start : len(old) - end]),
        mutated="\n".join(new[start : len(new) - end]),
    )


def _changes_body_only(source: str, fault: Fault) -> bool:
    """Return whether a fault leaves all of the module but the function's body as it is."""
    trees = []
    for text in (source, apply_fault(source, fault)):
        try:
            tree = parse_python(text)
        except ValueError:
            return False
        for function in functions_of(tree):
            if function.first_line == fault.function_first_line:
                function.node.body = [ast.Pass()]
        trees.append(tree)
    return not trees_differ(*trees)
