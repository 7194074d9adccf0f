"""Statements and conditions of a program that every passing run executes and finds as they are.

A program is read from its first statement on, into the functions that it calls. What may end it well, leave
a function or hide an exception ends the reading of that part; a condition counts where the run that finds it
otherwise ends badly at once, or keeps that until the program decides by it (``variables``). Each function
that was read becomes a test function: what decides is an assertion in it, and what fails is left out of it.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace

from engine.grading.counterfactual.python.functions import Function, is_transparent
from engine.grading.counterfactual.python.source import PythonSource
from engine.grading.counterfactual.python.verifiers.arguments import compared_arguments, given_arguments
from engine.grading.counterfactual.python.verifiers.endings import Rewards
from engine.grading.counterfactual.python.verifiers.frames import (
    NOTHING,
    Claim,
    Decision,
    Frame,
    Key,
    Needs,
    Program,
    function_of,
    hidden,
    like,
    settled,
)
from engine.grading.counterfactual.python.verifiers.opaque import is_opaque
from engine.grading.counterfactual.python.verifiers.paths import MAX_DEPTH, Paths
from engine.grading.counterfactual.python.verifiers.variables import Scope, Variables, truth_of

_UNRELATED = frozenset({
    "returncode", "exitcode", "argv", "__name__", "version_info", "platform", "environ", "getenv",
})  # fmt: skip
"""Names of what says nothing of a solution's answers."""


def traced(source: PythonSource, *, by_reward: bool) -> Program | None:
    """Return a program with assertions for the conditions that decide; None where nothing is certain.

    Args:
        by_reward: whether a reward that the program writes decides, instead of its exit code.
    """
    tree = source.tree
    functions = [one for one in tree.body if isinstance(one, ast.FunctionDef)]
    plain = [one for one in functions if source.constants.bound[one.name] == 1 and not one.decorator_list]
    if is_opaque(source):
        return None
    variables = Variables(tree, plain)
    known: set[Key] = set()
    while True:
        reader = _Reader(source, plain, variables, known, by_reward=by_reward)
        reader.read()
        if reader.decided <= known:
            return reader.settled()
        known |= reader.decided


class _Reader:
    def __init__(
        self,
        source: PythonSource,
        functions: Sequence[Function],
        variables: Variables,
        known: set[Key],
        *,
        by_reward: bool,
    ) -> None:
        self._source = source
        self._functions = {function.name: function for function in functions}
        self._variables = variables
        self._known = known
        self._by_reward = by_reward
        rewards = Rewards(source.tree, functions) if by_reward else None
        self._paths = Paths(self._functions, variables, known, rewards)
        self._reading: list[Scope] = []
        self._events: list[Claim | Decision] = []
        self._bodies: dict[Scope, list[ast.stmt]] = {}
        self.decided: set[Key] = set()

    def read(self) -> None:
        """Read the module."""
        end = NOTHING if self._by_reward else None
        tree = self._source.tree
        self._bodies[tree] = []
        self._bodies[tree] = self._trace(tree.body, Frame(tree, end=end), NOTHING)

    def settled(self) -> Program:
        """Return the program, with an assertion for each condition that decides."""
        later: set[Key] = set()
        valid: set[Claim] = set()
        for event in reversed(self._events):
            if event.needs <= later:
                if isinstance(event, Decision):
                    later.add(event.key)
                else:
                    valid.add(event)
        module, *functions = (
            function_of(scope, settled(body, valid)) for scope, body in self._bodies.items()
        )
        others = [one for one in self._functions.values() if one not in self._bodies]
        return Program(module, functions, others)

    def _trace(self, statements: Sequence[ast.stmt], frame: Frame, needs: Needs) -> list[ast.stmt]:
        """Return statements that every passing run executes, with claims; what may not be is hidden."""
        found: list[ast.stmt] = []
        rest = list(statements)
        while rest:
            node, *rest = rest
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    if self._paths.is_read(node):
                        continue
                    found.append(node)
                case ast.If(test=test, body=body) if _is_main(test):
                    rest = [*body, *rest]
                    continue
                case ast.If():
                    branches = self._branches(node, rest, frame)
                    if branches is None:
                        found.append(hidden([node]))
                    else:
                        wanted, more, taken, other = branches
                        claims = self._condition(node.test, frame, needs | more, wanted=wanted)
                        if not more or self._paths.leaves(other, frame):
                            needs, rest = needs | more, [*taken, *rest]
                            found += claims
                            continue
                        inner = self._trace(taken, replace(frame, end=None), needs | more)
                        found += [*claims, *inner]
                        if not self._paths.leaves(taken, frame):
                            continue
                case ast.For(iter=table, body=body, orelse=[]) if self._variables.runs_once(
                    frame.scope, table
                ):
                    inner = self._trace(body, replace(frame, in_loop=True, end=None), needs)
                    found.append(
                        like(node, ast.For(target=node.target, iter=node.iter, body=inner, orelse=[]))
                    )
                case ast.With(items=items, body=body) if all(
                    is_transparent(self._source, item.context_expr) for item in items
                ):
                    found += [hidden([ast.Expr(item.context_expr)]) for item in items]
                    rest = [*body, *rest]
                    continue
                case ast.Try(handlers=handlers, finalbody=finalbody) if (
                    handled := self._paths.handled(handlers, frame)
                ) is not None and not self._paths.leaves(finalbody, frame):
                    inner = self._trace([*node.body, *node.orelse], replace(frame, end=None), needs | handled)
                    found += [*inner, *finalbody]
                    if any(self._paths.leaves(handler.body, frame) for handler in handlers):
                        needs |= handled
                    if not self._paths.leaves([*node.body, *node.orelse], frame):
                        continue
                case ast.Return(value=value):
                    if frame.wanted is not None and value is not None:
                        found += self._condition(value, frame, needs, wanted=frame.wanted)
                    return [*found, hidden(rest)]
                case _:
                    ending = self._paths.ending(node)
                    if ending is not None:
                        if ending.value is not None:
                            found += self._condition(ending.value, frame, needs, wanted=ending.wanted)
                        return [*found, hidden([node, *rest])]
                    is_compound = isinstance(getattr(node, "body", getattr(node, "cases", None)), list)
                    found += [hidden([node])] if is_compound else self._simple(node, rest, frame, needs)
            if self._paths.may_leave(node, frame):
                return [*found, hidden(rest)]
        return found

    def _branches(
        self, node: ast.If, rest: list[ast.stmt], frame: Frame
    ) -> tuple[bool, Needs, list[ast.stmt], list[ast.stmt]] | None:
        """Return the truth of a condition in passing runs, what that needs, and both branches.

        The first is the one that passing runs take. None where they may take either.
        """
        if (more := self._paths.fails(node.body, frame, rest)) is not None:
            return False, more, node.orelse, node.body
        if (more := self._paths.fails(node.orelse, frame, rest)) is not None:
            return True, more, node.body, node.orelse
        if (
            not frame.in_loop
            and (more := self._paths.earns(node, frame))
            and not self._paths.leaves(node.orelse, frame)
        ):
            return True, more, node.body, node.orelse
        return None

    def _simple(self, node: ast.stmt, rest: Sequence[ast.stmt], frame: Frame, needs: Needs) -> list[ast.stmt]:
        """Return a statement without others in it, with the conditions that it stands for."""
        match node:
            case ast.Assert(test=test):
                return self._condition(test, frame, needs, wanted=True)
            case ast.Expr(value=ast.Call() as call) if self._paths.called(call) is not None:
                return self._call(call, None, self._paths.fails(rest, frame), frame, needs)
            case ast.Expr(
                value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"), args=[value])
            ) if (key := self._paths.key(frame, name, "all")) in self._known:
                return self._condition(value, frame, needs | {key}, wanted=True)
            case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name))], value=value) if (
                key := self._paths.key(frame, name, "all")
            ) in self._known:
                return self._condition(value, frame, needs | {key}, wanted=True)
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if not frame.in_loop:
                if (key := self._paths.key(frame, name, "all")) in self._known and self._variables.value_of(
                    frame.scope, name
                ) is value:
                    return self._all(value, frame, needs | {key})
                for wanted in (True, False):
                    key = self._paths.key(frame, name, wanted)
                    if key in self._known and self._variables.value_of(frame.scope, name) is value:
                        kept = self._condition(value, frame, needs | {key}, wanted=wanted)
                        nothing = like(value, ast.Constant(value=None))
                        return [*kept, like(node, ast.Assign(targets=node.targets, value=nothing))]
                if (key := self._paths.key(frame, name, True)) in self._known and isinstance(
                    value, ast.BoolOp
                ):
                    return self._condition(value, frame, needs | {key}, wanted=True)
            case ast.AugAssign(target=ast.Name(id=name), op=operator, value=value):
                wanted = isinstance(operator, ast.BitAnd)
                if (key := self._paths.key(frame, name, wanted)) in self._known and self._variables.keeps(
                    frame.scope, name, wanted=wanted
                ):
                    return self._condition(value, frame, needs | {key}, wanted=wanted)
        return [node]

    def _condition(self, test: ast.expr, frame: Frame, needs: Needs, *, wanted: bool) -> list[ast.stmt]:
        """Return the claims of a condition that is ``wanted`` in every passing run."""

        def each(parts: Sequence[ast.expr], *, wanted: bool) -> list[ast.stmt]:
            return [one for part in parts for one in self._condition(part, frame, needs, wanted=wanted)]

        match test:
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                return each([inner], wanted=not wanted)
            case ast.BoolOp(op=operator, values=parts) if isinstance(operator, ast.And) is wanted:
                return each(parts, wanted=wanted)
            case ast.IfExp(test=inner, body=body, orelse=orelse):
                if truth_of(body) is (not wanted):
                    return [*each([inner], wanted=False), *each([orelse], wanted=wanted)]
                if truth_of(orelse) is (not wanted):
                    return [*each([inner], wanted=True), *each([body], wanted=wanted)]
            case ast.Call(func=ast.Name(id="bool" | "int" | "len"), args=[inner], keywords=[]):
                return each([inner], wanted=wanted)
            case ast.Call(func=ast.Name(id="all"), args=[inner], keywords=[]) if wanted:
                return self._all(inner, frame, needs)
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                if (truth := self._paths.asked(left, operator, right, frame)) is not None:
                    return each([left], wanted=truth is wanted)
                if any(self._variables.is_counted(frame.scope, side) for side in (left, right)):
                    return [hidden([ast.Expr(test)])]
                return [self._comparison(test, operator, needs, wanted=wanted)]
            case ast.Compare() if wanted:
                return [self._claim(test, test, needs)]
            case ast.Name(id=name):
                if self._variables.decides(frame.scope, name, wanted=wanted):
                    return [self._decision(self._paths.key(frame, name, wanted), needs)]
            case ast.Call() if self._paths.called(test) is not None:
                return self._call(test, wanted, None, frame, needs)
        return [hidden([ast.Expr(test)])]

    def _comparison(self, test: ast.Compare, operator: ast.cmpop, needs: Needs, *, wanted: bool) -> ast.stmt:
        """Return the claim that two values are equal; what wants them to differ says nothing."""
        kinds: tuple[type[ast.cmpop], type[ast.cmpop]] = (ast.Eq, ast.NotEq)
        if isinstance(operator, ast.Is | ast.IsNot):
            kinds = (ast.Is, ast.IsNot)
        used = {getattr(node, "id", "") or getattr(node, "attr", "") for node in ast.walk(test)}
        if not isinstance(operator, kinds[not wanted]) or used & _UNRELATED:
            return hidden([ast.Expr(test)])
        equal = like(test, ast.Compare(left=test.left, ops=[kinds[0]()], comparators=test.comparators))
        return self._claim(equal, test, needs)

    def _all(self, elements: ast.expr, frame: Frame, needs: Needs) -> list[ast.stmt]:
        match elements:
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Dict(values=parts):
                return [one for part in parts for one in self._condition(part, frame, needs, wanted=True)]
            case (
                ast.Name(id=name)
                | ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="values"), args=[], keywords=[])
            ) if self._variables.collects(frame.scope, name):
                return [self._decision(self._paths.key(frame, name, "all"), needs)]
        return [hidden([ast.Expr(elements)])]

    def _call(
        self, call: ast.Call, wanted: bool | None, end: Needs | None, frame: Frame, needs: Needs
    ) -> list[ast.stmt]:
        """Read a called function. Return what stands for the call: its arguments, with claims."""
        function = self._paths.called(call)
        unknown = hidden([ast.Expr(call)])
        if function is None or function in self._reading or frame.depth == MAX_DEPTH:
            return [unknown]
        self._reading.append(function)
        inner = Frame(
            function,
            wanted=wanted,
            end=end if wanted is None else (NOTHING if wanted else None),
            depth=frame.depth + 1,
        )
        body = self._trace(function.body, inner, needs)
        self._reading.pop()
        self._bodies.setdefault(function, body)
        given = given_arguments(function, call)
        compared: list[ast.stmt] = []
        shown = dict(given)
        for name, test in compared_arguments(function, body):
            if name in given:
                other = ast.Name(id="_", ctx=ast.Load())
                equal = like(
                    call, ast.Compare(left=given[name], ops=[ast.Eq()], comparators=[like(call, other)])
                )
                compared.append(self._claim(equal, call, test.needs))
                self._events.insert(self._events.index(test), self._events.pop())
                shown.pop(name)
        if not compared:
            return [unknown]
        return [hidden([ast.Expr(one) for one in shown.values()]), *compared]

    def _claim(self, test: ast.expr, within: ast.expr, needs: Needs) -> Claim:
        claim = Claim(test=test, body=[ast.Pass()], orelse=[])
        claim.assertion = ast.copy_location(ast.Assert(test=test), within)
        claim.needs = needs
        self._events.append(claim)
        return claim

    def _decision(self, key: Key, needs: Needs) -> Decision:
        decision = Decision()
        decision.key, decision.needs = key, needs
        self._events.append(decision)
        self.decided.add(key)
        return decision


def _is_main(test: ast.expr) -> bool:
    match test:
        case ast.Compare(
            left=ast.Name(id="__name__"), ops=[ast.Eq()], comparators=[ast.Constant(value="__main__")]
        ):
            return True
    return False
