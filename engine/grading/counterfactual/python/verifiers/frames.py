"""Parts of a program as they are read, and what stands for its conditions until all of it was read."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from engine.grading.counterfactual.python.functions import Function
from engine.grading.counterfactual.python.verifiers.variables import Scope

_Node = TypeVar("_Node", bound=ast.AST)
Key = tuple[Scope, str, bool | str]
"""Variable with its truth in passing runs; "all" where that is the truth of every element."""
Needs = frozenset[Key]
"""Variables that keep a failure which counts only if the program decides by them later."""
NOTHING: Needs = frozenset()


@dataclass(frozen=True, slots=True)
class Frame:
    """Part of a program that is read at a time: the module, a function or the body of a loop.

    Args:
        wanted: truth of what a function returns in passing runs; None where nothing asks for it.
        end: what makes a run fail that comes to the end of the statements; None where it may pass.
    """

    scope: Scope
    wanted: bool | None = None
    end: Needs | None = None
    in_loop: bool = False
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Program:
    """A program that was read.

    Args:
        module: the module as a function, with assertions for conditions that decide.
        functions: its functions, likewise.
        others: functions of which nothing is known.
    """

    module: Function
    functions: Sequence[Function]
    others: Sequence[Function]


class Claim(ast.If):
    """A condition that decides if ``needs`` are met, as a statement without effect until that is known."""

    assertion: ast.Assert
    needs: Needs


class Decision(ast.Pass):
    """Place at which a program decides by a variable."""

    key: Key
    needs: Needs


def hidden(statements: Sequence[ast.stmt]) -> ast.stmt:
    """Return a statement that holds others of which nothing is known."""
    return ast.If(test=ast.Constant(value=True), body=[*statements] or [ast.Pass()], orelse=[])


def like(node: ast.AST, new: _Node) -> _Node:
    """Return a new node at the place of another."""
    return ast.copy_location(new, node)


def settled(body: Sequence[ast.stmt], valid: set[Claim]) -> list[ast.stmt]:
    """Return statements with an assertion in the place of every claim that is valid."""
    found: list[ast.stmt] = []
    for node in body:
        if isinstance(node, Claim):
            found.append(node.assertion if node in valid else node)
        elif isinstance(node, ast.For):
            inner = settled(node.body, valid)
            found.append(like(node, ast.For(target=node.target, iter=node.iter, body=inner, orelse=[])))
        else:
            found.append(node)
    return found


def function_of(scope: Scope, body: list[ast.stmt]) -> Function:
    """Return a function with the body that was read."""
    if not isinstance(scope, ast.Module):
        found = ast.FunctionDef(name=scope.name, args=scope.args, body=body, decorator_list=[])
        return like(scope, found)
    arguments = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    return ast.FunctionDef(name="main", args=arguments, body=body, decorator_list=[])
