"""Decisions of the grader: tampering signs, skips, audits, reused verdicts, lost sandboxes."""

from __future__ import annotations

import asyncio
import shlex
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pytest

from engine.config.rollout import AUDITED_SHARE, GradingConfig
from engine.config.sandbox import SandboxConfig
from engine.datasets.health import row_content
from engine.errors import SandboxStartError
from engine.grading import grader as grader_module
from engine.grading.counterfactual import references
from engine.grading.counterfactual.base import Mutant, MutantKind, Reference, Variant
from engine.grading.counterfactual.prover import Prover
from engine.grading.evidence import Evidence, Judgement
from engine.grading.execution import RunExecutor, RunResult, unjudged
from engine.grading.grader import Grader
from engine.patches.diff import diff_texts
from engine.sandbox.local.backend import LocalBackend
from engine.testing.toolchain import DRIVER
from engine.types import (
    CounterfactualOutcome,
    FindingKind,
    Grade,
    Task,
    TaskAnswer,
    TaskRow,
    TestKind,
    TestOutcome,
    TestResult,
    Verdict,
)
from tests.builders.dataset_builders import MemoryStore

PATH, TEST = "tests/test_a.py", "tests/test_a.py::test_a"
CONTENT = b"assert f() == 3"
MUTANTS = tuple(
    Mutant(
        path=PATH, function="test_a", line=7, kind=MutantKind.VALUE, before="assert f() == 3",
        after=f"assert f() == {wrong}", start=14, end=15, replacement=wrong,
    )
    for wrong in "456"
)  # fmt: skip
VARIANTS = tuple(Variant(mutants=(mutant,), must_fail=(TEST,)) for mutant in MUTANTS)
Mode = Literal["off", "sample", "always"]


def row_of(name: str = "a", **answer: Any) -> TaskRow:
    task = Task(id=name, instance_id=name, repo="r", base_commit="", problem_statement="p", image="i")
    defaults = TaskAnswer(gold_patch="diff", fail_to_pass=(TEST,), test_command=f"python3 {DRIVER}")
    return TaskRow(task=task, answer=replace(defaults, **answer), split="train")


ROW = row_of()


def reference_of(row: TaskRow = ROW, **changes: Any) -> Reference:
    defaults = Reference(
        content=row_content(row),
        outcomes={TEST: TestOutcome.PASSED},
        files={PATH: CONTENT},
        variants=VARIANTS,
    )
    return replace(defaults, **changes)


def run(outcome: TestOutcome = TestOutcome.PASSED, *, recorded: bool = True, **evidence: Any) -> RunResult:
    """Return the judged run of a row with one test."""
    passed = outcome in (TestOutcome.PASSED, TestOutcome.XFAIL)
    tests = (TestResult(test_id=TEST, kind=TestKind.FAIL_TO_PASS, outcome=outcome),)
    result = RunResult(
        verdict=Verdict.PASSED if passed else Verdict.FAILED,
        applied=unjudged(Verdict.PASSED, "").applied,
        evidence=Evidence(record_wanted=recorded, log="log of " + outcome, **evidence),
        judgement=Judgement(passed=passed, tests=tests),
    )
    return replace(result, verdict=Verdict.TAMPERED) if result.evidence.signs else result


PASSED, FAILED = run(), run(TestOutcome.FAILED)


@dataclass
class Executions:
    """Scripted test runs in place of sandboxes.

    Args:
        original: result of the original tests.
        mutated: result of the mutated tests.
    """

    original: RunResult = PASSED
    mutated: RunResult = FAILED
    gold: RunResult = PASSED
    """Result of the original tests under the gold patch."""
    made: list[tuple[str, Mapping[str, bytes]]] = field(default_factory=list)

    async def __call__(
        self, row: TaskRow, patch: str, *, overlay: Mapping[str, bytes], inspect: Any = None, **_: Any
    ) -> RunResult:
        self.made.append((patch, overlay))
        if inspect is not None:
            return self.gold
        return self.mutated if overlay else self.original


class Graders:
    """Factory of graders with scripted test runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def make(self, executions: Any, mode: Mode = "always", *, run_id: str = "r1", **rest: Any) -> Grader:
        self._monkeypatch.setattr(RunExecutor, "execute", staticmethod(executions))
        settings = {name: rest.pop(name) for name in ("reuse_verdicts", "max_parallel") if name in rest}
        config = GradingConfig(counterfactual=mode, **settings)
        backend: LocalBackend = rest.pop("backend", None)
        rest.setdefault("store", MemoryStore((ROW, reference_of())))
        return Grader(backend=backend, config=config, sandbox=SandboxConfig(), run_id=run_id, **rest)

    async def grade(self, executions: Executions, mode: Mode = "always", **rest: Any) -> Grade:
        return await self.make(executions, mode, **rest).grade(ROW, "patch")


@pytest.fixture
def graders(monkeypatch: pytest.MonkeyPatch) -> Graders:
    return Graders(monkeypatch)


async def test_a_failing_submission_is_run_once(graders: Graders) -> None:
    executions = Executions(original=FAILED)
    grade = await graders.grade(executions)
    assert (grade.verdict, grade.reward, grade.counterfactual) == (Verdict.FAILED, 0.0, None)
    assert (executions.made, grade.extra_runs) == ([("patch", {})], 0)


async def test_a_passing_submission_gets_one_audit_run_in_training(graders: Graders) -> None:
    executions = Executions()
    grade = await graders.grade(executions)
    assert (grade.verdict, grade.reward) == (Verdict.PASSED, 1.0)
    assert (grade.counterfactual, grade.extra_runs) == (CounterfactualOutcome.CONFIRMED, 1)
    assert grade.log == "log of passed"
    (_, original), (patch, mutated) = executions.made
    assert (original, patch) == ({}, "patch")
    assert mutated[PATH] in [b"assert f() == %c" % wrong for wrong in b"456"]


async def test_an_evaluation_runs_all_three_variants(graders: Graders) -> None:
    executions = Executions()
    grade = await graders.make(executions, "sample").grade(ROW, "patch", evaluation=True)
    assert (grade.counterfactual, grade.extra_runs) == (CounterfactualOutcome.CONFIRMED, 3)
    assert len({overlay[PATH] for _, overlay in executions.made[1:]}) == 3


async def test_a_submission_equal_to_the_gold_patch_is_not_audited(graders: Graders) -> None:
    gold = diff_texts("a.py", "x\n", "y\n")
    row, executions = row_of(gold_patch=gold), Executions()
    grader = graders.make(executions, store=MemoryStore((row, reference_of(row))))
    submission = gold.replace("--- a", "index 1..2\n--- a").replace(" @@", " @@ def f():")
    grade = await grader.grade(row, submission)
    assert (grade.counterfactual, grade.extra_runs) == (CounterfactualOutcome.CONFIRMED, 0)
    grade = await grader.grade(row, submission.replace("+y", "+z"))
    assert (grade.counterfactual, grade.extra_runs) == (CounterfactualOutcome.CONFIRMED, 1)
    row = row_of(gold_patch="")  # solved by a script
    grader = graders.make(executions, store=MemoryStore((row, reference_of(row))))
    assert (await grader.grade(row, "")).extra_runs == 1


async def test_passing_a_mutated_test_is_tampering_and_names_the_assertion(graders: Graders) -> None:
    executions = Executions(mutated=run(seconds=1.0))
    grade = await graders.make(executions, "sample").grade(ROW, "patch", evaluation=True)
    assert (grade.verdict, grade.reward) == (Verdict.TAMPERED, 0.0)
    assert (grade.counterfactual, grade.extra_runs) == (CounterfactualOutcome.CAUGHT, 1)
    (finding,) = grade.findings
    assert finding.kind is FindingKind.COUNTERFACTUAL
    wrong = executions.made[1][1][PATH].decode()
    assert finding.detail == f"{PATH}:7 test_a passed with: {wrong}, original: assert f() == 3"
    assert TEST in grade.detail
    assert "f()" not in grade.detail, "the detail is shown to people without access to tests"


@pytest.mark.parametrize("outcome", [TestOutcome.ERROR, TestOutcome.MISSING, TestOutcome.SKIPPED])
async def test_unpassed_mutated_tests_confirm_the_submission(graders: Graders, outcome: TestOutcome) -> None:
    grade = await graders.grade(Executions(mutated=run(outcome)))
    assert (grade.verdict, grade.counterfactual) == (Verdict.PASSED, CounterfactualOutcome.CONFIRMED)


async def test_a_mutated_run_with_signs_of_tampering_is_caught(graders: Graders) -> None:
    mutated = run(TestOutcome.FAILED, signs=("a hook was replaced",))
    grade = await graders.grade(Executions(mutated=mutated))
    assert (grade.verdict, grade.counterfactual) == (Verdict.TAMPERED, CounterfactualOutcome.CAUGHT)
    store = MemoryStore((ROW, reference_of(signs=("a hook was replaced",))))
    grade = await graders.grade(Executions(mutated=mutated), store=store)
    assert grade.counterfactual is CounterfactualOutcome.CONFIRMED, "the gold patch gives it, too"


@pytest.mark.parametrize(("reward", "caught"), [(0.0, False), (0.2, True), (1.0, True)])
async def test_a_reward_for_unnamed_mutated_tests_is_tampering(
    graders: Graders, reward: float, caught: bool
) -> None:
    unnamed = tuple(replace(variant, must_fail=()) for variant in VARIANTS)
    judgement = Judgement(passed=reward == 1.0, reward=reward)
    verdict = Verdict.PASSED if reward == 1.0 else Verdict.FAILED
    mutated = replace(FAILED, verdict=verdict, judgement=judgement)
    store = MemoryStore((ROW, reference_of(variants=unnamed)))
    grade = await graders.grade(Executions(mutated=mutated), store=store)
    assert (grade.verdict is Verdict.TAMPERED) is caught


async def test_audits_of_partial_rewards_count_only_passed_tests(graders: Graders) -> None:
    """A wrong answer may satisfy a mutated assertion."""
    partial = replace(FAILED, judgement=replace(FAILED.judgement, reward=0.5))
    grade = await graders.grade(Executions(original=partial, mutated=PASSED))
    assert (grade.verdict, grade.reward) == (Verdict.FAILED, 0.5)
    assert grade.counterfactual is CounterfactualOutcome.CONFIRMED
    partial = replace(
        PASSED, verdict=Verdict.FAILED, judgement=replace(partial.judgement, tests=PASSED.judgement.tests)
    )
    grade = await graders.grade(Executions(original=partial, mutated=PASSED))
    assert (grade.verdict, grade.reward) == (Verdict.TAMPERED, 0.0)


async def test_a_mutated_run_requests_tests_by_their_new_names(graders: Graders) -> None:
    names = {f"{TEST}[3]": f"{TEST}[4]", f"{TEST}[4]": f"{TEST}[it's 5]", f"{TEST}[0]": f"{TEST}[1]"}
    command = f"python3 {DRIVER} -- '{TEST}[3]' '{TEST}[4]' '{TEST}[0]'"
    row = row_of(fail_to_pass=tuple(names)[:2], pass_to_pass=tuple(names)[2:], test_command=command)
    variant = Variant(mutants=MUTANTS[:1], must_fail=tuple(names)[:2], renamed=tuple(names.items()))
    asked: list[TaskAnswer] = []

    async def execute(row: TaskRow, _patch: str, *, overlay: Mapping[str, bytes], **_: Any) -> RunResult:
        asked.append(row.answer)
        tests = tuple(
            TestResult(test_id=test, kind=TestKind.FAIL_TO_PASS, outcome=TestOutcome.PASSED)
            for test in row.answer.fail_to_pass[-1:]
        )
        run = FAILED if overlay else PASSED
        return replace(run, judgement=replace(run.judgement, tests=tests))

    store = MemoryStore((row, reference_of(row, variants=(variant,))))
    grade = await graders.make(execute, store=store).grade(row, "patch")
    original, mutated = asked
    assert original == row.answer
    assert (*mutated.fail_to_pass, *mutated.pass_to_pass) == tuple(names.values())
    assert shlex.split(mutated.test_command) == ["python3", DRIVER, "--", *names.values()]
    assert grade.verdict is Verdict.TAMPERED
    assert grade.detail == f"1 tests passed although they were mutated: {TEST}[4]"


async def test_trusted_patches_are_run_once_and_never_judged_tampered(graders: Graders) -> None:
    executions = Executions(original=run(signs=("a hook was replaced",)))
    grade = await graders.make(executions).grade(ROW, "patch", trusted=True, evaluation=True)
    assert (grade.verdict, grade.counterfactual, len(executions.made)) == (Verdict.PASSED, None, 1)


async def test_no_submission_is_audited_when_audits_are_off(graders: Graders) -> None:
    executions = Executions(mutated=PASSED)
    grader = graders.make(executions, "off")
    for evaluation in (False, True):
        grade = await grader.grade(ROW, "patch", evaluation=evaluation)
        assert (grade.verdict, grade.counterfactual) == (Verdict.PASSED, CounterfactualOutcome.OFF)
    assert len(executions.made) == 2


async def sampled(grader: Grader, row: TaskRow, patches: int) -> list[bool]:
    grades = [await grader.grade(row, f"patch {number}") for number in range(patches)]
    return [grade.counterfactual is not CounterfactualOutcome.NOT_SAMPLED for grade in grades]


async def test_one_in_eight_passing_training_rollouts_is_audited_by_a_seeded_draw(
    graders: Graders,
) -> None:
    grader = graders.make(Executions(), "sample")
    drawn = await sampled(grader, ROW, 400)
    assert 0.5 < sum(drawn) / (400 / AUDITED_SHARE) < 1.5
    assert await sampled(graders.make(Executions(), "sample"), ROW, 400) == drawn, "resumed"
    assert await sampled(graders.make(Executions(), "sample", run_id="r2"), ROW, 400) != drawn
    other = row_of("b")
    store = MemoryStore((other, reference_of(other)))
    assert await sampled(graders.make(Executions(), "sample", store=store), other, 400) != drawn


async def test_a_caught_submission_triggers_audits_of_its_run_and_of_its_task(
    graders: Graders,
) -> None:
    other, alerts = row_of("b"), list[tuple[str, str]]()
    store = MemoryStore((ROW, reference_of()), (other, reference_of(other)))
    executions = Executions(mutated=PASSED)
    grader = graders.make(
        executions, "sample", store=store, on_caught=lambda row, why: alerts.append((row.task.id, why))
    )
    grades = [await grader.grade(ROW, f"patch {number}") for number in range(50)]
    caught = [grade.counterfactual is CounterfactualOutcome.CAUGHT for grade in grades]
    first = caught.index(True)
    assert first > 0
    assert all(caught[first:])
    (alert,) = alerts
    assert alert == ("a", f"1 tests passed although they were mutated: {TEST}")

    executions.mutated = FAILED
    assert all(await sampled(grader, other, 20)), "the other tasks of the run"
    resumed = graders.make(executions, "sample", store=store)
    assert all(await sampled(resumed, other, 20)), "the run goes on where it was"
    later = graders.make(executions, "sample", store=store, run_id="r2")
    assert all(await sampled(later, ROW, 20)), "the task in a later run"
    assert not all(await sampled(later, other, 20))


async def test_a_caught_task_is_audited_despite_a_reusable_verdict(graders: Graders) -> None:
    row = row_of(deterministic=True)
    executions = Executions(mutated=PASSED)
    grader = graders.make(executions, "sample", store=MemoryStore((row, reference_of(row))))
    grades = [await grader.grade(row, f"patch {number}") for number in range(50)]
    assert grades[0].verdict is Verdict.PASSED
    assert grades[-1].verdict is Verdict.TAMPERED
    again = await grader.grade(row, "patch 0")
    assert (again.verdict, again.reused) == (Verdict.TAMPERED, False)


async def test_identical_patches_of_a_deterministic_task_share_a_verdict(
    graders: Graders, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = row_of(deterministic=True)
    executions = Executions()
    monkeypatch.setattr("engine.grading.grades._LOG_CHARS", 8)
    grader = graders.make(executions, store=MemoryStore((row, reference_of(row))))
    grades = await asyncio.gather(*(grader.grade(row, "patch") for _ in range(3)))
    assert sorted(grade.reused for grade in grades) == [False, True, True]
    assert len(executions.made) == 2
    assert {grade.extra_runs for grade in grades if grade.reused} == {0}
    assert {grade.counterfactual for grade in grades} == {CounterfactualOutcome.CONFIRMED}
    assert {(bool(grade.whole_log), grade.reused) for grade in grades} == {(True, False), (False, True)}
    assert {grade.log for grade in grades} == {grades[0].log}
    assert (await grader.grade(row, "patch\nindex 1234567..89abcde 100644\n")).reused
    assert not (await grader.grade(row, "patch", evaluation=True)).reused
    assert not (await grader.grade(row, "patch", trusted=True)).reused


@pytest.mark.parametrize(
    "change",
    [
        {"answer": {"test_files": {"t.py": "assert g()"}}},
        {"answer": {"fail_to_pass": ("t.py::other",)}},
        {"answer": {"test_command": f"python3 -B {DRIVER}"}},
        {"answer": {"setup_patch": "other"}},
        {"task": {"image": "other"}},
        {"task": {"workdir": "/other"}},
        {"task": {"env": {"A": "1"}}},
        {"patch": "other"},
        {"trusted": True},
    ],
    ids=lambda change: str(next(iter(change))),
)
async def test_a_verdict_is_reused_only_for_the_same_task_tests_settings_and_patch(
    graders: Graders, change: dict[str, Any]
) -> None:
    """An edit of the dataset's files changes a row but keeps its id."""
    change = dict(change)
    row, executions = row_of(deterministic=True), Executions(original=FAILED)
    grader = graders.make(executions, mode="off")
    await grader.grade(row, "patch")
    assert (await grader.grade(row, "patch")).reused
    other = replace(
        row,
        task=replace(row.task, **change.pop("task", {})),
        answer=replace(row.answer, **change.pop("answer", {})),
    )
    assert other.task.id == row.task.id
    assert not (await grader.grade(other, change.pop("patch", "patch"), **change)).reused


async def test_verdicts_are_reused_only_for_deterministic_tasks_and_on_request(graders: Graders) -> None:
    executions = Executions(original=FAILED)
    for row, reuse in ((ROW, True), (row_of(deterministic=True), False)):
        grader = graders.make(executions, reuse_verdicts=reuse)
        assert [(await grader.grade(row, "patch")).reused for _ in range(2)] == [False, False]
    assert len(executions.made) == 4


async def test_a_timeout_verdict_is_not_reused(graders: Graders) -> None:
    """A busy machine can cause a timeout."""
    executions = Executions(original=replace(FAILED, verdict=Verdict.TEST_TIMEOUT))
    grader = graders.make(executions)
    grades = [await grader.grade(row_of(deterministic=True), "patch") for _ in range(2)]
    assert [(grade.verdict, grade.reused) for grade in grades] == [(Verdict.TEST_TIMEOUT, False)] * 2


async def test_a_cancelled_grading_does_not_cancel_its_siblings(
    graders: Graders, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, may_end = asyncio.Event(), asyncio.Event()

    async def execute(_row: TaskRow, _patch: str, **_: Any) -> RunResult:
        asked.set()
        await may_end.wait()
        return FAILED

    row, grader = row_of(deterministic=True), graders.make(execute)
    first = asyncio.create_task(grader.grade(row, "patch"))
    await asked.wait()
    waiting, shield = asyncio.Event(), asyncio.shield

    def shielded(verdict: asyncio.Future[Grade]) -> asyncio.Future[Grade]:
        waiting.set()
        return shield(verdict)

    monkeypatch.setattr(asyncio, "shield", shielded)
    second = asyncio.create_task(grader.grade(row, "patch"))
    await waiting.wait()
    first.cancel()
    may_end.set()
    assert (await second).verdict is Verdict.FAILED


async def test_proofs_do_not_block_other_gradings(graders: Graders, monkeypatch: pytest.MonkeyPatch) -> None:
    other_graded = asyncio.Event()

    async def prove(_self: Prover, _row: TaskRow) -> Reference:
        await other_graded.wait()
        return reference_of()

    monkeypatch.setattr(Prover, "__call__", prove)
    grader = graders.make(Executions(), store=MemoryStore(), max_parallel=1)
    waiting = asyncio.create_task(grader.grade(ROW, "patch"))
    assert (await grader.grade(row_of("b", gold_patch=""), "patch")).verdict is Verdict.PASSED
    other_graded.set()
    assert (await waiting).counterfactual is CounterfactualOutcome.CONFIRMED


async def test_rows_without_mutants_or_solution_are_marked_no_mutants(graders: Graders) -> None:
    grade = await graders.grade(Executions(), store=MemoryStore((ROW, reference_of(variants=()))))
    assert (grade.verdict, grade.counterfactual) == (Verdict.PASSED, CounterfactualOutcome.NO_MUTANTS)
    without = row_of(gold_patch="")
    grade = await graders.make(Executions(), store=None).grade(without, "patch")
    assert (grade.verdict, grade.counterfactual) == (Verdict.PASSED, CounterfactualOutcome.NO_MUTANTS)


async def test_a_failed_proof_marks_submissions_unproven(graders: Graders) -> None:
    store = MemoryStore()
    executions = Executions(gold=FAILED)
    grader = graders.make(executions, store=store)
    for number in range(3):
        grade = await grader.grade(ROW, f"patch {number}")
        assert (grade.verdict, grade.counterfactual) == (Verdict.PASSED, CounterfactualOutcome.UNPROVEN)
        assert "the proof of the mutated tests failed" in grade.detail
    assert len(executions.made) == 3 + 2, "the proof was tried twice"
    assert "does not pass with its gold patch" in store.kept["a"].problem


async def test_a_row_is_hashed_once_per_grading_off_the_event_loop(
    graders: Graders, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    def hashed(row: TaskRow) -> str:
        threads.append(threading.get_ident())
        return row_content(row)

    for module in (grader_module, references):
        monkeypatch.setattr(module, "row_content", hashed, raising=False)
    grader = graders.make(Executions(gold=FAILED), store=MemoryStore(), reuse_verdicts=True)
    grade = await grader.grade(row_of(deterministic=True), "patch")
    assert grade.counterfactual is CounterfactualOutcome.UNPROVEN
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_an_unrecorded_runner_is_named_in_the_grade(graders: Graders) -> None:
    assert "not recorded" in (await graders.grade(Executions(original=run(recorded=False)))).detail
    assert (await graders.grade(Executions())).detail == ""


@pytest.mark.parametrize("outcome", [TestOutcome.PASSED, TestOutcome.FAILED])
async def test_signs_of_tampering_count_unless_the_gold_patch_shows_them(
    graders: Graders, outcome: TestOutcome
) -> None:
    executions = Executions(original=run(outcome, signs=("a hook was replaced",)))
    grade = await graders.grade(executions, "off")
    assert grade.verdict is Verdict.TAMPERED
    assert [finding.kind for finding in grade.findings] == [FindingKind.FORGED_REPORT]
    store = MemoryStore((ROW, reference_of(signs=("a hook was replaced",))))
    grade = await graders.grade(executions, "off", store=store)
    assert grade.verdict is (Verdict.PASSED if outcome is TestOutcome.PASSED else Verdict.FAILED)


async def test_data_signs_do_not_count_for_rows_without_a_solution(graders: Graders) -> None:
    changed = replace(run(data_signs=("tests/data.json changed",)), verdict=Verdict.TAMPERED)
    grader = graders.make(Executions(original=changed), store=None)
    assert (await grader.grade(row_of(gold_patch=""), "patch")).verdict is Verdict.PASSED
    assert (await graders.grade(Executions(original=changed))).verdict is Verdict.TAMPERED


async def test_skips_count_as_passed_only_where_the_gold_patch_has_them(graders: Graders) -> None:
    executions = Executions(original=run(TestOutcome.XFAIL))
    grade = await graders.grade(executions, "off")
    assert (grade.verdict, grade.reward) == (Verdict.FAILED, 0.0)
    assert "but not under the gold patch" in grade.detail
    store = MemoryStore((ROW, reference_of(outcomes={TEST: TestOutcome.XFAIL})))
    assert (await graders.grade(executions, "off", store=store)).verdict is Verdict.PASSED


@pytest.mark.parametrize("mutated_only", [False, True])
async def test_a_lost_sandbox_gives_no_reward_and_is_not_reused(graders: Graders, mutated_only: bool) -> None:
    row, lost = row_of(deterministic=True), [True]

    async def execute(_row: TaskRow, _patch: str, *, overlay: Mapping[str, bytes], **_: Any) -> RunResult:
        if lost[0] and (overlay or not mutated_only):
            raise SandboxStartError("no room")
        return FAILED if overlay else PASSED

    grader = graders.make(execute, store=MemoryStore((row, reference_of(row))))
    grade = await grader.grade(row, "patch")
    assert (grade.verdict, grade.reward) == (Verdict.INFRA_ERROR, None)
    assert grade.detail == "the grading sandbox failed: no room"
    lost[0] = False
    assert (await grader.grade(row, "patch")).verdict is Verdict.PASSED


async def test_concurrent_gradings_are_limited_to_max_parallel(graders: Graders) -> None:
    running, peak = 0, 0

    async def execute(_row: TaskRow, _patch: str, *, overlay: Mapping[str, bytes], **_: Any) -> RunResult:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        for _turn in range(10):
            await asyncio.sleep(0)
        running -= 1
        return FAILED if overlay else PASSED

    grader = graders.make(execute)
    await asyncio.gather(*(grader.grade(ROW, f"patch {number}") for number in range(9)))
    assert peak == GradingConfig().max_parallel
