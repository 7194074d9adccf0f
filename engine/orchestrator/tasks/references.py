"""References of curated tasks: one proof per source, shared by its tasks.

With their gold patches, all tasks of a source are the same tree with the same tests. So the mutated tests
of all of them are proven together, in a few runs of the source's tests, and each task gets its own part.
"""

from __future__ import annotations

import asyncio
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from engine.datasets.health import row_content
from engine.errors import DatasetError, SandboxError
from engine.grading.counterfactual.base import Reference, ReferenceStore
from engine.grading.counterfactual.prover import Prover
from engine.grading.counterfactual.selection import kinds_by_test, part_of
from engine.testing.toolchain import DRIVER
from engine.types import TaskRow

_OPTIONS_END = " -- "
"""Separator of the driver's options from its tests."""


async def make_references(
    rows: Sequence[TaskRow],
    prover: Prover,
    store: ReferenceStore,
    *,
    parallel: int = 1,
    progress: Callable[[int], None] = lambda _done: None,
) -> list[str]:
    """Make and store the references that curated tasks lack.

    Args:
        rows: the tasks.
        prover: proves the tasks of a source together.
        store: of the references.
        parallel: number of sources at once.
        progress: called with the number of tasks done, at the start and after each source.

    Returns:
        A sentence per source or task whose mutated tests could not be proven; they are proven at first use.
    """
    sources: defaultdict[tuple[str, ...], list[TaskRow]] = defaultdict(list)
    for row in rows:
        if await store.load(row) is None:
            sources[_source(row)].append(row)
    problems: list[str] = []
    permits = asyncio.Semaphore(parallel)
    done = len(rows) - sum(map(len, sources.values()))
    progress(done)

    async def prove(siblings: list[TaskRow]) -> None:
        nonlocal done
        async with permits:
            try:
                reference = await prover(siblings[0] if len(siblings) == 1 else _merged(siblings))
            except (DatasetError, SandboxError) as error:
                problems.append(f"{siblings[0].task.instance_id}: {error}")
            else:
                for row in siblings:
                    await store.save(row, _restricted(reference, row))
            done += len(siblings)
            progress(done)

    await asyncio.gather(*map(prove, sources.values()))
    return problems


def _source(row: TaskRow) -> tuple[str, ...]:
    """Return a key that rows with the same intact tree and the same test runner share."""
    task, answer = row.task, row.answer
    options, separator, _ = answer.test_command.partition(_OPTIONS_END)
    if not separator or DRIVER not in options or answer.test_files or answer.setup_patch:
        return (task.id,)
    place = (str(task.metadata.get("source")), task.repo, task.base_commit, task.workdir)
    return (*place, repr(sorted(task.env.items())), options)


def _merged(rows: Sequence[TaskRow]) -> TaskRow:
    """Return a task that requires the tests of all rows; it runs whole files, to keep the command short."""
    tests = _unique(test for row in rows for test in (*row.answer.fail_to_pass, *row.answer.pass_to_pass))
    files = _unique(test.partition("::")[0] for test in tests)
    first = rows[0]
    options = first.answer.test_command.partition(_OPTIONS_END)[0]
    command = f"{options}{_OPTIONS_END}{' '.join(shlex.quote(file) for file in files)}"
    answer = replace(first.answer, fail_to_pass=tests, pass_to_pass=(), test_command=command)
    return replace(first, answer=answer)


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _restricted(reference: Reference, row: TaskRow) -> Reference:
    """Return the part of a reference that concerns a row's tests."""
    own = {*row.answer.fail_to_pass, *row.answer.pass_to_pass}
    parts = [part_of(variant, row.answer.fail_to_pass, own) for variant in reference.variants]
    variants = [part for part in parts if part.mutants]
    paths = {mutant.path for variant in variants for mutant in variant.mutants}
    return replace(
        reference,
        content=row_content(row),
        outcomes={test: outcome for test, outcome in reference.outcomes.items() if test in own},
        files={path: content for path, content in reference.files.items() if path in paths},
        variants=tuple(variants),
        coverage=kinds_by_test(variants, row.answer.fail_to_pass),
        note=reference.note if variants else reference.note or "none of the row's tests can be mutated",
    )
