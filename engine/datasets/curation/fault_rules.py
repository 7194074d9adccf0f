"""The kinds of single-line faults: rules that propose text edits for syntax-tree nodes.

A rule looks at one node and yields ``Edit``s whose span lies on one physical line. Edits may be
invalid: ``engine.datasets.curation.faults`` keeps only those that parse to another tree. Columns are UTF-8
byte offsets, as in ``ast``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise

from engine.datasets.curation.fault_scope import Edit, FunctionScope

FAMILIES: Mapping[str, str] = {
    "compare_flip": "comparison",
    "equality_flip": "comparison",
    "identity_flip": "comparison",
    "membership_flip": "comparison",
    "arithmetic_swap": "arithmetic",
    "augmented_swap": "arithmetic",
    "swapped_operands": "arithmetic",
    "dropped_minus": "arithmetic",
    "boolean_swap": "logic",
    "bool_literal": "constant",
    "constant_off_by_one": "constant",
    "dropped_not": "condition",
    "added_not": "condition",
    "swapped_branches": "condition",
    "range_off_by_one": "range",
    "slice_off_by_one": "range",
    "swapped_arguments": "arguments",
    "swapped_return": "arguments",
    "wrong_variable": "variable",
    "wrong_attribute": "variable",
    "paired_name": "name",
}
"""Kind of fault → its word in statements and thoughts."""

_COMPARE = {"<": ("<=", ">"), "<=": ("<", ">="), ">": (">=", "<"), ">=": (">", "<=")}
_COMPARE_OPS: Mapping[type[ast.cmpop], tuple[str, str, tuple[str, ...]]] = {
    ast.Lt: ("compare_flip", "<", _COMPARE["<"]),
    ast.LtE: ("compare_flip", "<=", _COMPARE["<="]),
    ast.Gt: ("compare_flip", ">", _COMPARE[">"]),
    ast.GtE: ("compare_flip", ">=", _COMPARE[">="]),
    ast.Eq: ("equality_flip", "==", ("!=",)),
    ast.NotEq: ("equality_flip", "!=", ("==",)),
    ast.Is: ("identity_flip", "is", ("is not",)),
    ast.IsNot: ("identity_flip", r"is\s+not", ("is",)),
    ast.In: ("membership_flip", "in", ("not in",)),
    ast.NotIn: ("membership_flip", r"not\s+in", ("in",)),
}
_BINARY_OPS: Mapping[type[ast.operator], tuple[str, tuple[str, ...]]] = {
    ast.Add: ("+", ("-",)),
    ast.Sub: ("-", ("+",)),
    ast.Mult: ("*", ("+", "//")),
    ast.Div: ("/", ("*", "//")),
    ast.FloorDiv: ("//", ("/", "%")),
    ast.Mod: ("%", ("//",)),
    ast.Pow: ("**", ("*",)),
    ast.LShift: ("<<", (">>",)),
    ast.RShift: (">>", ("<<",)),
    ast.BitAnd: ("&", ("|",)),
    ast.BitOr: ("|", ("&",)),
    ast.BitXor: ("^", ("&",)),
}
_PAIRS = (
    "min max", "any all", "append extend", "lower upper", "startswith endswith", "lstrip rstrip",
    "ljust rjust", "find rfind", "index rindex", "split rsplit", "partition rpartition",
    "keys values", "items values", "pop popleft", "append appendleft", "extend extendleft",
    "sorted reversed", "union intersection", "intersection difference", "add discard", "add remove",
    "floor ceil", "encode decode", "isdigit isalpha", "islower isupper", "bisect_left bisect_right",
    "bisect insort", "start stop", "first last", "left right", "head tail", "int float", "sum len",
    "get pop", "setdefault get", "issubset issuperset", "list set", "enumerate zip", "hasattr getattr",
    "acquire release", "title capitalize", "insert append", "next prev", "islice cycle",
)  # fmt: skip
_PAIRED: dict[str, list[str]] = {}
for _pair in _PAIRS:
    _left, _right = _pair.split()
    _PAIRED.setdefault(_left, []).append(_right)
    _PAIRED.setdefault(_right, []).append(_left)
_LOGGING = frozenset({"debug", "info", "warning", "error", "critical", "exception", "log", "warn"})
_ATOMS = (ast.Name, ast.Attribute, ast.Constant, ast.Subscript, ast.Call)


def propose(scope: FunctionScope) -> Iterator[Edit]:
    """Yield all edits of a function, in order of appearance.

    Docstrings, annotations, decorators, ``raise`` statements, f-strings and logging calls are not edited.
    """
    stack: list[ast.AST] = [scope.node]
    while stack:
        node = stack.pop()
        for rule in _RULES.get(type(node), ()):
            yield from rule(scope, node)
        stack.extend(reversed(list(_children(node))))


def _children(node: ast.AST) -> Iterable[ast.AST]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return [*node.args.defaults, *(d for d in node.args.kw_defaults if d), *node.body]
    if isinstance(node, ast.AnnAssign):
        return [node.target] if node.value is None else [node.value]
    if isinstance(node, ast.Assert):
        return [node.test]
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return ()
    if isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets
    ):
        return ()
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return ()
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _is_logging(node.value):
        return ()
    return ast.iter_child_nodes(node)


def _is_logging(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in _LOGGING


def _compare(scope: FunctionScope, node: ast.Compare) -> Iterator[Edit]:
    for left, op, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
        kind, pattern, choices = _COMPARE_OPS[type(op)]
        span = scope.gap(left, right, pattern)
        if span:
            for choice in choices:
                yield Edit(kind, *span, choice.encode())


def _binary(scope: FunctionScope, node: ast.BinOp) -> Iterator[Edit]:
    operator, choices = _BINARY_OPS.get(type(node.op), ("", ()))
    if not operator or _is_text(node.left) or _is_text(node.right):
        return
    span = scope.gap(node.left, node.right, re.escape(operator))
    if span is None:
        return
    for choice in choices:
        yield Edit("arithmetic_swap", *span, choice.encode())
    ordered = isinstance(node.op, ast.Sub | ast.Div | ast.FloorDiv | ast.Mod | ast.Pow)
    if ordered and isinstance(node.left, _ATOMS) and isinstance(node.right, _ATOMS):
        yield from scope.swap("swapped_operands", node.left, node.right)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def _augmented(scope: FunctionScope, node: ast.AugAssign) -> Iterator[Edit]:
    operator, choices = _BINARY_OPS.get(type(node.op), ("", ()))
    span = scope.gap(node.target, node.value, re.escape(operator + "="))
    if operator and span and not _is_text(node.value):
        for choice in choices:
            yield Edit("augmented_swap", *span, choice.encode() + b"=")


def _boolean(scope: FunctionScope, node: ast.BoolOp) -> Iterator[Edit]:
    operator, other = ("and", b"or") if isinstance(node.op, ast.And) else ("or", b"and")
    for left, right in pairwise(node.values):
        span = scope.gap(left, right, operator)
        if span:
            yield Edit("boolean_swap", *span, other)
    for value in node.values:
        yield from _negate(value)


def _negate(test: ast.expr) -> Iterator[Edit]:
    if isinstance(test, ast.Name | ast.Attribute | ast.Call | ast.Compare | ast.Subscript):
        yield Edit("added_not", test.lineno, test.col_offset, test.col_offset, b"not ")


def _test(_scope: FunctionScope, node: ast.If | ast.While | ast.Assert) -> Iterator[Edit]:
    return _negate(node.test)


def _conditional(scope: FunctionScope, node: ast.IfExp) -> Iterator[Edit]:
    yield from _negate(node.test)
    yield from scope.swap("swapped_branches", node.body, node.orelse)


def _comprehension(_scope: FunctionScope, node: ast.comprehension) -> Iterator[Edit]:
    for test in node.ifs:
        yield from _negate(test)


def _unary(scope: FunctionScope, node: ast.UnaryOp) -> Iterator[Edit]:
    kinds = {ast.Not: ("dropped_not", b"not"), ast.USub: ("dropped_minus", b"-")}
    kind, text = kinds.get(type(node.op), ("", b""))
    if kind and node.lineno == node.operand.lineno:
        between = scope.lines[node.lineno - 1][node.col_offset : node.operand.col_offset]
        if between.strip() == text:
            yield Edit(kind, node.lineno, node.col_offset, node.operand.col_offset, b"")


def _constant(scope: FunctionScope, node: ast.Constant) -> Iterator[Edit]:
    value = node.value
    if isinstance(value, bool):
        yield _whole("bool_literal", node, str(not value).encode())
    elif isinstance(value, int) and scope.text(node) == str(value).encode() and value < 10_000:
        yield _whole("constant_off_by_one", node, str(value + 1).encode())
        if value:
            yield _whole("constant_off_by_one", node, str(value - 1).encode())


def _whole(kind: str, node: ast.expr, replacement: bytes) -> Edit:
    return Edit(kind, node.lineno, node.col_offset, node.end_col_offset or 0, replacement)


def _subscript(scope: FunctionScope, node: ast.Subscript) -> Iterator[Edit]:
    if isinstance(node.slice, ast.Slice):
        for bound in (node.slice.lower, node.slice.upper):
            if bound is not None:
                yield from _shift("slice_off_by_one", scope, bound)
    elif isinstance(node.slice, ast.Constant):
        yield from _shift("slice_off_by_one", scope, node.slice)


def _shift(kind: str, scope: FunctionScope, node: ast.expr) -> Iterator[Edit]:
    """Yield index expressions that are off by one."""
    if node.lineno != node.end_lineno:
        return
    text = scope.text(node)
    if isinstance(node, ast.Constant):
        if isinstance(node.value, int) and not isinstance(node.value, bool):
            yield _whole(kind, node, str(node.value + 1).encode())
            if node.value:
                yield _whole(kind, node, str(node.value - 1).encode())
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        if isinstance(node.right, ast.Constant) and node.right.value == 1:
            yield _whole(kind, node, scope.text(node.left))
    elif isinstance(node, ast.Name | ast.Attribute | ast.Call):
        yield _whole(kind, node, text + b" + 1")
        yield _whole(kind, node, text + b" - 1")


def _call(scope: FunctionScope, node: ast.Call) -> Iterator[Edit]:
    if isinstance(node.func, ast.Name) and node.func.id == "range" and node.args:
        for argument in node.args[:2]:
            yield from _shift("range_off_by_one", scope, argument)
    plain = [a for a in node.args if not isinstance(a, ast.Starred | ast.GeneratorExp)]
    if len(plain) == len(node.args):
        for left, right in pairwise(plain):
            yield from scope.swap("swapped_arguments", left, right)
    yield from _paired_name(scope, node.func)


def _paired_name(scope: FunctionScope, callee: ast.expr) -> Iterator[Edit]:
    if isinstance(callee, ast.Name):
        for other in _PAIRED.get(callee.id, ()):
            yield _whole("paired_name", callee, other.encode())
    elif isinstance(callee, ast.Attribute):
        for other in _PAIRED.get(callee.attr, ()):
            yield from _rename_attribute("paired_name", scope, callee, other)


def _rename_attribute(kind: str, scope: FunctionScope, node: ast.Attribute, name: str) -> Iterator[Edit]:
    line, end, length = node.end_lineno or 0, node.end_col_offset or 0, len(node.attr.encode())
    if scope.lines[line - 1][end - length : end] == node.attr.encode():
        yield Edit(kind, line, end - length, end, name.encode())


def _attribute(scope: FunctionScope, node: ast.Attribute) -> Iterator[Edit]:
    if not (isinstance(node.value, ast.Name) and node.value.id == "self"):
        return
    others = [name for name in scope.self_attributes if name != node.attr]
    for other in _some(others, node.lineno + node.col_offset):
        yield from _rename_attribute("wrong_attribute", scope, node, other)


def _name(scope: FunctionScope, node: ast.Name) -> Iterator[Edit]:
    if not isinstance(node.ctx, ast.Load) or all(node.id != name for name, _ in scope.bound):
        return
    others = [name for name, line in scope.bound if line < node.lineno and name != node.id]
    for other in _some(others, node.lineno + node.col_offset):
        yield _whole("wrong_variable", node, other.encode())


def _some(names: list[str], rotation: int) -> list[str]:
    """Return at most two names, chosen by position, without randomness."""
    start = rotation % len(names) if names else 0
    return (names[start:] + names[:start])[:2]


def _return(scope: FunctionScope, node: ast.Return) -> Iterator[Edit]:
    if isinstance(node.value, ast.Tuple):
        for left, right in pairwise(node.value.elts):
            if not isinstance(left, ast.Starred) and not isinstance(right, ast.Starred):
                yield from scope.swap("swapped_return", left, right)


_RULES: Mapping[type[ast.AST], tuple[Callable[..., Iterator[Edit]], ...]] = {
    ast.Compare: (_compare,),
    ast.BinOp: (_binary,),
    ast.AugAssign: (_augmented,),
    ast.BoolOp: (_boolean,),
    ast.If: (_test,),
    ast.While: (_test,),
    ast.Assert: (_test,),
    ast.IfExp: (_conditional,),
    ast.comprehension: (_comprehension,),
    ast.UnaryOp: (_unary,),
    ast.Constant: (_constant,),
    ast.Subscript: (_subscript,),
    ast.Call: (_call,),
    ast.Attribute: (_attribute,),
    ast.Name: (_name,),
    ast.Return: (_return,),
}
