"""Equivalent rewrites of a task's solution, made from its syntax tree: other spellings of the same behaviour.

Only functions that the solution changes are rewritten, and only where equivalence shows in the tree: operands
that are exchanged are names, constants and lengths, statements that are exchanged call nothing.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from engine.grading.hardening.recording import changed_functions
from engine.patches.apply import apply_patch
from engine.patches.diff import diff_trees
from engine.patches.trees import Tree
from engine.types import TaskRow

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_MIRRORED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE, ast.Eq: ast.Eq, ast.NotEq: ast.NotEq,
}  # fmt: skip
_DYNAMIC = {"locals", "vars", "eval", "exec", "dir", "super", "__class__"}
"""Names with which code may depend on the names of its variables."""
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A patch that behaves as the solution does; ``kind`` is one of ``KINDS``."""

    kind: str
    patch: str


def rewrites(row: TaskRow, before: Tree) -> list[Rewrite]:
    """Return at most one rewrite of each kind, deterministic.

    Args:
        row: the task.
        before: its versions of the files that the solution changes.
    """
    changes = apply_patch(before, row.answer.gold_patch)
    after = changes.applied_to(before)
    changed = changed_functions(before, changes.files)
    made = []
    for kind, rewrite in KINDS.items():
        tree = dict(after)
        for path, ranges in changed.items():
            text = rewritten(after[path].data.decode(), ranges, rewrite)
            tree[path] = after[path]._replace(data=text.encode())
        if any(tree[path] != after[path] for path in changed):
            made.append(Rewrite(kind, diff_trees(before, tree)))
    return made


def rewritten(text: str, ranges: list[tuple[int, int]], rewrite: Callable[[_Function], object]) -> str:
    """Return the text of a file in which the outermost functions at some lines are rewritten."""
    lines = text.split("\n")
    for function in reversed(list(_outermost(ast.parse(text)))):
        first = min([function.lineno, *(part.lineno for part in function.decorator_list)])
        last = function.end_lineno or function.lineno
        if not any(start >= first and stop <= last for start, stop in ranges):
            continue
        new = copy.deepcopy(function)
        rewrite(new)
        if _source(new, 0) != _source(function, 0):
            lines[first - 1 : last] = _source(new, function.col_offset // 4).split("\n")
    return "\n".join(lines)


def _source(function: _Function, depth: int) -> str:
    """Return the source of a function inside of some blocks; unlike an indented text it keeps its strings."""
    node: ast.stmt = ast.fix_missing_locations(function)
    for _ in range(depth):
        node = ast.fix_missing_locations(ast.If(ast.Constant(True), [node], []))
    return "\n".join(ast.unparse(node).split("\n")[depth:]).strip("\n")


def _outermost(node: ast.AST) -> Iterator[_Function]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
        else:
            yield from _outermost(child)


def _rename_locals(function: _Function) -> None:
    names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
    if _DYNAMIC & {node.id for node in names}:
        return
    fixed = {arg.arg for node in ast.walk(function) if isinstance(node, ast.arguments) for arg in _all(node)}
    for node in ast.walk(function):
        if isinstance(node, ast.Global | ast.Nonlocal):
            fixed.update(node.names)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            fixed.add(node.name)
        elif isinstance(node, ast.alias):
            fixed.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            fixed.add(node.name)
        if isinstance(node, ast.ClassDef):  # names in its body are attributes
            fixed.update(part.id for part in ast.walk(node) if isinstance(part, ast.Name))
    inner = {name.id for scope in _inner_scopes(function) for name in _stored(scope)}
    own = {name.id for name in _stored(function)} - fixed - inner
    for node in names:
        if node.id in own:
            node.id = f"{node.id}_other"


def _all(arguments: ast.arguments) -> list[ast.arg]:
    more = [arg for arg in (arguments.vararg, arguments.kwarg) if arg is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *more]


def _inner_scopes(function: _Function) -> list[ast.AST]:
    return [node for node in ast.walk(function) if isinstance(node, _SCOPES) and node is not function]


def _stored(scope: ast.AST) -> list[ast.Name]:
    return [
        node for node in ast.walk(scope) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]


class _Conditions(ast.NodeTransformer):
    """Invert ``if`` with ``else`` and conditional expressions."""

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        if not node.orelse:
            return node
        return ast.If(ast.UnaryOp(ast.Not(), node.test), node.orelse, node.body)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        return ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.orelse, node.body)


class _Comparisons(ast.NodeTransformer):
    """Mirror comparisons of plain operands."""

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        mirrored = _MIRRORED.get(type(node.ops[0]))
        if (
            mirrored is None
            or len(node.ops) > 1
            or not (_is_plain(node.left) and _is_plain(node.comparators[0]))
        ):
            return node
        return ast.Compare(node.comparators[0], [mirrored()], [node.left])


def _is_plain(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        is_length = isinstance(node.func, ast.Name) and node.func.id == "len" and len(node.args) == 1
        return is_length and _is_plain(node.args[0])
    if isinstance(node, ast.UnaryOp):
        return _is_plain(node.operand)
    return isinstance(node, ast.Name | ast.Constant)


class _Conjunctions(ast.NodeTransformer):
    """Apply De Morgan's law to tests of ``if`` and ``while``."""

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        node.test = self._negated(node.test)
        return node

    def visit_While(self, node: ast.While) -> ast.AST:
        self.generic_visit(node)
        node.test = self._negated(node.test)
        return node

    def _negated(self, test: ast.expr) -> ast.expr:
        if not isinstance(test, ast.BoolOp):
            return test
        other = ast.Or() if isinstance(test.op, ast.And) else ast.And()
        parts: list[ast.expr] = [ast.UnaryOp(ast.Not(), part) for part in test.values]
        return ast.UnaryOp(ast.Not(), ast.BoolOp(other, parts))


class _Blocks(ast.NodeTransformer):
    """Rewrite lists of statements by a function."""

    def __init__(self, rewrite: Callable[[list[ast.stmt]], list[ast.stmt]]) -> None:
        self._rewrite = rewrite

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(node, field, None)
            if isinstance(statements, list) and statements:
                setattr(node, field, self._rewrite(statements))
        return node


def _with_else(statements: list[ast.stmt]) -> list[ast.stmt]:
    """Put what follows an ``if`` that always leaves the function or loop into its ``else``."""
    for position, node in enumerate(statements[:-1]):
        leaves = isinstance(node, ast.If) and isinstance(node.body[-1], ast.Return | ast.Raise | ast.Continue)
        if isinstance(node, ast.If) and leaves and not node.orelse:
            inverted = ast.If(node.test, node.body, statements[position + 1 :])
            return [*statements[:position], inverted]
    return statements


def _exchanged(statements: list[ast.stmt]) -> list[ast.stmt]:
    """Exchange neighbouring assignments that do not depend on each other."""
    new, position = list(statements), 0
    while position + 1 < len(new):
        first, second = _assigned(new[position]), _assigned(new[position + 1])
        if first and second and first[0] not in {second[0], *second[1]} and second[0] not in first[1]:
            new[position : position + 2] = [new[position + 1], new[position]]
            position += 1
        position += 1
    return new


def _assigned(node: ast.stmt) -> tuple[str, set[str]] | None:
    """Return the assigned name and the used names of an assignment that cannot fail; else None."""
    if not (
        isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
    ):
        return None
    parts = list(ast.walk(node.value))
    harmless = (ast.Constant, ast.Name, ast.List, ast.Tuple, ast.Dict, ast.expr_context)
    if not all(isinstance(part, harmless) for part in parts):
        return None
    return node.targets[0].id, {part.id for part in parts if isinstance(part, ast.Name)}


def _loops(function: _Function) -> None:
    """Write list comprehensions that are assigned or returned as loops."""
    taken = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}

    def written(statements: list[ast.stmt]) -> list[ast.stmt]:
        return [part for node in statements for part in _loop(node, taken)]

    _Blocks(written).visit(function)


def _loop(node: ast.stmt, taken: set[str]) -> list[ast.stmt]:
    value = node.value if isinstance(node, ast.Assign | ast.Return) else None
    if not isinstance(value, ast.ListComp) or len(value.generators) > 1 or value.generators[0].is_async:
        return [node]
    if any(isinstance(part, *[(*_SCOPES, ast.ListComp, ast.GeneratorExp)]) for part in ast.walk(value.elt)):
        return [node]
    generator, name = value.generators[0], f"items_{len(taken)}"
    renamed = {part.id: f"{part.id}_{len(taken)}" for part in _stored(generator.target)}
    taken.update([name, *renamed.values()])
    for part in (value.elt, generator.target, *generator.ifs):
        for inner in ast.walk(part):
            if isinstance(inner, ast.Name):
                inner.id = renamed.get(inner.id, inner.id)
    append = ast.Attribute(ast.Name(name, ast.Load()), "append", ast.Load())
    body: list[ast.stmt] = [ast.Expr(ast.Call(append, [value.elt], []))]
    for test in reversed(generator.ifs):
        body = [ast.If(test, body, [])]
    node.value = ast.Name(name, ast.Load())  # type: ignore[attr-defined]
    start = ast.Assign([ast.Name(name, ast.Store())], ast.List([], ast.Load()))
    return [start, ast.For(generator.target, generator.iter, body, []), node]


KINDS: dict[str, Callable[[_Function], object]] = {
    "renamed variables": _rename_locals,
    "inverted conditions": lambda function: _Conditions().visit(function),
    "mirrored comparisons": lambda function: _Comparisons().visit(function),
    "De Morgan": lambda function: _Conjunctions().visit(function),
    "else after return": lambda function: _Blocks(_with_else).visit(function),
    "exchanged statements": lambda function: _Blocks(_exchanged).visit(function),
    "loops for comprehensions": _loops,
}
"""Kind → function that rewrites a syntax tree in place."""
