"""Variables of a program by scope, and those that keep a failure or a success until the program ends.

``failures = []; …; failures.append(name); …; if failures: sys.exit(1)`` keeps a failure, ``ok = False; …;
if out == "x": ok = True; …; sys.exit(not ok)`` a success.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Sequence

from engine.grading.counterfactual.python.functions import Function, own_nodes

Scope = ast.Module | Function
_GROWING = frozenset({"append", "add", "extend", "insert"})
_SHOWING = frozenset({
    "print", "len", "bool", "any", "all", "str", "repr", "enumerate", "sorted", "list", "tuple", "join",
    "dumps", "sum", "int", "dump",
})  # fmt: skip
"""Functions that leave a container as it is."""
_VIEWS = frozenset({"values", "items", "keys", "get"})
_READING = (
    ast.FormattedValue, ast.For, ast.comprehension, ast.If, ast.While, ast.IfExp, ast.UnaryOp, ast.BoolOp,
    ast.Compare, ast.Return, ast.Assert,
)  # fmt: skip
_EMPTY = frozenset({"list", "dict", "set"})


def truth_of(node: ast.expr | None) -> bool | None:
    """Return the truth of an expression that is the same in every run; None for others."""
    match node:
        case None:
            return False
        case ast.Constant(value=value):
            return bool(value)
        case ast.JoinedStr(values=values):
            return True if any(isinstance(one, ast.Constant) and one.value for one in values) else None
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Dict(values=parts):
            return bool(parts)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return truth_of(inner)
        case ast.Call(func=ast.Name(id=name), args=[], keywords=[]) if name in _EMPTY:
            return False
    return None


class Variables:
    """Variables of a module.

    Args:
        tree: the module.
        functions: name → function of the module's top level.
    """

    def __init__(self, tree: ast.Module, functions: Sequence[Function]) -> None:
        self._tree = tree
        self._parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        self._global = {
            function: {
                name
                for node in ast.walk(function)
                if isinstance(node, ast.Global | ast.Nonlocal)
                for name in node.names
            }
            for function in functions
        }
        self._bound = {
            function: {argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)}
            | {
                node.id
                for node in own_nodes(function.body)
                if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
            }
            for function in functions
        }
        self._uses: defaultdict[tuple[Scope, str], list[ast.Name]] = defaultdict(list)
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                self._uses[self.key(self._scope_of(node), node.id)].append(node)

    def key(self, scope: Scope, name: str) -> tuple[Scope, str]:
        """Return the scope that a name belongs to where it stands in another, with the name."""
        if isinstance(scope, ast.Module) or name in self._global[scope] or name not in self._bound[scope]:
            return self._tree, name
        return scope, name

    def _scope_of(self, node: ast.AST) -> Scope:
        found: ast.AST = node
        while found in self._parents and not (
            isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef) and found in self._bound
        ):
            found = self._parents[found]
        return found if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef) else self._tree

    def value_of(self, scope: Scope, name: str) -> ast.expr | None:
        """Return the only value that a variable gets; None where there are others, or none."""
        stores = self._stores(scope, name)
        statement = self._parents[stores[0]] if len(stores) == 1 else None
        return statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None

    def is_counted(self, scope: Scope, node: ast.expr) -> bool:
        """Return whether an expression is a variable that counts something."""
        return isinstance(node, ast.Name) and any(
            isinstance(self._parents[one], ast.AugAssign) for one in self._stores(scope, node.id)
        )

    def keeps(self, scope: Scope, name: str, *, wanted: bool) -> bool:
        """Return whether a variable is ``wanted`` at first, and for good no longer once it was changed."""
        first = self._initial(scope, name)
        if first is None or truth_of(first.value) is not wanted or not self._only_grows(scope, name):
            return False
        is_number = isinstance(first.value, ast.Constant)
        others = [one for one in map(self._parents.get, self._stores(scope, name)) if one is not first]
        return all(_is_change(one, name, wanted=wanted, is_number=is_number) for one in others)

    def earned(self, scope: Scope, name: str, *, wanted: bool) -> ast.Assign | None:
        """Return the only statement after which a variable is ``wanted``; None where there are others."""
        first = self._initial(scope, name)
        if first is None or truth_of(first.value) is not (not wanted):
            return None
        others = [one for one in map(self._parents.get, self._stores(scope, name)) if one is not first]
        kept = [one for one in others if isinstance(one, ast.Assign) and truth_of(one.value) is not None]
        found = [one for one in kept if truth_of(one.value) is wanted]
        return found[0] if len(found) == 1 and len(kept) == len(others) else None

    def decides(self, scope: Scope, name: str, *, wanted: bool) -> bool:
        """Return whether the truth of a variable says something of what was assigned to it before."""
        return (
            self.keeps(scope, name, wanted=wanted)
            or self.earned(scope, name, wanted=wanted) is not None
            or self.value_of(scope, name) is not None
        )

    def runs_once(self, scope: Scope, table: ast.expr) -> bool:
        """Return whether a loop over an expression has at least one pass."""
        match table:
            case ast.Name(id=name):
                value = self.value_of(scope, name)
                return value is not None and not isinstance(value, ast.Name) and self.runs_once(scope, value)
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                return any(not isinstance(part, ast.Starred) for part in parts)
            case ast.Dict(keys=keys):
                return bool(keys) and None not in keys
            case ast.Call(func=ast.Name(id="enumerate"), args=[inner, *_]):
                return self.runs_once(scope, inner)
            case ast.Call(func=ast.Attribute(value=inner, attr="items"), args=[], keywords=[]):
                return self.runs_once(scope, inner)
        return False

    def collects(self, scope: Scope, name: str) -> bool:
        """Return whether a variable is a container that only grows."""
        first = self._initial(scope, name)
        return (
            first is not None
            and not isinstance(first.value, ast.Constant)
            and truth_of(first.value) is not None
            and len(self._stores(scope, name)) == 1
            and self._only_grows(scope, name)
        )

    def _stores(self, scope: Scope, name: str) -> list[ast.Name]:
        found = self._uses[self.key(scope, name)]
        return [one for one in found if not isinstance(one.ctx, ast.Load)]

    def _initial(self, scope: Scope, name: str) -> ast.Assign | ast.AnnAssign | None:
        """Return the first statement of a scope's own body that assigns a variable, which is no argument."""
        owner, name = self.key(scope, name)
        if not isinstance(owner, ast.Module) and any(
            isinstance(one, ast.arg) and one.arg == name for one in ast.walk(owner.args)
        ):
            return None
        statements = {self._parents[one] for one in self._stores(scope, name)}
        found = next((one for one in owner.body if one in statements), None)
        if isinstance(found, ast.Assign | ast.AnnAssign) and found.value is not None:
            return found
        return None

    def _only_grows(self, scope: Scope, name: str) -> bool:
        """Return whether nothing is taken out of a variable; numbers and texts never change."""
        first = self._initial(scope, name)
        if first is not None and isinstance(first.value, ast.Constant):
            return True
        uses = self._uses[self.key(scope, name)]
        return all(self._is_harmless(one) for one in uses if isinstance(one.ctx, ast.Load))

    def _is_harmless(self, use: ast.Name) -> bool:
        parent = self._parents[use]
        match parent:
            case ast.Attribute(attr=name):
                return name in _GROWING or name in _VIEWS
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=args) if use in args:
                return name in _SHOWING
            case ast.Subscript(ctx=context):
                return not isinstance(context, ast.Del)
        return isinstance(parent, _READING)


def _is_change(statement: ast.AST | None, name: str, *, wanted: bool, is_number: bool) -> bool:
    """Return whether a statement can only bring a variable away from its first value."""
    match statement:
        case ast.Assign(targets=[ast.Name()], value=ast.BoolOp(op=operator, values=parts)):
            itself = any(isinstance(one, ast.Name) and one.id == name for one in parts)
            return itself and isinstance(operator, ast.And) is wanted
        case ast.Assign(
            targets=[ast.Name()], value=ast.BinOp(left=ast.Name(id=left), op=ast.Add(), right=right)
        ):
            return left == name and not wanted and truth_of(right) is True
        case ast.Assign(targets=[ast.Name()], value=value):
            return truth_of(value) is (not wanted)
        case ast.AugAssign(op=ast.BitAnd()):
            return wanted
        case ast.AugAssign(op=ast.BitOr()):
            return not wanted
        case ast.AugAssign(op=ast.Add(), value=value):
            grows = truth_of(value) is True or isinstance(value, ast.Compare) or not is_number
            return not wanted and grows and not isinstance(value, ast.UnaryOp)
    return False
