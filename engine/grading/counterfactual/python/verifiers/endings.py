"""Endings of a program that decide: its exit, or the reward that it writes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from engine.grading.counterfactual.python.functions import Function, dotted
from engine.grading.counterfactual.python.verifiers.variables import truth_of

_EXITS = frozenset({"sys.exit", "exit", "quit", "os._exit", "SystemExit"})
_REWARD = re.compile(r"(?i)reward")
_WRITES = frozenset({"write", "write_text"})
_HARMLESS = frozenset({
    "Path", "PurePath", "open", "join", "dirname", "exists", "makedirs", "mkdir", "unlink", "get", "getenv",
    "str", "print", "resolve", "remove", "touch", "is_file",
})  # fmt: skip
"""Functions that write no number to the file that they are given."""
_NUMBERS = frozenset({"str", "int", "float", "bool"})


@dataclass(frozen=True, slots=True)
class Ending:
    """A call that may end a program well: every run that passes makes one of these.

    Args:
        value: expression on which it depends; None where it is unknown.
        wanted: its truth in passing runs.
    """

    value: ast.expr | None
    wanted: bool

    @property
    def fails(self) -> bool:
        """Return whether no passing run ends like this."""
        truth = truth_of(self.value) if self.value is not None else None
        return truth is (not self.wanted)


def exit_of(node: ast.AST) -> Ending | None:
    """Return the ending of a call that exits, or of an exception that does; None for other nodes."""
    match node:
        case ast.Call(args=args, keywords=[]) if dotted(node) in _EXITS and len(args) < 2:
            return Ending(args[0] if args else ast.Constant(value=0), wanted=False)
        case ast.Raise(exc=ast.Name(id="SystemExit")):
            return Ending(ast.Constant(value=0), wanted=False)
    return None


class Rewards:
    """Writes of a reward in a module.

    Args:
        tree: the module.
        functions: the functions of its top level.
    """

    def __init__(self, tree: ast.Module, functions: Sequence[Function]) -> None:
        self._functions = {function.name: function for function in functions}
        self._names: set[str] = set()
        """Variables that may hold the file's path or the open file."""
        bindings = list(_bindings(tree, self._functions))
        while new := {name for name, value in bindings if self._mentions(value)} - self._names:
            self._names |= new

    def ending_of(self, call: ast.Call) -> Ending | None:
        """Return the ending of a call that may write a reward; None where it certainly writes none."""
        name = call.func.attr if isinstance(call.func, ast.Attribute) else dotted(call)
        target = call.func.value if isinstance(call.func, ast.Attribute) else None
        arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
        if name in _WRITES and target is not None and self._mentions(target) and len(call.args) == 1:
            return Ending(_number(call.args[0]), wanted=True)
        if name == "dump" and len(call.args) == 2 and self._mentions(call.args[1]):
            return Ending(_number(call.args[0]), wanted=True)
        if (
            name == "print"
            and len(call.args) == 1
            and any(keyword.arg == "file" and self._mentions(keyword.value) for keyword in call.keywords)
        ):
            return Ending(_number(call.args[0]), wanted=True)
        if name in self._functions and not isinstance(call.func, ast.Attribute):
            return self._of_function(self._functions[name], call)
        if name not in _HARMLESS and any(map(self._mentions, arguments)):
            return Ending(None, wanted=True)
        return None

    def _of_function(self, function: Function, call: ast.Call) -> Ending | None:
        """Return the ending of a call of a function that writes one of its arguments as the reward."""
        inner = [one for one in ast.walk(function) if isinstance(one, ast.Call)]
        called = {dotted(one) for one in inner}
        writes = [
            ending
            for one in inner
            if dotted(one) not in self._functions and (ending := self.ending_of(one)) is not None
        ]
        if not writes or called & self._functions.keys():
            return None
        given = dict(zip((one.arg for one in function.args.args), call.args, strict=False))
        given |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        value = writes[0].value
        if len(writes) == 1 and isinstance(value, ast.Name) and value.id in given:
            return Ending(_number(given[value.id]), wanted=True)
        return None

    def _mentions(self, node: ast.AST) -> bool:
        return any(
            (isinstance(one, ast.Constant) and isinstance(one.value, str) and _REWARD.search(one.value))
            or (isinstance(one, ast.Name) and one.id in self._names)
            for one in ast.walk(node)
        )


def _bindings(tree: ast.Module, functions: dict[str, Function]) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    yield from ((one.id, value) for one in ast.walk(target) if isinstance(one, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                yield name, value
            case ast.NamedExpr(target=ast.Name(id=name), value=value):
                yield name, value
            case ast.withitem(context_expr=value, optional_vars=ast.Name(id=name)):
                yield name, value
            case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
                yield from ((one.id, value) for one in ast.walk(target) if isinstance(one, ast.Name))
            case ast.Call(func=ast.Name(id=called), args=args, keywords=keywords) if called in functions:
                names = [one.arg for one in functions[called].args.args]
                yield from zip(names, args, strict=False)
                yield from ((one.arg, one.value) for one in keywords if one.arg)


def _number(value: ast.expr) -> ast.expr:
    """Return the expression whose number is written: without conversions to text, line ends and names."""
    match value:
        case ast.Call(func=ast.Name(id=name), args=[inner], keywords=[]) if name in _NUMBERS:
            return _number(inner)
        case ast.Call(func=ast.Attribute(attr="dumps"), args=[inner]):
            return _number(inner)
        case ast.BinOp(left=inner, op=ast.Add(), right=ast.Constant(value="\n")):
            return _number(inner)
        case ast.JoinedStr(values=[ast.FormattedValue(value=inner), *rest]) if all(
            isinstance(one, ast.Constant) and str(one.value).isspace() for one in rest
        ):
            return _number(inner)
        case ast.Dict(values=[inner]):
            return _number(inner)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return ast.copy_location(ast.IfExp(test=test, body=_number(body), orelse=_number(orelse)), value)
        case ast.Constant(value=str(text)):
            try:
                return ast.copy_location(ast.Constant(value=float(text)), value)
            except ValueError:
                return value
    return value
