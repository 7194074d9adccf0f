"""Arguments of a program's own functions, and those that a function only compares."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence

from engine.grading.counterfactual.python.functions import Function
from engine.grading.counterfactual.python.verifiers.frames import Claim


def given_arguments(function: Function, call: ast.Call) -> dict[str, ast.expr]:
    """Return the arguments of a call by name."""
    names = [argument.arg for argument in function.args.args]
    if any(isinstance(one, ast.Starred) for one in call.args) or function.args.posonlyargs:
        return {}
    given = dict(zip(names, call.args, strict=False))
    return given | {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}


def compared_arguments(function: Function, body: Sequence[ast.stmt]) -> Iterator[tuple[str, Claim]]:
    """Yield the arguments that a function compares once with something else, and uses for nothing else."""
    uses = Counter(one.id for part in body for one in ast.walk(part) if isinstance(one, ast.Name))
    arguments = {argument.arg for argument in function.args.args}
    for claim in body:
        if isinstance(claim, Claim) and isinstance(claim.test, ast.Compare) and len(claim.test.ops) == 1:
            for side in (claim.test.left, claim.test.comparators[0]):
                if isinstance(side, ast.Name) and side.id in arguments and uses[side.id] == 1:
                    yield side.id, claim
