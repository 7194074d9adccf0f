"""Ways through a program that end badly, and those that may not."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from engine.grading.counterfactual.python.functions import Function, dotted, own_nodes
from engine.grading.counterfactual.python.verifiers.endings import Ending, Rewards, exit_of
from engine.grading.counterfactual.python.verifiers.frames import NOTHING, Frame, Key, Needs
from engine.grading.counterfactual.python.verifiers.variables import Scope, Variables, truth_of

MAX_DEPTH = 6


class Paths:
    """Ways through a program.

    Args:
        functions: name → function that is read where it is called.
        variables: those of the module.
        known: variables by which the program decides somewhere.
        rewards: what it writes as its reward; None where its exit code decides.
    """

    def __init__(
        self,
        functions: Mapping[str, Function],
        variables: Variables,
        known: AbstractSet[Key],
        rewards: Rewards | None,
    ) -> None:
        self._functions = functions
        self._variables = variables
        self._known = known
        self._rewards = rewards
        self._reading: list[Scope] = []
        self._winning: dict[ast.AST, bool] = {}
        self._ends: dict[tuple[ast.stmt, Frame], Needs | None] = {}
        self._winners: set[str] = set()
        """Functions in which the program may end well."""
        while new := {
            name
            for name, function in functions.items()
            if name not in self._winners and any(map(self._wins, function.body))
        }:
            self._winners |= new

    def key(self, frame: Frame, name: str, wanted: bool | str) -> Key:
        """Return the key of a variable."""
        return (*self._variables.key(frame.scope, name), wanted)

    def called(self, call: ast.expr) -> Function | None:
        """Return the function of the program that an expression calls; None for others."""
        is_plain = isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
        function = self._functions.get(dotted(call)) if is_plain else None
        if function is None or any(
            isinstance(one, ast.Yield | ast.YieldFrom) for one in own_nodes(function.body)
        ):
            return None
        return function

    def is_read(self, node: ast.stmt) -> bool:
        """Return whether a definition is a function that is read where it is called."""
        return isinstance(node, ast.FunctionDef) and self._functions.get(node.name) is node

    def ending(self, node: ast.stmt) -> Ending | None:
        """Return the ending that a statement is; None for others."""
        match node:
            case ast.Raise(exc=ast.expr() as raised):
                ending = exit_of(node) or exit_of(raised)
            case ast.Expr(value=ast.Call() as call):
                ending = self._rewards.ending_of(call) if self._rewards is not None else None
                if ending is not None:
                    return None if ending.fails else ending
                ending = exit_of(call)
            case _:
                return None
        return Ending(None, wanted=True) if ending is not None and self._rewards is not None else ending

    def fails(
        self, statements: Sequence[ast.stmt], frame: Frame, rest: Sequence[ast.stmt] = ()
    ) -> Needs | None:
        """Return what makes every run fail that comes to statements; None where it may pass.

        Args:
            rest: statements that follow, before those of the frame's end.
        """
        needs: Needs = NOTHING
        for node in statements:
            ends, found = self._fate(node, frame)
            needs |= found or NOTHING
            if ends:
                return needs or found
            if self._may_win(node) or (not needs and self.may_leave(node, frame)):
                return None
        if needs:
            return needs
        return self._fails_at_end(rest, frame)

    def _fails_at_end(self, rest: Sequence[ast.stmt], frame: Frame) -> Needs | None:
        """Return what makes every run fail that goes on with the rest of a frame; None where it may pass."""
        passed: list[tuple[ast.stmt, Frame]] = []
        result = frame.end
        for node in rest:
            if (node, frame) in self._ends:
                result = self._ends[node, frame]
                break
            passed.append((node, frame))
            ends, found = self._fate(node, frame)
            if ends or self.may_leave(node, frame):
                result = NOTHING if ends and found is not None and not found else None
                break
        self._ends |= dict.fromkeys(passed, result)
        return result

    def _fate(self, node: ast.stmt, frame: Frame) -> tuple[bool, Needs | None]:
        """Return whether a statement leaves what is read, and what makes every run fail that comes to it."""
        if self._raises(node) or (isinstance(node, ast.Return) and self._loses(node, frame)):
            return True, NOTHING
        if isinstance(node, ast.Return):
            return True, frame.end if frame.wanted is None else None
        if isinstance(node, ast.Continue | ast.Break):
            return True, None
        if (kept := self._kept(node, frame)) is not None:
            return not kept, kept
        if isinstance(node, ast.If):
            both = [self.fails(one, replace(frame, end=None)) for one in (node.body, node.orelse)]
            if both[0] is not None and both[1] is not None:
                return not (both[0] or both[1]), both[0] | both[1]
        return False, None

    def _raises(self, node: ast.stmt) -> bool:
        """Return whether a statement ends the program badly."""
        if isinstance(node, ast.Assert):
            return truth_of(node.test) is False
        call = node.value if isinstance(node, ast.Expr) else node.exc if isinstance(node, ast.Raise) else None
        ending = (exit_of(call) if call is not None else None) or exit_of(node)
        if ending is None:
            return isinstance(node, ast.Raise)
        return self._rewards is not None or ending.fails

    def _loses(self, node: ast.Return, frame: Frame) -> bool:
        return frame.wanted is not None and truth_of(node.value) is (not frame.wanted)

    def _kept(self, node: ast.stmt, frame: Frame) -> Needs | None:
        """Return the variables by which a statement keeps a failure, none where it ends the program."""
        match node:
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append" | "add"))):
                return self._keys(frame, name, wanted=False)
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AugAssign(target=ast.Name(id=name), op=ast.Add() | ast.BitOr(), value=value)
            ):
                truth = truth_of(value)
                if isinstance(value, ast.BinOp):
                    truth = True
                return self._keys(frame, name, wanted=not truth) if truth is not None else None
            case ast.Expr(value=ast.Call() as call) if (function := self.called(call)) is not None:
                if function in self._reading or len(self._reading) == MAX_DEPTH:
                    return None
                self._reading.append(function)
                found = self.fails(function.body, Frame(function, depth=frame.depth + 1))
                self._reading.pop()
                return found
        return None

    def _keys(self, frame: Frame, name: str, *, wanted: bool) -> Needs | None:
        key = self.key(frame, name, wanted)
        is_kept = key in self._known and self._variables.keeps(frame.scope, name, wanted=wanted)
        return frozenset({key}) if is_kept else None

    def asked(self, left: ast.expr, operator: ast.cmpop, right: ast.expr, frame: Frame) -> bool | None:
        """Return the truth of ``left`` that a comparison with a constant asks for; None for others."""
        inner = left.args[0] if isinstance(left, ast.Call) and dotted(left) == "len" and left.args else left
        is_kept = isinstance(inner, ast.Name) and any(
            self._variables.keeps(frame.scope, inner.id, wanted=wanted) for wanted in (True, False)
        )
        is_called = isinstance(left, ast.Call) and self.called(left) is not None
        truth = truth_of(right)
        if (
            not (is_kept or is_called)
            or truth is None
            or (truth and not isinstance(getattr(right, "value", None), bool))
        ):
            return None
        if isinstance(operator, ast.Eq | ast.Is):
            return truth
        if isinstance(operator, ast.NotEq | ast.IsNot | ast.Gt):
            return None if isinstance(operator, ast.Gt) and truth else not truth
        return None

    def earns(self, node: ast.If, frame: Frame) -> Needs:
        """Return the variables that become what a passing run needs only behind a condition."""
        found = set[Key]()
        for inner in own_nodes(node.body):
            if isinstance(inner, ast.Assign) and isinstance(inner.targets[0], ast.Name):
                name = inner.targets[0].id
                if self.key(frame, name, True)[0] is not frame.scope:
                    continue  # another call may assign it as well
                for wanted in (True, False):
                    if self._variables.earned(frame.scope, name, wanted=wanted) is inner:
                        found.add(self.key(frame, name, wanted))
        return frozenset(found & self._known)

    def handled(self, handlers: Sequence[ast.ExceptHandler], frame: Frame) -> Needs | None:
        """Return what makes every run fail of which a handler takes an exception; None where it may pass."""
        found = [self.fails(handler.body, replace(frame, end=None)) for handler in handlers]
        return frozenset(key for needs in found for key in needs or ()) if None not in found else None

    def may_leave(self, node: ast.stmt, frame: Frame) -> bool:
        """Return whether a statement may end what is read without failing."""
        if self.is_read(node):
            return False
        return self._may_win(node) or any(
            (isinstance(one, ast.Return) and not self._loses(one, frame))
            or (frame.in_loop and isinstance(one, ast.Break | ast.Continue))
            for one in own_nodes([node])
        )

    def leaves(self, statements: Sequence[ast.stmt], frame: Frame) -> bool:
        """Return whether one of several statements may end what is read."""
        leaving = (ast.Return, ast.Break, ast.Continue) if frame.in_loop else ast.Return
        return any(
            self._may_win(node) or any(isinstance(one, leaving) for one in own_nodes([node]))
            for node in statements
        )

    def _may_win(self, node: ast.AST) -> bool:
        """Return whether a program may end well in a statement, or in a function that it names."""
        if node not in self._winning:
            self._winning[node] = self._wins(node)
        return self._winning[node]

    def _wins(self, node: ast.AST) -> bool:
        stack = [node]
        while stack:
            one = stack.pop()
            ending = self._ending_of(one)
            if (ending is not None and not ending.fails) or getattr(one, "id", "") in self._winners:
                return True
            inner = ast.iter_child_nodes(one)
            stack += inner if ending is None else (part for part in inner if not isinstance(part, ast.Name))
        return False

    def _ending_of(self, node: ast.AST) -> Ending | None:
        """Return the ending that a call or an exception is; None where the program cannot end well by it."""
        if self._rewards is None:
            return exit_of(node)
        return self._rewards.ending_of(node) if isinstance(node, ast.Call) else None
