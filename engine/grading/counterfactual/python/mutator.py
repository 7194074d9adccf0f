"""Mutator of Python test files: functions and methods of pytest and ``unittest``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from engine.grading.counterfactual.base import NO_FILES, Mutant
from engine.grading.counterfactual.python.added import added_mutants
from engine.grading.counterfactual.python.functions import test_functions
from engine.grading.counterfactual.python.loud import loud_mutants
from engine.grading.counterfactual.python.naming import tests_by_function
from engine.grading.counterfactual.python.quiet import quiet_mutants
from engine.grading.counterfactual.python.source import PythonSource
from engine.grading.counterfactual.python.true import near_mutants, true_mutants
from engine.grading.counterfactual.python.verifiers.programs import program_mutants


class PythonMutator:
    """Finds the mutants of a Python test file."""

    def mutants(
        self,
        source: bytes,
        path: str,
        names: Collection[str] | None = None,
        beside: Mapping[str, bytes] = NO_FILES,
    ) -> Sequence[Mutant]:
        """Return the mutants of test functions; of each quiet ones first, then loud, near and true ones.

        Where tests are not known by ``names``, a verifier that is a program has those of its comparisons.
        """
        try:
            if names is None and (found := program_mutants(source, path, beside)):
                return found
            parsed = PythonSource(source, path)
            return [
                mutant
                for function in test_functions(parsed.tree)
                if names is None or function.node.name in names
                for find in (quiet_mutants, loud_mutants, added_mutants, near_mutants, true_mutants)
                for mutant in find(parsed, function)
            ]
        except (ValueError, RecursionError):
            return ()

    def tests_by_function(
        self, functions: Collection[tuple[str, str]], tests: Sequence[str]
    ) -> Mapping[tuple[str, str], Sequence[str]]:
        """Return the tests that certainly run each function; what several may stand for belongs to none."""
        return tests_by_function(functions, tests)
