"""Source text of a Python test file with its syntax tree; positions are byte offsets."""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Sequence

from engine.grading.counterfactual.base import Mutant, MutantKind
from engine.grading.counterfactual.python import names
from engine.python_syntax import parse_python

Edit = tuple[int, int, str]
"""First byte, byte after the last, replacement."""
_MAX_TEXT = 300
_MAX_BYTES = 2 << 20


class PythonSource:
    """A parsed test file.

    Args:
        content: bytes of the file.
        path: path recorded in its mutants.

    Raises:
        ValueError: it is not UTF-8, too long, or not in this interpreter's grammar.
    """

    def __init__(self, content: bytes, path: str) -> None:
        if len(content) > _MAX_BYTES:
            raise ValueError(f"{path} has {len(content)} bytes; at most {_MAX_BYTES} are parsed")
        self.content = content
        self.path = path
        text = content.removeprefix(BOM_UTF8).decode("utf-8")
        self.tree = parse_python(text)
        self.bound = _bindings(self.tree)
        """Number of bindings of each name in the module, in any scope."""
        self._reads = Counter(
            node.id
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        )
        self._defined = {name for node in ast.walk(self.tree) if (name := _defined_name(node))}
        if any(getattr(node, "attr", "") == "addTypeEqualityFunc" for node in ast.walk(self.tree)):
            self._defined |= {"assertEqual", "assertEquals", "failUnlessEqual"}
        self.classes = {node.name: node for node in self.tree.body if isinstance(node, ast.ClassDef)}
        """The module's classes by name."""
        self.functions = self._functions()
        """Name of a function or method that nothing else binds → name of its class, and node."""
        self.fixture_arguments = _fixture_arguments(self.tree)
        self.is_introspected = is_introspected(self.tree)
        self._line_starts = [0, *(match.end() for match in re.finditer(rb"\r\n|\r|\n", content))]
        self._first_column = len(content) - len(content.removeprefix(BOM_UTF8))

    def is_used_once(self, name: str) -> bool:
        """Return whether a name is bound once and read once in the whole module."""
        return self.bound[name] == 1 and self._reads[name] == 1

    def defines(self, name: str) -> bool:
        """Return whether the module itself defines a name; imports do not count."""
        return name in self._defined

    def ancestry(self, name: str) -> list[str]:
        """Return the names of a class and of its chain of first base classes."""
        chain = [name]
        while (node := self.classes.get(chain[-1])) is not None and node.bases:
            first = node.bases[0]
            if not isinstance(first, ast.Name) or first.id in chain:
                break
            chain.append(first.id)
        return chain

    def _functions(self) -> dict[str, tuple[str, ast.FunctionDef]]:
        assigned = {
            node.attr
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        }
        scopes = [("", self.tree.body), *((name, node.body) for name, node in self.classes.items())]
        return {
            node.name: (owner, node)
            for owner, body in scopes
            for node in body
            if isinstance(node, ast.FunctionDef)
            if self.bound[node.name] == 1 and node.name not in assigned
            if "*" not in self.bound
        }

    def start(self, node: ast.stmt | ast.expr) -> int:
        """Return the offset of a node's first byte."""
        return self._offset(node.lineno, node.col_offset)

    def end(self, node: ast.stmt | ast.expr) -> int:
        """Return the offset after a node's last byte."""
        if node.end_lineno is None or node.end_col_offset is None:
            raise ValueError(f"a node of {self.path} has no end")
        return self._offset(node.end_lineno, node.end_col_offset)

    def text(self, node: ast.stmt | ast.expr) -> str:
        """Return the source text of a node."""
        return self.content[self.start(node) : self.end(node)].decode()

    def line(self, offset: int) -> int:
        """Return the line of an offset, counted from 1."""
        return bisect_right(self._line_starts, offset)

    def _offset(self, line: int, column: int) -> int:
        return self._line_starts[line - 1] + column + (self._first_column if line == 1 else 0)

    def edited(self, start: int, end: int, edits: Sequence[Edit]) -> str:
        """Return the text between two offsets with the edits inside applied."""
        parts, done = [], start
        for first, last, text in sorted(edits):
            if start <= first and last <= end:
                parts += [self.content[done:first], text.encode()]
                done = last
        return b"".join([*parts, self.content[done:end]]).decode()

    def before(self, statement: ast.stmt) -> tuple[int, str, str]:
        """Return the offset for a new statement before another one, and the text before and after it."""
        parts = [*getattr(statement, "decorator_list", []), statement]
        start = min(self.start(part) for part in parts)
        line_start = self._line_starts[min(part.lineno for part in parts) - 1]
        indent = self.content[line_start:start].decode().removesuffix("@")
        if indent.strip():
            return start, "", "; "
        newline = "\r\n" if self.content[:line_start].endswith(b"\r\n") else "\n"
        return line_start, indent, newline

    def mutant(
        self,
        function: str,
        within: ast.stmt | ast.expr,
        edits: Sequence[Edit],
        kind: MutantKind,
    ) -> Mutant | None:
        """Return the mutant with the given edits; None if the edited statement or expression does not parse.

        Args:
            within: smallest node that contains the edits, shown as evidence.
            edits: edits that do not overlap.
        """
        first, last = self.start(within), self.end(within)
        start, end = min(edit[0] for edit in edits), max(edit[1] for edit in edits)
        after = self.edited(first, last, edits)
        try:
            parse_python(f"async def f():\n {after}\n")
        except ValueError:
            return None
        return Mutant(
            path=self.path,
            function=function,
            line=self.line(start),
            kind=kind,
            before=self.text(within)[:_MAX_TEXT],
            after=after.replace(names.OTHER, "other")[:_MAX_TEXT],
            start=start,
            end=end,
            replacement=self.edited(start, end, edits),
        )


def is_introspected(tree: ast.AST) -> bool:
    """Return whether code may read variables by introspection."""
    return any(
        getattr(node, "id", "") in names.INTROSPECTION or getattr(node, "attr", "") in names.INTROSPECTION
        for node in ast.walk(tree)
    )


def _fixture_arguments(tree: ast.Module) -> set[str]:
    """Return the arguments of decorated functions that are no tests: fixtures may receive those of tests."""
    return {
        argument.arg
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if node.decorator_list and not node.name.startswith("test")
        for argument in (*node.args.args, *node.args.kwonlyargs)
    }


def _defined_name(node: ast.AST) -> str:
    """Return the name that a node defines; empty for others and for imports."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return name
        case ast.Name(id=name, ctx=ast.Store()):
            return name
    return ""


def _bindings(tree: ast.Module) -> Counter[str]:
    """Return the number of bindings of each name in a module, in any scope."""
    counts: Counter[str] = Counter()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
                counts[name] += 1
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                counts[name] += 1
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                counts.update((alias.asname or alias.name).partition(".")[0] for alias in aliases)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                counts[name] += 1
    return counts
