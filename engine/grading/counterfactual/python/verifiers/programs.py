"""Mutants of verifiers that are Python programs, run by a script whose status or reward decides."""

from __future__ import annotations

import ast
import posixpath
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice, zip_longest

from engine.grading.counterfactual.base import SCRIPT, Mutant, MutantKind
from engine.grading.counterfactual.python.expectations import Expectation, Expectations
from engine.grading.counterfactual.python.functions import Function, TestFunction
from engine.grading.counterfactual.python.literals import Edit, Shown, literal_edits
from engine.grading.counterfactual.python.operands import Operand
from engine.grading.counterfactual.python.source import PythonSource
from engine.grading.counterfactual.python.verifiers.frames import Program, function_of, hidden
from engine.grading.counterfactual.python.verifiers.trace import traced
from engine.grading.counterfactual.shell.programs import Decides, deciding_programs

_SCRIPTS = (".sh", ".bash")
_MAX_MUTANTS = 12
_MAX_PER_OPERAND = 3
_MAX_OPERANDS = 200


def program_mutants(content: bytes, path: str, beside: Mapping[str, bytes]) -> list[Mutant]:
    """Return quiet mutants of a program on which a row's verdict depends, one of each comparison first.

    Raises:
        ValueError: the file cannot be parsed.
    """
    role = _role(content, path, beside)
    if role is None:
        return []
    source = PythonSource(content, path)
    program = traced(source, by_reward=role is Decides.REWARD)
    if program is None:
        return []
    reduced = _ProgramSource(content, path, program)
    expected = (
        one
        for function in (_with_reads(program), *program.functions)
        for one in Expectations(reduced, TestFunction(SCRIPT, function, uses_self=False))
    )
    found = [
        mutants
        for operand, expectation in islice(expected, _MAX_OPERANDS)
        if (mutants := list(islice(_mutants(reduced, expectation, operand), _MAX_PER_OPERAND)))
    ]
    random.Random(path).shuffle(found)
    mixed = [one for several in zip_longest(*found) for one in several if one is not None]
    return list(islice(dict.fromkeys(mixed), _MAX_MUTANTS))


def _role(content: bytes, path: str, beside: Mapping[str, bytes]) -> Decides | None:
    """Return what of a program the verdict depends on; None where it may be nothing, or several things."""
    scripts = [one for one in beside if posixpath.splitext(one)[1] in _SCRIPTS]
    programs = [one for one in beside if one.endswith(".py")]
    if len(scripts) != 1:
        return None
    possible = deciding_programs(beside[scripts[0]], scripts[0], programs).get(path, set())
    role = Decides.REWARD if b"reward" in content.lower() else Decides.STATUS
    module = posixpath.splitext(posixpath.basename(path))[0].encode()
    others = [one for one in beside if one not in (path, scripts[0])]
    if role not in possible or any(module in beside[one] for one in others if one.endswith(".py")):
        return None
    if role is Decides.REWARD and any(b"reward" in beside[one].lower() for one in others):
        return None
    return role


class _ProgramSource(PythonSource):
    """A program of which only what was read counts.

    Args:
        program: what was read.
    """

    def __init__(self, content: bytes, path: str, program: Program) -> None:
        super().__init__(content, path)
        self._loads = Counter(
            node.id
            for function in (program.module, *program.functions, *program.others)
            for node in ast.walk(function)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        )

    def is_used_once(self, name: str) -> bool:
        """Return whether a name is bound once, and read once but for what only a failing run executes."""
        return self.constants.bound[name] == 1 and self._loads[name] == 1


def _with_reads(program: Program) -> Function:
    """Return the module with what its functions read: a variable that they use is not only compared."""
    module = program.module
    reads: list[ast.stmt] = [
        ast.Expr(node)
        for function in (*program.functions, *program.others)
        for node in ast.walk(function)
        if isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Load)
        and node.id not in _arguments(function)
    ]
    return function_of(ast.Module(body=[], type_ignores=[]), [*module.body, hidden(reads)])


def _arguments(function: Function) -> set[str]:
    return {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}


def _mutants(source: PythonSource, found: Expectation, operand: Operand) -> Iterator[Mutant]:
    """Yield the mutants of an expected value, or of all in a column together."""
    shown = Shown.of(operand.within)
    options: list[list[Edit]] = []
    for cell in found.cells:
        is_boolean = isinstance(cell, ast.Constant) and isinstance(cell.value, bool)
        if is_boolean or not found.boolean_only:
            edits = literal_edits(source, cell, beside=shown, tolerance=found.tolerance)
            options.append([one.edit for one in edits])
    if len(options) < len(found.cells) or not all(options):
        return
    for choice in range(_MAX_PER_OPERAND):
        edits_of_all = [edits[choice % len(edits)] for edits in options]
        mutant = source.mutant(SCRIPT, found.within, edits_of_all, MutantKind.VALUE)
        if mutant is not None:
            yield mutant
