"""Execution-based verifier in real sandboxes: regression and reproduction tests, hostile candidates."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.config.rollout import RolloutConfig
from engine.config.sandbox import SandboxConfig
from engine.datasets.curation.toolchain import ensure_toolchain
from engine.errors import DatasetError, SandboxStartError
from engine.inference.base import GenerationContext, Policy
from engine.patches.diff import diff_texts
from engine.sandbox.base import SandboxSpec
from engine.sandbox.local.backend import LocalBackend
from engine.sandbox.local.images import build_image
from engine.sandbox.pool.pool import SandboxPool
from engine.testing.toolchain import MOUNT
from engine.types import TaskAnswer, TaskRow, TerminationReason, Trajectory
from engine.verifiers.execution_based.regression import RegressionSuite, find_regression_tests
from engine.verifiers.execution_based.reports import RunStatus
from engine.verifiers.execution_based.reproduction import Examination, Rejection, ReproductionTest, examine
from engine.verifiers.execution_based.runs import TestRuns, TestSelection
from engine.verifiers.execution_based.scores import CandidatePatch, CandidateScore, score_candidates
from engine.verifiers.execution_based.store import FolderReports
from engine.verifiers.execution_based.testing_agent import TestingAgent, written_tests
from tests.builders.dataset_builders import (
    BROKEN,
    NUMBERS,
    WORDS,
    broken_task,
    new_file,
    own_pytest_task,
    patched,
    toolchain_or_skip,
    write_toy,
)
from tests.builders.rollout_builders import SUBMIT, ChatScript, Recorder, in_bytes, quick_agent, respond

GOOD = patched(NUMBERS)
BREAKING = patched(NUMBERS.replace(*BROKEN).replace("return total / count", "return total"))
BROKEN_ALONE = patched(NUMBERS.replace(*BROKEN) + "\n\nX = 1\n")
HANGING = patched(NUMBERS.replace("    total = sum(values)\n", "    while True:\n        pass\n"))
CRASHING = patched(
    NUMBERS.replace("    total = sum(values)\n", "    import os\n    os.kill(os.getpid(), 9)\n")
)
SHOUTING = patched(
    NUMBERS.replace(
        "    total = sum(values)\n",
        "    for _ in range(60):\n        print('shout ' * 100_000)\n    raise ValueError('!' * 300_000)\n",
    )
)
FORGING = patched(
    NUMBERS.replace(
        "    total = sum(values)\n",
        "    import _pytest.runner\n    _pytest.runner.check_interactive_exception = None\n"
        "    total = sum(values) + 1\n",
    )
)
WORDS_CHANGED = diff_texts("toy/words.py", WORDS, WORDS.replace("loud + mark", "mark + loud"))
MEAN = "tests/test_numbers.py::TestMean::test_mean"
POSITIVES = "tests/test_numbers.py::test_positives"
CANDIDATES = {"good": GOOD, "breaking": BREAKING, "silent": patched("import sys\n\nsys.exit(0)\n")}
RUNNER = """python3 - <<'END'
from toy.numbers import clamp, mean
from toy.words import shout
tests = {"mean": mean([1, 3]) == 2, "clamp": clamp(5, 0, 10) == 5, "words": bool(shout)}
for name, passed in tests.items():
    print(f"test_{name} (numbers.Tests) ... {'ok' if passed else 'FAIL'}")
END
"""
REPRODUCTION = """from toy.numbers import clamp, mean


def test_inside():
    assert clamp(5, 0, 10) == 5


def test_above():
    assert clamp(11, 0, 10) == 10


def test_other():
    assert mean([2]) == 2
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verifier")
    toolchain_or_skip(folder)
    (folder / "images").mkdir()
    return folder


@pytest.fixture(scope="module")
def row(home: Path) -> TaskRow:
    return broken_task(home, write_toy(home / "source"))


@pytest.fixture(scope="module")
def own_row(home: Path) -> TaskRow:
    folder = home / "own"
    folder.mkdir()
    (folder / "toolchain").symlink_to(home / "toolchain")
    (folder / "images").symlink_to(home / "images")
    return own_pytest_task(folder, write_toy(folder / "source"))


@pytest.fixture(scope="module")
def suite(home: Path, row: TaskRow) -> RegressionSuite:
    """Regression tests for patches to ``toy/numbers.py``."""
    return asyncio.run(find_regression_tests(make_runs(home), row, [GOOD]))


@pytest.fixture(scope="module")
def both(home: Path, row: TaskRow) -> RegressionSuite:
    """Regression tests for patches to both files."""
    return asyncio.run(find_regression_tests(make_runs(home), row, [GOOD, WORDS_CHANGED, "no patch"]))


@pytest.fixture(scope="module")
def kept(home: Path, row: TaskRow) -> Examination:
    """Reproduction test, two of whose functions fail on the unpatched tree."""
    return asyncio.run(examine(make_runs(home), row, ReproductionTest(author="t1", content=REPRODUCTION)))


def make_runs(home: Path, *, timeout_s: float = 120.0, **changes: Any) -> TestRuns:
    parts = {"backend": LocalBackend(home), "sandbox": SandboxConfig(memory_mb=512), "run_id": "test"}
    return TestRuns(**{**parts, "timeout_s": timeout_s, **changes})


async def suite_of(home: Path, row: TaskRow, *patches: str) -> RegressionSuite:
    return await find_regression_tests(make_runs(home), row, patches)


def broken_tests(score: CandidateScore, suite: RegressionSuite) -> set[str]:
    """Return the regression tests that a candidate does not pass."""
    assert score.regression is not None
    assert score.regression.total == len(suite.tests)
    return set(suite.tests) - set(score.regression.passed)


class CountingBackend(LocalBackend):
    """Backend that counts opened sandboxes and can refuse to open any."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.opened = 0
        self.refuses = False

    def open(self, spec: SandboxSpec) -> Any:
        self.opened += 1
        if self.refuses:
            raise SandboxStartError("no room")
        return super().open(spec)


async def test_regression_tests_run_by_the_datasets_own_script(home: Path, own_row: TaskRow) -> None:
    metadata = {**own_row.answer.metadata, "run_tests_regression": RUNNER}
    answer = replace(own_row.answer, log_parser="parse_log_django", metadata=metadata)
    row, runs = replace(own_row, answer=answer), make_runs(home)
    suite = await find_regression_tests(runs, row, [GOOD, BREAKING])
    assert suite.tests == ("test_mean (numbers.Tests)", "test_words (numbers.Tests)")
    assert suite.failing == ("test_clamp (numbers.Tests)",)
    candidates = [CandidatePatch(trajectory_id=name, patch=patch) for name, patch in CANDIDATES.items()]
    scores = await score_candidates(runs, row, candidates, suite=suite)
    assert [score.regression_passes for score in scores.values()] == [2, 1, 0]
    assert scores["silent"].regression is not None
    assert scores["silent"].regression.status is RunStatus.NO_REPORT
    unreadable = replace(row, answer=replace(answer, log_parser="parse_log_maven"))
    with pytest.raises(DatasetError, match="the log names no test"):
        await find_regression_tests(make_runs(home), unreadable, [GOOD])


def test_regression_tests_pass_unpatched_and_cover_the_changed_files(
    suite: RegressionSuite, both: RegressionSuite
) -> None:
    assert {MEAN, POSITIVES} <= set(suite.tests)
    assert not any("test_words" in test for test in suite.tests)
    assert "tests/test_numbers.py::test_clamp[5-5]" in suite.failing
    assert (suite.changed, suite.untested) == (("toy/numbers.py",), ())
    assert "tests/test_words.py::test_shout" in both.tests
    assert "tests/test_words.py::test_always_broken" in both.failing
    assert set(suite.tests) < set(both.tests)


async def test_tracing_selects_tests_of_files_that_they_do_not_import(home: Path, tmp_path: Path) -> None:
    tree = write_toy(tmp_path / "source")
    (tmp_path / "images").symlink_to(home / "images")
    (tmp_path / "toolchain").symlink_to(home / "toolchain")
    row = broken_task(tmp_path, tree)
    staged = tmp_path / "staged"
    (staged / "toy/api.py").write_text(
        "from toy.words import shout\n\n\ndef loud(text):\n    return shout(text)\n"
    )
    (staged / "tests/test_api.py").write_text(
        "import toy.api\n\n\ndef test_loud():\n    assert toy.api.loud('a') == 'A!'\n\n\n"
        "def test_nothing():\n    assert True\n"
    )
    binds = {MOUNT: str(ensure_toolchain(tmp_path))}
    build_image(tmp_path, "toy-api", staged, env={"PYTHONPATH": f"/testbed:{MOUNT}"}, binds=binds)
    row = replace(row, task=replace(row.task, image="local:toy-api"))
    suite = await suite_of(tmp_path, row, WORDS_CHANGED)
    assert "tests/test_api.py::test_loud" in suite.tests
    assert "tests/test_api.py::test_nothing" not in suite.tests


async def test_candidates_run_on_the_same_tests_and_are_keyed_by_trajectory(
    home: Path, row: TaskRow, suite: RegressionSuite, kept: Examination
) -> None:
    patches = {
        "good": GOOD,
        "breaking": BREAKING,
        "empty": "",
        "tests": new_file("tests/test_x.py", "x = 1\n"),
    }
    patches["broken"] = "diff --git a/toy/numbers.py b/toy/numbers.py\n@@ nonsense"
    candidates = [CandidatePatch(trajectory_id=name, patch=patch) for name, patch in patches.items()]
    runs = make_runs(home)
    scores = await score_candidates(runs, row, candidates, suite=suite, tests=[kept])
    assert list(scores) == list(patches)
    actual = {name: (broken_tests(score, suite), score.reproduction_passes) for name, score in scores.items()}
    assert actual == {
        "good": (set(), 2),
        "breaking": ({MEAN}, 0),
        "empty": (set(), 0),
        "tests": (set(), 0),
        "broken": (set(suite.tests), 0),
    }
    assert [name for name, score in scores.items() if not score.patch_hash] == ["empty"]
    statuses = [score.regression.status for score in scores.values() if score.regression is not None]
    unchanged, broken = RunStatus.NO_CHANGE, RunStatus.PATCH_FAILED
    assert statuses == [RunStatus.RAN, RunStatus.RAN, unchanged, unchanged, broken]
    with pytest.raises(ValueError, match="good is given twice"):
        await score_candidates(runs, row, [candidates[0], candidates[0]], suite=suite)


async def test_a_hanging_candidate_times_out(home: Path, row: TaskRow) -> None:
    report = await make_runs(home, timeout_s=5).report(
        row, HANGING, TestSelection(files=("tests/test_numbers.py",))
    )
    assert report.status is RunStatus.TIMED_OUT
    assert not report.outcomes


async def test_crash_loses_only_its_own_test_file(home: Path, row: TaskRow, both: RegressionSuite) -> None:
    candidates = [CandidatePatch(trajectory_id="a", patch=CRASHING)]
    scores = await score_candidates(make_runs(home), row, candidates, suite=both)
    regression = scores["a"].regression
    assert regression is not None
    assert regression.status is RunStatus.NO_REPORT
    assert {test.partition("::")[0] for test in regression.passed} == {"tests/test_words.py"}


async def test_report_keeps_the_end_of_excessive_output(home: Path, row: TaskRow, own_row: TaskRow) -> None:
    selection = TestSelection(files=("tests/test_numbers.py",))
    for folder, task in ((home, row), (home / "own", own_row)):
        report = await make_runs(folder).report(task, SHOUTING, selection)
        assert report.status is RunStatus.RAN, report.detail
        assert report.passed([MEAN, POSITIVES]) == (POSITIVES,)
        assert len(report.log) == 4000


async def test_candidate_that_alters_the_runner_is_reported_as_tampered(home: Path, row: TaskRow) -> None:
    report = await make_runs(home).report(row, FORGING, TestSelection(files=("tests/test_numbers.py",)))
    assert report.status is RunStatus.TAMPERED
    assert not report.outcomes


async def test_stored_reports_of_identical_patches_are_reused(
    home: Path, row: TaskRow, suite: RegressionSuite, tmp_path: Path
) -> None:
    backend = CountingBackend(home)
    twins = [CandidatePatch(trajectory_id=name, patch=GOOD) for name in ("a", "b")]
    first = make_runs(home, backend=backend, store=FolderReports(tmp_path / "reports"))
    scores = await score_candidates(first, row, twins, suite=suite)
    assert backend.opened == 1
    reopened = make_runs(home, backend=backend, store=FolderReports(tmp_path / "reports"))
    assert await score_candidates(reopened, row, twins, suite=suite) == scores
    assert backend.opened == 1
    sandbox = SandboxConfig(memory_mb=600)
    larger = make_runs(home, backend=backend, sandbox=sandbox, store=FolderReports(tmp_path / "reports"))
    await score_candidates(larger, row, twins, suite=suite)
    assert backend.opened == 2  # other limits may change test outcomes
    for path in (tmp_path / "reports").iterdir():
        path.write_text("{")
    rerun = await score_candidates(reopened, row, twins[:1], suite=suite)
    assert rerun["a"].regression_passes == scores["a"].regression_passes == len(suite.tests)
    assert backend.opened == 3


async def test_infrastructure_failure_leaves_a_missing_score_and_is_not_stored(
    home: Path, row: TaskRow, suite: RegressionSuite
) -> None:
    backend = CountingBackend(home)
    runs = make_runs(home, backend=backend, sandbox=SandboxConfig(memory_mb=512, start_retries=0))
    candidates = [CandidatePatch(trajectory_id="a", patch=GOOD)]
    backend.refuses = True
    lost = (await score_candidates(runs, row, candidates, suite=suite))["a"]
    assert (lost.regression_passes, lost.reproduction_passes, lost.error) == (None, None, "no room")
    backend.refuses = False
    retried = (await score_candidates(runs, row, candidates, suite=suite))["a"]
    assert retried.regression_passes == len(suite.tests)


async def test_images_with_their_own_pytest_are_supported(home: Path, own_row: TaskRow) -> None:
    home = home / "own"
    suite = await suite_of(home, own_row, GOOD, BREAKING)
    assert {MEAN, POSITIVES} <= set(suite.tests)
    assert not any("hidden" in test for test in (*suite.tests, *suite.failing))
    runs = make_runs(home)
    kept = await examine(runs, own_row, ReproductionTest(author="t1", content=REPRODUCTION))
    assert kept.failing == ("test_issue.py::test_inside", "test_issue.py::test_above")
    candidates = [
        CandidatePatch(trajectory_id=name, patch=patch) for name, patch in (("g", GOOD), ("b", BREAKING))
    ]
    scores = await score_candidates(runs, own_row, candidates, suite=suite, tests=[kept])
    assert [scores[name].reproduction_passes for name in "gb"] == [2, 0]
    assert [broken_tests(scores[name], suite) for name in "gb"] == [set(), {MEAN}]


async def test_a_repository_whose_tests_do_not_run_is_an_error(home: Path, row: TaskRow) -> None:
    broken = replace(row, answer=replace(row.answer, test_command="bash run.sh"))
    with pytest.raises(DatasetError, match="the tests of its repository do not run"):
        await suite_of(home, broken, GOOD)


@pytest.mark.parametrize(
    ("content", "rejection"),
    [
        ("", Rejection.NO_TEST),
        ("x = 1\n", Rejection.DID_NOT_RUN),
        ("import os\n\n\ndef test_a():\n    os._exit(0)\n", Rejection.DID_NOT_RUN),
        (
            "from toy.numbers import mean\n\n\ndef test_a():\n    assert mean([1]) == 1\n\n\n"
            "def test_b(no_such_fixture):\n    pass\n",
            Rejection.PASSES,
        ),
        (
            "import pathlib\n\n\ndef test_a():\n    pathlib.Path(__file__).write_text('')\n"
            "    assert False\n",
            Rejection.TAMPERED,
        ),
    ],
)
async def test_only_reproduction_tests_that_run_and_fail_unpatched_are_kept(
    home: Path, row: TaskRow, content: str, rejection: Rejection
) -> None:
    examined = await examine(make_runs(home), row, ReproductionTest(author="t1", content=content))
    assert examined.rejection is rejection, examined
    assert not examined.kept
    assert not examined.failing
    assert examined.detail


async def test_a_reproduction_test_that_hangs_is_not_kept(home: Path, row: TaskRow) -> None:
    content = "def test_a():\n    while True:\n        pass\n"
    examined = await examine(
        make_runs(home, timeout_s=5), row, ReproductionTest(author="t1", content=content)
    )
    assert examined.rejection is Rejection.TIMED_OUT


async def test_reproduction_tests_that_fail_by_chance_are_dropped(home: Path, row: TaskRow) -> None:
    """Each test fails in about half of its runs, all of which use fresh sandboxes."""
    names = "".join(f"def test_{n}():\n    assert random.random() < 0.5\n\n\n" for n in range(40))
    runs = make_runs(home)
    examined = await examine(runs, row, ReproductionTest(author="t1", content=f"import random\n\n\n{names}"))
    assert len(examined.failing) < 40


def script(content: str, *, also: str = "") -> list[str]:
    """Return a testing agent's turns: a look, an optional command, the test, submission."""
    turns = [respond("execute_bash", cmd="ls; cat toy/numbers.py")]
    if also:
        turns.append(respond("execute_bash", cmd=also))
    turns.append(respond("file_editor", command="create", path="/testbed/test_issue.py", file_text=content))
    return [*turns, SUBMIT]


async def written_by(
    home: Path, row: TaskRow, policy: Policy, runs: TestRuns, *, size: int = 1
) -> tuple[Trajectory, ...]:
    sandbox = SandboxConfig(memory_mb=512)
    pool = SandboxPool(LocalBackend(home), sandbox)
    agent = TestingAgent(
        policy=policy,
        runs=runs,
        pool=pool,
        agent=quick_agent(prompt="reproduction_v1", command_timeout_s=60.0),
        sandbox=sandbox,
        rollout=RolloutConfig(group_size=size, max_concurrent=2),
        observer=Recorder(),
        seed=1,
        run_id="test",
    )
    try:
        (group,) = await agent.collect([row])
    finally:
        await pool.close()
    return group.trajectories


async def test_a_testing_agent_writes_a_test(home: Path, row: TaskRow) -> None:
    turns = script(REPRODUCTION, also="echo 'x = 1' >> toy/words.py")
    (trajectory,) = await written_by(home, row, in_bytes(ChatScript(turns)), make_runs(home))
    assert (trajectory.termination, trajectory.reward) == (TerminationReason.SUBMITTED, 1.0)
    assert "clamp" in trajectory.steps[0].observation
    assert len(trajectory.tokens.ids) > 0
    assert trajectory.grade is not None
    assert [test.test_id for test in trajectory.grade.tests] == [
        "test_issue.py::test_inside",
        "test_issue.py::test_above",
    ]
    (test,) = written_tests([trajectory, trajectory])
    assert test.content == REPRODUCTION


async def test_a_testing_agent_gets_no_answer_and_no_reward_for_useless_tests(
    home: Path, own_row: TaskRow
) -> None:
    contents = ["def test_a():\n    assert True\n", "import nothing_like_it\n", REPRODUCTION]
    answers: list[TaskAnswer] = []

    def answer(context: GenerationContext) -> str:
        answers.append(context.row.answer)
        index = context.key.index
        turns = (
            script(contents[index], also="ls hidden; git log --oneline | wc -l") if index < 3 else [SUBMIT]
        )
        return turns[len(context.steps)]

    trajectories = await written_by(
        home / "own", own_row, ChatScript(answer), make_runs(home / "own"), size=4
    )
    assert [trajectory.reward for trajectory in trajectories] == [0.0, 0.0, 1.0, 0.0]
    details = [trajectory.grade.detail for trajectory in trajectories if trajectory.grade is not None]
    assert [detail.partition(":")[0] for detail in details] == ["passes", "did_not_run", "", "no_test"]
    assert all("No such file" in trajectory.steps[1].observation for trajectory in trajectories[:3])
    assert len(answers) == 13
    assert all(answer == TaskAnswer(gold_patch="", hidden_paths=("hidden",)) for answer in answers)
    assert len(written_tests(trajectories)) == 3


JUDGED: dict[str, tuple[str, RunStatus, int]] = {
    "in the way": (GOOD + new_file("test_issue.py/x.py", "x = 1\n"), RunStatus.RAN, 2),
    "own test": (
        BROKEN_ALONE + new_file("test_issue.py", "def test_inside():\n    pass\n"), RunStatus.RAN, 0,
    ),
    "ignored": (
        BROKEN_ALONE + new_file("conftest.py", "collect_ignore = ['test_issue.py']\n"), RunStatus.RAN, 0,
    ),
    "emptied": (
        patched(
            NUMBERS.replace(*BROKEN).replace(
                "def clamp", "open(__file__[:9] + 'test_issue.py', 'w')\n\n\ndef clamp"
            )
        ),
        RunStatus.TAMPERED,
        0,
    ),
}  # fmt: skip
"""Candidates that interfere with their reproduction test, its status, and the number of passed functions."""


async def test_candidates_cannot_interfere_with_their_reproduction_tests(
    home: Path, row: TaskRow, kept: Examination
) -> None:
    candidates = [CandidatePatch(trajectory_id=name, patch=patch) for name, (patch, *_) in JUDGED.items()]
    scores = await score_candidates(make_runs(home), row, candidates, suite=RegressionSuite(), tests=[kept])
    for name, (_, status, passes) in JUDGED.items():
        assert [result.status for result in scores[name].reproduction] == [status], name
        assert scores[name].reproduction_passes == passes, name
        assert scores[name].regression_passes == 0, name
