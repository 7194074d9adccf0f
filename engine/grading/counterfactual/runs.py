"""Runs of the tests of a submission, true and false, and their order.

Each function that a solution fixes is true in one run and false in the others, in an order that is drawn for
each submission: no run, the first included, is known to be true. Runs are worded alike, so who cannot solve a
function guesses in which run it is true, also with a perfect memory of all earlier ones: ``forger_chance``.
Last comes a run of the true tests as their author wrote them, which alone passes anybody. From inside it can
be told from the others, when nothing is left to be learned from it.

Where a solution fixes several functions, the two decoys leave a part of them true each. Drawn by a coin for
each function, the parts say nothing of one function to who solves another. Two true runs of the same function
would show a memory what is true, so there is never a second one before the last.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from engine.config.rollout import ExtraRuns
from engine.grading.counterfactual.base import MutantKind, Reference, Variant
from engine.grading.counterfactual.conclusions import (
    CONFIRMED,
    Confirmation,
    Ending,
    Made,
    conclusion,
    ending,
    says_nothing,
    unconfirmed,
)
from engine.grading.execution import RunResult

Execute = Callable[[Reference, Variant | None], Awaitable[RunResult]]
"""Runs the tests of a variant once, or the true ones."""


@dataclass(frozen=True, slots=True)
class Screening:
    """Runs of a submission before its run of the true tests."""

    made: tuple[Made, ...]
    left: tuple[Variant | None, ...]
    """Runs that were not made, since the last one that was did not end as under a solution."""
    solved: bool
    """Whether all runs ended as under a solution."""


def forger_chance(false_runs: int, *, memory: bool) -> float:
    """Return the highest probability with which a function is forged in all runs as it must be.

    Args:
        false_runs: number of runs in which the function is false; in one more it is true.
        memory: whether the forger remembers what it saw and did in earlier runs.
    """
    runs = false_runs + 1
    return 1 / runs if memory else (false_runs / runs) ** false_runs / runs


def draw_runs(
    extra: ExtraRuns, reference: Reference, *, draw: random.Random | None = None
) -> list[Variant | None]:
    """Return runs in random order: a variant for a false run, a decoy or None for a true one.

    Two decoys make each function true once and false once, so one false run less is needed. False runs are
    quiet as far as there are such variants, else those with changed assertions: they catch whoever an added
    assertion catches, and values made to fit. None comes twice, which would show a memory that it is false.

    Args:
        draw: source of randomness; None for the operating system's, which no seed of a run predicts.
    """
    draw = draw or secrets.SystemRandom()
    variants = reference.variants
    quiet = [one for one in variants if one.quiet]
    changed = [one for one in variants if any(it.kind is MutantKind.CHANGED for it in one.mutants)]
    first = quiet or changed or variants
    others = [one for one in variants if one not in first]
    true = reference.decoys or (None,)
    paired = len(reference.decoys) > 1 and _made_false(reference.decoys) >= _made_false(first)
    wanted = extra.false_runs - 1 if paired else extra.false_runs
    false = [*draw.sample(first, len(first)), *draw.sample(others, len(others))]
    runs = [*false[:wanted], *true]
    draw.shuffle(runs)
    return runs


def _made_false(variants: Iterable[Variant]) -> set[str]:
    return {test for variant in variants for test in variant.must_fail}


async def screen(reference: Reference, runs: Sequence[Variant | None], execute: Execute) -> Screening:
    """Make runs in the given order, up to the first that does not end as under a solution.

    They are made one after another until one has shown that the submission solves something, since most
    submissions do not; then the others at once as far as ``execute`` lets them.

    Args:
        runs: see ``draw_runs``.

    Raises:
        SandboxError: infrastructure failed in every attempt at a run.
    """
    made: list[Made] = []
    for variant in runs:
        made.append(Made(variant, await execute(reference, variant)))
        if ending(reference, made[-1]) is not Ending.SOLVED:
            return Screening(tuple(made), tuple(runs[len(made) :]), solved=False)
        if variant is None or variant in reference.decoys:
            break
    left = dict(enumerate(runs[len(made) :]))
    async with aclosing(_at_once(reference, list(left.values()), execute)) as others:
        async for number, other in others:
            made.append(other)
            del left[number]
            if ending(reference, other) is not Ending.SOLVED:
                return Screening(tuple(made), tuple(left.values()), solved=False)
    return Screening(tuple(made), (), solved=True)


async def confirm(
    first: RunResult,
    reference: Reference,
    made: Sequence[Made],
    left: Sequence[Variant | None],
    execute: Execute,
) -> Confirmation:
    """Conclude from all runs of a submission that passed; the first that did not end as it must decides.

    Where no false run says anything of a part of the reward, those of the other variants follow.

    Args:
        first: the run of the true tests.
        made: runs that were made before it.
        left: runs to make now, at once as far as ``execute`` lets them.

    Raises:
        SandboxError: infrastructure failed in every attempt at a run.
    """
    for one in made:
        if (found := conclusion(first, reference, one)) is not None:
            return found
    done = list(made)
    async with aclosing(_at_once(reference, left, execute)) as others:
        async for _, other in others:
            if (found := conclusion(first, reference, other)) is not None:
                return found
            done.append(other)
    return await _confirm_part(first, reference, done, execute)


async def _confirm_part(
    first: RunResult, reference: Reference, done: list[Made], execute: Execute
) -> Confirmation:
    """Make further false runs until one says something of a part of the reward."""
    tried = [one.variant for one in done]
    left = [one for one in reference.variants if one not in tried]
    false = [one for one in done if one.variant is not None and not one.variant.true]
    while false and all(says_nothing(first, one) for one in false):
        if not left:
            return unconfirmed(false[-1].run)
        variant = left.pop(0)
        false.append(Made(variant, await execute(reference, variant)))
        if (found := conclusion(first, reference, false[-1])) is not None:
            return found
    return CONFIRMED


async def _at_once(
    reference: Reference, runs: Sequence[Variant | None], execute: Execute
) -> AsyncGenerator[tuple[int, Made], None]:
    """Yield runs with their numbers as they end; whoever stops early ends the others."""

    async def make(number: int, variant: Variant | None) -> tuple[int, Made]:
        return number, Made(variant, await execute(reference, variant))

    begun = [asyncio.create_task(make(number, variant)) for number, variant in enumerate(runs)]
    try:
        for ended in asyncio.as_completed(begun):
            yield await ended
    finally:
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)
