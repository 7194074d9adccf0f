"""The parts of the execution-based verifier that need no sandbox."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engine.config.sandbox import SandboxConfig
from engine.grading.evidence import Evidence
from engine.patches.diff import diff_texts
from engine.sandbox.local.backend import LocalBackend
from engine.testing.testrun import Record, driver_command
from engine.types import TaskAnswer, TaskRow, TestOutcome
from engine.verifiers.execution_based.commands import PytestCommand, visible_row
from engine.verifiers.execution_based.imports import imported_modules, is_imported, module_names
from engine.verifiers.execution_based.reports import RunStatus, TestReport, merged, report_of
from engine.verifiers.execution_based.reproduction import Examination, Rejection, ReproductionTest
from engine.verifiers.execution_based.runs import TestRuns, TestSelection
from engine.verifiers.execution_based.scores import CandidateScore, TestScore
from engine.verifiers.execution_based.store import FolderReports
from engine.verifiers.execution_based.testing_agent import reproduction_test
from engine.verifiers.execution_based.toxicity import quality_of_tests
from tests.builders.dataset_builders import new_file
from tests.builders.rollout_builders import make_row


@pytest.mark.parametrize(
    ("source", "path", "imported"),
    [
        ("import toy.numbers", "toy/numbers.py", True),
        ("from toy import numbers", "toy/numbers.py", True),
        ("from toy.numbers import clamp", "toy/numbers.py", True),
        ("def test():\n    from toy.numbers import clamp", "toy/numbers.py", True),
        ("from ..numbers import clamp", "toy/numbers.py", True),
        ("from .. import numbers", "toy/numbers.py", True),
        ("import toy", "toy/__init__.py", True),
        ("from toy import words", "toy/numbers.py", False),
        ("from ..words import shout", "toy/numbers.py", False),
        ("import numbers", "toy/numbers.py", False),
        ("from toy import (\n    words,  # import numbers\n    numbers as n,\n)", "toy/numbers.py", True),
        ("from toy.words import (\n    count,\n    numbers,\n)", "toy/words/numbers.py", True),
        ("from toy.words import \\\n    shout", "toy/words.py", True),
        ("from .import_tools import a", "toy/tests/import_tools.py", True),
        ("x = 'from toy import numbers'", "toy/numbers.py", False),
        ("x = " + "(" * 5000, "toy/numbers.py", False),
        ("\0", "toy/numbers.py", False),
    ],
)
def test_imports_of_a_test_file_are_resolved_to_modules(source: str, path: str, imported: bool) -> None:
    known = module_names(["toy/__init__.py", "toy/words.py", path, "toy/tests/test_numbers.py"])
    modules = imported_modules("toy/tests/test_numbers.py", source.encode(), known)
    assert is_imported(path, modules) is imported


@pytest.mark.parametrize(
    "line",
    ["from" + " " * 2**19, "from " + "." * 2**19, "from a" + ".a" * 2**18, "\n".join(["from  . "] * 2**16)],
    ids=["spaces", "dots", "names", "lines"],
)
def test_hostile_imports_are_read_in_linear_time(line: str) -> None:
    """A backtracking pattern would take hours for these lines."""
    modules = imported_modules("t.py", f"{line}\nimport toy.numbers\n".encode(), ())
    assert modules == {("toy", "numbers")}


def test_visible_rows_hide_the_answer() -> None:
    answer = TaskAnswer(
        gold_patch="gold",
        test_patch="tests",
        test_files={"a": "b"},
        fail_to_pass=("t",),
        pass_to_pass=("u",),
        test_command="pytest t",
        hidden_paths=("hidden",),
        setup_patch="setup",
        metadata={"secret": 1},
    )
    visible = visible_row(replace(make_row(), answer=answer)).answer
    assert visible == TaskAnswer(gold_patch="", hidden_paths=("hidden",), setup_patch="setup")
    with_driver = visible_row(
        replace(make_row(), answer=replace(answer, test_command=driver_command(["t.py::t"], ["src"])))
    )
    assert "t.py" not in with_driver.answer.test_command
    assert PytestCommand.of(with_driver).roots == ("src",)
    assert visible_row(with_driver) == with_driver


def test_the_driver_is_used_only_if_the_test_command_uses_it() -> None:
    row = make_row()
    command = driver_command(["t/test_a.py::test_b"], ["src", "."])
    with_driver = PytestCommand.of(replace(row, answer=replace(row.answer, test_command=command)))
    assert with_driver.roots == ("src", ".")
    script = with_driver.script(["tests/test a.py"], path="/bin", trace=True)
    assert "test_b" not in script
    assert "'tests/test a.py'" in script
    assert "--trace-root src" in script
    plain = PytestCommand.of(replace(row, answer=replace(row.answer, test_command="pytest t")))
    assert plain.script(["tests/test a.py"], path="/venv/bin:/bin").startswith("export PATH=/venv/bin:/bin\n")
    assert not plain.traces


def test_a_reproduction_test_is_read_only_from_its_new_file() -> None:
    other = diff_texts("toy/numbers.py", "a\n", "b\n")
    test = "def test_a():\n    assert False\n"
    written = reproduction_test(other + new_file("test_issue.py", test), author="a")
    assert (written.author, written.content) == ("a", test)
    assert reproduction_test(other + new_file("tests/test_issue.py", test), author="a").content == ""
    changed = diff_texts("test_issue.py", "a\n", "b\n")
    for patch in ("", other, changed, "no patch"):
        assert reproduction_test(patch, author="a").content == ""


def record(outcomes: dict[str, str], *, status: int = 0, signs: tuple[str, ...] = ()) -> Evidence:
    return Evidence(
        record=Record(exit_status=status, altered=(), outcomes=outcomes), record_wanted=True, signs=signs
    )


def test_reports_classify_how_a_run_ended() -> None:
    assert report_of(record({"a": "PASSED"})).outcomes == {"a": TestOutcome.PASSED}
    assert report_of(record({"a": "PASSED"}, status=-1)).status is RunStatus.NO_REPORT
    assert report_of(Evidence(record_wanted=True)).status is RunStatus.NO_REPORT
    assert report_of(Evidence(timed_out=True, problem="late")).status is RunStatus.TIMED_OUT
    signed = record({"a": "PASSED"}, signs=("hook replaced",))
    assert report_of(signed).status is RunStatus.TAMPERED
    assert report_of(signed).outcomes == {}
    assert report_of(signed, ["hook replaced"]).status is RunStatus.RAN


def test_outcomes_in_a_log_count_only_if_no_record_was_expected() -> None:
    report = report_of(Evidence(exit_code=1), printed={"a": "PASSED", "b": "FAILED"})
    assert report.status is RunStatus.RAN
    assert report.outcomes == {"a": TestOutcome.PASSED, "b": TestOutcome.FAILED}
    assert report_of(Evidence(), printed={}).status is RunStatus.NO_REPORT
    assert report_of(record({"a": "FAILED"}), printed={"a": "PASSED"}).passed(["a"]) == ()
    unrecorded = report_of(Evidence(record_wanted=True), printed={"a": "PASSED"})
    assert (unrecorded.status, unrecorded.outcomes) == (RunStatus.NO_REPORT, {})


def test_reports_of_files_are_merged() -> None:
    ran = TestReport(status=RunStatus.RAN, outcomes={"a": TestOutcome.PASSED}, seconds=1)
    late = TestReport(status=RunStatus.TIMED_OUT, detail="late", seconds=2)
    both = merged([late, ran])
    assert (both.status, both.detail, both.seconds) == (RunStatus.TIMED_OUT, "late", 3)
    assert both.passed(["b", "a"]) == ("a",)


async def test_reports_round_trip_through_the_store_with_any_test_names(tmp_path: Path) -> None:
    report = report_of(record({"test_a[\ud800]": "FAILED"}, signs=("\udcff",)), known_signs=["\\udcff"])
    assert report.status is RunStatus.RAN
    store = FolderReports(tmp_path / "reports")
    await store.save("key", report)
    assert await store.load("key") == report
    assert await store.load("other") is None


class HangingRuns(TestRuns):
    """Runs in which files named ``slow`` hit every limit; nothing is executed."""

    def __init__(self, home: Path, timeout_s: float) -> None:
        super().__init__(backend=LocalBackend(home), sandbox=SandboxConfig(), run_id="r", timeout_s=timeout_s)
        self.limits: list[tuple[tuple[str, ...], float]] = []

    async def _run(
        self, row: TaskRow, patch: str, selection: TestSelection, limit_s: float, trace: bool
    ) -> TestReport:
        self.limits.append((selection.files, limit_s))
        hangs = any("slow" in file for file in selection.files)
        return TestReport(status=RunStatus.TIMED_OUT if hangs else RunStatus.RAN)


async def test_a_hanging_file_does_not_use_up_the_time_of_others(tmp_path: Path) -> None:
    runs = HangingRuns(tmp_path, timeout_s=100.0)
    files = ("a.py", "slow1.py", "b.py", "slow2.py", "slow3.py", "c.py", "slow4.py", "d.py")
    report = await runs.run(make_row(), "patch", TestSelection(files=files))
    assert report.status is RunStatus.TIMED_OUT
    assert runs.limits[0] == (files, 100.0)
    alone = {file: limit for (file, *others), limit in runs.limits if not others}
    assert alone == {**dict.fromkeys(files[:5], 100.0), **dict.fromkeys(files[5:], 12.5)}


async def test_a_report_is_reused_only_for_equal_inputs(tmp_path: Path) -> None:
    """The edited row keeps its id, as after an edit of the dataset's files."""
    row, selection, box = make_row(), TestSelection(files=("a.py",)), SandboxConfig()
    edited = replace(row, answer=replace(row.answer, setup_patch="other"))
    assert edited.task.id == row.task.id
    store = FolderReports(tmp_path / "reports")
    made: list[TaskRow] = []

    class CountedRuns(TestRuns):
        async def _run(self, row: TaskRow, *_: object) -> TestReport:
            made.append(row)
            return TestReport(status=RunStatus.RAN)

    async def report(
        row: TaskRow, patch: str, selection: TestSelection, box: SandboxConfig, timeout_s: float
    ) -> None:
        backend = LocalBackend(tmp_path)
        runs = CountedRuns(backend=backend, sandbox=box, run_id="r", timeout_s=timeout_s, store=store)
        await runs.report(row, patch, selection)

    inputs = (row, "patch", selection, box, 9.0)
    for number, other in enumerate(
        (
            edited, "other", replace(selection, files=("b.py",)), replace(selection, added={"a.py": b""}),
            replace(selection, script="x"), box.model_copy(update={"memory_mb": 1024}), 10.0,
        )
    ):  # fmt: skip
        changed = [other if type(value) is type(other) else value for value in inputs]
        await report(*inputs)
        await report(*changed)  # type: ignore[arg-type]
        assert len(made) == number + 2, other


def examination(author: str, *, kept: bool = True) -> Examination:
    return Examination(
        test=ReproductionTest(author=author, content="x"),
        rejection=None if kept else Rejection.PASSES,
        failing=("a", "b") if kept else (),
    )


def score(name: str, *passed: int) -> CandidateScore:
    tests = ("a", "b")
    return CandidateScore(
        trajectory_id=name,
        patch_hash=name,
        regression=TestScore(status=RunStatus.RAN, passed=(), total=0),
        reproduction=tuple(
            TestScore(status=RunStatus.RAN, passed=tests[:count], total=2) for count in passed
        ),
    )


def test_toxic_tests_fail_every_good_candidate() -> None:
    tests = [examination("honest"), examination("dropped", kept=False), examination("toxic")]
    tests.append(examination("useless"))
    scored = [score("g1", 2, 1, 0), score("g2", 2, 0, 0), score("b1", 1, 2, 0), score("b2", 0, 0, 0)]
    lost = CandidateScore(trajectory_id="l", patch_hash="l", regression=None, reproduction=(), error="lost")
    scores = {candidate.trajectory_id: candidate for candidate in [*scored, lost]}
    resolved = {"g1": True, "g2": True, "b1": False, "b2": False, "l": True}
    honest, toxic, useless = quality_of_tests(scores, tests, resolved)
    assert (honest.author, honest.good, honest.good_passed, honest.bad, honest.bad_passed) == (
        "honest", 2, 2, 2, 0,
    )  # fmt: skip
    assert (honest.toxic, honest.misleading) == (False, False)
    assert (toxic.toxic, toxic.misleading) == (True, True)
    assert (useless.toxic, useless.misleading) == (True, False)
    none_good = quality_of_tests(scores, tests, dict.fromkeys(resolved, False))
    assert not any(quality.toxic for quality in none_good)
    with pytest.raises(KeyError):
        quality_of_tests(scores, tests, {"g1": True})
