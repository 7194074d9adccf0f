"""Mutator of shell scripts whose exit code or reward file decides."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from itertools import islice, zip_longest

from engine.grading.counterfactual.base import NO_FILES, SCRIPT, Mutant, MutantKind
from engine.grading.counterfactual.shell.answers import Answers, FalseAnswer
from engine.grading.counterfactual.shell.comparisons import comparisons_of
from engine.grading.counterfactual.shell.conditions import decisive_conditions
from engine.grading.counterfactual.shell.nodes import GRAMMAR
from engine.grading.counterfactual.syntax.source import SyntaxSource, mutant_of

_MAX_MUTANTS = 12


class ShellMutator:
    """Finds other expected values of a script's comparisons, in the script and in the files beside it."""

    def mutants(
        self,
        source: bytes,
        path: str,
        names: Collection[str] | None = None,
        beside: Mapping[str, bytes] = NO_FILES,
    ) -> Sequence[Mutant]:
        """Return quiet mutants, one of each comparison first; none where tests are known by ``names``."""
        if names is not None:
            return ()
        others = {other: content for other, content in beside.items() if other != path}
        try:
            found = _answers(SyntaxSource(source, path, GRAMMAR), others)
        except (ValueError, RecursionError):
            return ()
        random.Random(path).shuffle(found)
        mixed = [one for several in zip_longest(*found) for one in several if one is not None]
        return [
            _mutant({**others, path: source}[one.path], one)
            for one in islice(dict.fromkeys(mixed), _MAX_MUTANTS)
        ]

    def tests_by_function(
        self,
        functions: Collection[tuple[str, str]],  # noqa: ARG002
        tests: Sequence[str],  # noqa: ARG002
    ) -> Mapping[tuple[str, str], Sequence[str]]:
        """Return nothing: scripts give their comparisons no names."""
        return {}


def _answers(script: SyntaxSource, beside: Mapping[str, bytes]) -> list[list[FalseAnswer]]:
    """Return the false answers of each comparison that certainly decides."""
    conditions = decisive_conditions(script.root)
    comparisons = [one for condition in conditions for one in comparisons_of(condition)]
    answers = Answers(script.root, script.path, comparisons, beside)
    return [list(answers.false(one)) for one in comparisons]


def _mutant(content: bytes, answer: FalseAnswer) -> Mutant:
    return mutant_of(content, answer.path, SCRIPT, MutantKind.VALUE, answer.within, [answer.edit])
