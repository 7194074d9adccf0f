"""Single-line faults in real Python functions, enumerated from the syntax tree and applied to the text.

Curation injects one per task; the warm start trains on the same distribution. Edit spans come from node
positions, so comments and formatting do not change. Every returned fault has been parsed: the mutated
function is valid Python with another syntax tree. To add a kind, write a rule in
``engine.datasets.curation.fault_rules`` and name its family in ``FAMILIES`` there.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from engine.datasets.curation.fault_rules import FAMILIES, propose
from engine.datasets.curation.fault_scope import FunctionScope
from engine.python_syntax import parse_python

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Changed lines of one function: a single one of injected faults, several of those by a model."""

    kind: str
    """Kind of fault, e.g. ``compare_flip``; one of the keys of ``fault_rules.FAMILIES``, or ``written``."""
    family: str
    """One short word for statements and thoughts, e.g. ``comparison``."""
    function: str
    """Qualified name, e.g. ``LRU.get``."""
    function_first_line: int
    """Line of ``def``, counted from 1."""
    function_last_line: int
    line: int
    """First changed line."""
    original: str
    """The whole lines, indentation included, without the last newline."""
    mutated: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function or method that is not nested in another function."""

    name: str
    node: FunctionNode
    first_line: int
    last_line: int


def apply_fault(source: str, fault: Fault) -> str:
    """Return ``source`` with the fault. Raises ValueError when its lines are not the fault's original."""
    lines, original = source.split("\n"), fault.original.split("\n")
    place = slice(fault.line - 1, fault.line - 1 + len(original))
    if fault.line < 1 or [line.removesuffix("\r") for line in lines[place]] != original:
        raise ValueError(f"line {fault.line} is not {fault.original!r}")
    ending = "\r" if lines[fault.line - 1].endswith("\r") else ""
    lines[place] = [line + ending for line in fault.mutated.split("\n")]
    return "\n".join(lines)


def functions_of(tree: ast.AST) -> Iterator[Function]:
    """Yield functions and methods in order of appearance; nested functions belong to the outer one."""
    stack: list[tuple[ast.AST, str]] = [(tree, "")]
    while stack:
        node, prefix = stack.pop()
        for child in reversed(list(ast.iter_child_nodes(node))):
            if isinstance(child, FunctionNode):
                continue
            stack.append((child, prefix + child.name + "." if isinstance(child, ast.ClassDef) else prefix))
        for child in ast.iter_child_nodes(node):
            if isinstance(child, FunctionNode):
                last = child.end_lineno or child.lineno
                yield Function(name=prefix + child.name, node=child, first_line=child.lineno, last_line=last)


def enumerate_faults(
    source: str, *, max_function_lines: int | None = None, lines: Collection[int] | None = None
) -> list[Fault]:
    """Return every single-line fault of every function of a module, in order of appearance.

    Args:
        source: text of a module; one that does not parse has no faults.
        max_function_lines: skip functions with more lines (``def`` line to last line).
        lines: skip functions without any of these lines, counted from 1; None skips none.
    """
    tree = _parse(source)
    if tree is None or "\r" in source.replace("\r\n", "\n"):
        return []
    texts = source.encode().split(b"\n")
    faults: list[Fault] = []
    for function in functions_of(tree):
        own = range(function.first_line, function.last_line + 1)
        is_wanted = lines is None or any(line in own for line in lines)
        if is_wanted and (max_function_lines is None or len(own) <= max_function_lines):
            faults.extend(_function_faults(function, texts))
    return faults


def _function_faults(function: Function, lines: list[bytes]) -> Iterator[Fault]:
    function_lines = lines[function.first_line - 1 : function.last_line]
    reference = _parse_function(function_lines)
    if reference is None:
        return
    seen: set[tuple[int, bytes]] = set()
    for edit in propose(FunctionScope(function.node, lines)):
        line = lines[edit.line - 1]
        mutated = line[: edit.start] + edit.replacement + line[edit.end :]
        if (edit.line, mutated) in seen:
            continue
        seen.add((edit.line, mutated))
        offset = edit.line - function.first_line
        tree = _parse_function([*function_lines[:offset], mutated, *function_lines[offset + 1 :]])
        if tree is None or not trees_differ(reference, tree):
            continue
        yield Fault(
            kind=edit.kind,
            family=FAMILIES[edit.kind],
            function=function.name,
            function_first_line=function.first_line,
            function_last_line=function.last_line,
            line=edit.line,
            original=line.decode().removesuffix("\r"),
            mutated=mutated.decode().removesuffix("\r"),
        )


def trees_differ(left: ast.AST, right: ast.AST) -> bool:
    """Return whether two syntax trees differ in anything but positions."""
    stack: list[tuple[object, object]] = [(left, right)]
    while stack:
        a, b = stack.pop()
        if type(a) is not type(b):
            return True
        if isinstance(a, ast.AST):
            stack.extend((getattr(a, name, None), getattr(b, name, None)) for name in a._fields)
        elif isinstance(a, list) and isinstance(b, list):
            if len(a) != len(b):
                return True
            stack.extend(zip(a, b, strict=True))
        elif a != b:
            return True
    return False


def _parse_function(lines: list[bytes]) -> ast.Module | None:
    indented = lines[0][:1] in (b" ", b"\t")
    # An indented method parses inside a block; dedenting it could break multi-line strings.
    return _parse(b"\n".join([b"if 1:", *lines] if indented else lines))


def _parse(source: str | bytes) -> ast.Module | None:
    try:
        return parse_python(source)
    except ValueError:
        return None
