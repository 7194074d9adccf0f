"""References of rows during grading: proofs at first use, failed proofs, concurrent requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from engine.datasets.health import row_content
from engine.errors import DatasetError, PatchError, SandboxStartError
from engine.grading.counterfactual.base import Reference
from engine.grading.counterfactual.references import References
from engine.types import Task, TaskAnswer, TaskRow
from tests.builders.dataset_builders import MemoryStore


def row_of(name: str, *, gold: str = "diff") -> TaskRow:
    task = Task(id=name, instance_id=name, repo="r", base_commit="", problem_statement="p", image="i")
    return TaskRow(task=task, answer=TaskAnswer(gold_patch=gold), split="train")


ROW = row_of("a")
PROVEN = Reference(content=row_content(ROW), note="nothing to change")


def failing(*errors: Exception) -> tuple[Callable[[TaskRow], Awaitable[Reference]], list[TaskRow]]:
    """Return a prover that raises each error once and then succeeds, and the list of requested rows."""
    asked: list[TaskRow] = []

    async def prove(row: TaskRow) -> Reference:
        asked.append(row)
        if len(asked) <= len(errors):
            raise errors[len(asked) - 1]
        return PROVEN

    return prove, asked


@pytest.mark.parametrize(
    "error", [SandboxStartError("no room"), DatasetError("gold fails"), PatchError("no patch")]
)
async def test_a_proof_that_fails_once_is_retried(error: Exception) -> None:
    prove, asked = failing(error)
    store = MemoryStore()
    references = References(store=store, prove=prove)
    assert await references.get(ROW, row_content(ROW)) == PROVEN
    assert (len(asked), references.problem(row_content(ROW)), store.kept) == (2, "", {"a": PROVEN})


async def test_a_proof_that_fails_twice_is_stored_with_its_reason() -> None:
    prove, asked = failing(*[SandboxStartError("no room")] * 2)
    store = MemoryStore()
    references = References(store=store, prove=prove)
    results = [await references.get(ROW, row_content(ROW)) for _ in range(3)]
    assert (results, len(asked), references.problem(row_content(ROW))) == ([None] * 3, 2, "no room")
    assert store.kept["a"].problem == "no room"
    later = References(store=store, prove=prove)
    assert await later.get(ROW, row_content(ROW)) == PROVEN, "another process tries again"
    assert store.kept["a"] == PROVEN


async def test_a_failed_proof_does_not_replace_a_concurrent_reference() -> None:
    store = MemoryStore()

    async def prove(row: TaskRow) -> Reference:
        await store.save(row, PROVEN)
        raise SandboxStartError("no room")

    references = References(store=store, prove=prove)
    assert await references.get(ROW, row_content(ROW)) == PROVEN
    assert store.kept["a"] == PROVEN


async def test_an_edited_row_does_not_reuse_its_old_reference() -> None:
    """The edited row does not inherit the reason of a failed proof either."""
    edited = replace(ROW, answer=replace(ROW.answer, test_files={"t.py": "other"}))
    assert edited.task.id == ROW.task.id
    proofs: list[TaskRow] = []

    async def prove(row: TaskRow) -> Reference:
        proofs.append(row)
        return Reference(content=row_content(row), note="nothing to change")

    references = References(store=None, prove=prove)
    for row in (ROW, edited, ROW, edited):
        reference = await references.get(row, row_content(row))
        assert reference is not None
        assert reference.content == row_content(row)
    assert proofs == [ROW, edited]
    failed, _ = failing(*[DatasetError("gold fails")] * 2)
    references = References(store=None, prove=failed)
    await references.get(ROW, row_content(ROW))
    assert (references.problem(row_content(ROW)), references.problem(row_content(edited))) == (
        "gold fails",
        "",
    )


async def test_a_row_without_solution_is_not_proven() -> None:
    prove, asked = failing()
    references = References(store=None, prove=prove)
    without = row_of("b", gold=" \n")
    assert (
        await references.get(without, row_content(without)),
        references.problem(row_content(without)),
        asked,
    ) == (None, "", [])


async def test_proofs_are_shared_by_row_and_limited_in_number() -> None:
    running = peak = total = 0

    async def prove(row: TaskRow) -> Reference:
        nonlocal running, peak, total
        running, total = running + 1, total + 1
        peak = max(peak, running)
        for _ in range(10):
            await asyncio.sleep(0)
        running -= 1
        return Reference(content=row_content(row))

    references = References(store=None, prove=prove, max_proofs=2)
    rows = [row_of(str(number % 6)) for number in range(18)]
    results = await asyncio.gather(*[references.get(row, row_content(row)) for row in rows])
    assert None not in results
    assert (total, peak) == (6, 2)
