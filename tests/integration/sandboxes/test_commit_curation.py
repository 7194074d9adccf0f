"""Tasks from the commits of a toy repository, in real sandboxes."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from engine.config.curation import CommitCuration
from engine.config.sandbox import SandboxConfig
from engine.datasets import funnel
from engine.datasets.commits import make
from engine.datasets.commits.filters import Candidate
from engine.datasets.commits.languages.python.environments import resolve
from engine.datasets.commits.languages.python.language import Python
from engine.datasets.commits.make import make_commit_tasks
from engine.datasets.commits.repositories import fetch_repository, list_commits, read_head, write_tree
from engine.datasets.commits.trials import Trial, Workshop
from engine.datasets.funnel import NoTasksError
from engine.datasets.importers.formats import r2e_gym
from engine.datasets.store import Dataset, load_dataset
from engine.errors import DatasetError, HostError, PreflightError
from engine.events.curation import CurationFunnel
from engine.patches.sections import is_same_change
from engine.sandbox.local.backend import LocalBackend
from engine.types import Verdict
from tests.builders.dataset_builders import make_grader, toolchain_or_skip
from tests.builders.repository_builders import GitHistory
from webapp.datasets.services.r2e_rows import r2e_row

SANDBOX = SandboxConfig(memory_mb=256)
PROJECT = """[project]
name = "toy"
version = "1.0"
requires-python = ">=3.8"
license = "MIT"
"""
CODE = """def clamp(value, low, high):
    return max(low, value)


def total(values):
    return sum(values)
"""
TESTS = """from toy.numbers import clamp, total


def test_low():
    assert clamp(0, 1, 3) == 1


def test_total():
    assert total([1, 2]) == 3
"""
FIXED_CLAMP = CODE.replace("max(low, value)", "min(high, max(low, value))")
FIXED_TESTS = f"{TESTS}\n\ndef test_high():\n    assert clamp(9, 1, 3) == 3\n"
FIXED_TOTAL = FIXED_CLAMP.replace("sum(values)", "sum(values or ())")
LEFTOVER_TEST = """

def test_none():
    assert total(None) == 0


def test_leftover():
    open("/tmp/left-over", "x")
"""
FEATURE = FIXED_TOTAL + "\n\ndef mean(values):\n    return total(values) / len(values)\n"
FEATURE_TEST = "from toy.numbers import mean\n\n\ndef test_mean():\n    assert mean([1, 3]) == 2\n"


def history(folder: Path) -> dict[str, str]:
    """Make the repository; return its commits by name."""
    repository = GitHistory(folder)
    commits = {}

    def commit(name: str, message: str, files: dict[str, str | None]) -> None:
        commits[name] = repository.commit(message, files)

    commit("first", "Begin.", {
        "pyproject.toml": PROJECT, "toy/__init__.py": "", "toy/numbers.py": CODE,
        "tests/test_numbers.py": TESTS,
    })  # fmt: skip
    commit("fix", "Clamp above the upper bound.", {
        "toy/numbers.py": FIXED_CLAMP, "tests/test_numbers.py": FIXED_TESTS, "NEWS": "a fix\n",
        "toy/unused.py": "def unused():\n    return 1\n",
    })  # fmt: skip
    commit("docs", "Write a word.", {"README": "toy\n", "odd\nname": "x\n"})
    commit("unstable", "Take None.", {
        "toy/numbers.py": FIXED_TOTAL, "tests/test_numbers.py": FIXED_TESTS + LEFTOVER_TEST,
    })  # fmt: skip
    commit("collection", "Add mean.", {"toy/numbers.py": FEATURE, "tests/test_mean.py": FEATURE_TEST})
    commit("same", "Rename a variable.", {
        "toy/numbers.py": FEATURE.replace("(values)", "(numbers)").replace("(values or", "(numbers or"),
        "tests/test_mean.py": FEATURE_TEST + "\n\ndef test_again():\n    assert mean([2]) == 2\n",
    })  # fmt: skip
    commit("broken", "Break all.", {
        "toy/numbers.py": FEATURE.replace("def mean", "def average"),
        "tests/test_mean.py": "import toy.absent\n\n\ndef test_mean():\n    assert toy.absent\n",
    })  # fmt: skip
    return commits


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("commits")
    toolchain_or_skip(folder)
    try:
        resolve((), before=None)
    except (DatasetError, PreflightError) as error:
        pytest.skip(str(error))
    return folder


@pytest.fixture(scope="module")
def commits(home: Path) -> dict[str, str]:
    return history(home / "toy")


Report = tuple[int, int, CurationFunnel | None]


async def run(
    home: Path, backend: Any, reports: list[Report] | None = None, *, seed: int = 0, **changes: Any
) -> Dataset:
    values = {
        "repositories": (str(home / "toy"),), "output": "toy", "stability_runs": 4, "heldout_tasks": 0,
        **changes,
    }  # fmt: skip
    config = CommitCuration.model_validate(values)
    shop = Workshop(config=config, home=home, backend=backend, sandbox=SANDBOX, seed=seed)

    def report(_message: str, done: int, total: int, *, funnel: CurationFunnel | None = None) -> None:
        if reports is not None:
            reports.append((done, total, funnel))

    return await make_commit_tasks(shop, report)


@pytest.fixture(scope="module")
def dataset(home: Path, commits: dict[str, str]) -> Dataset:
    reports: list[Report] = []
    made = asyncio.run(run(home, LocalBackend(home), reports))
    counts = [done for done, _, _ in reports]
    assert counts == sorted(counts)
    _, _, last = reports[-1]
    assert last is not None
    assert last.tasks == 2
    assert last.disk_bytes > 0
    assert last.model_dump()["funnel"] == made.provenance["funnel"]
    return made


def test_every_commit_is_a_task_or_lost_for_its_reason(dataset: Dataset, commits: dict[str, str]) -> None:
    funnel = dataset.provenance["funnel"]
    assert {reason: number for stage in funnel for reason, number in stage["lost"].items()} == {
        "first_commit": 1, "no_code": 1, "collection": 1, "no_difference": 1, "no_tests_run": 1,
    }  # fmt: skip
    assert dataset.provenance["examples"]["collection"][0]["item"] == commits["collection"]
    assert {stage["stage"]: stage["reached"] for stage in funnel} == {
        "commits": 7, "one change": 6, "has code": 5, "small enough": 5, "has tests": 5, "real change": 5,
        "new": 5, "tried": 5, "builds": 5, "tests run": 4, "tests differ": 2, "stable": 2, "stated": 2,
        "wanted": 2,
    }  # fmt: skip
    assert [row.answer.metadata["commit"] for row in dataset.rows] == [commits["unstable"], commits["fix"]]


def test_a_task_has_the_tests_that_its_commit_mends(dataset: Dataset, commits: dict[str, str]) -> None:
    unstable, fix = dataset.rows
    assert fix.answer.fail_to_pass == ("tests/test_numbers.py::test_high",)
    assert set(fix.answer.pass_to_pass) == {
        "tests/test_numbers.py::test_low", "tests/test_numbers.py::test_total"
    }  # fmt: skip
    assert fix.task.base_commit == commits["first"]
    assert "clamp(9, 1, 3) == 3" in fix.task.problem_statement
    assert "min(high" not in fix.task.problem_statement
    assert fix.answer.metadata["files"] == ["toy/numbers.py", "toy/unused.py"]
    assert fix.task.difficulty["num_relevant_files"] == 1
    assert fix.task.metadata["licence"] == "MIT"
    assert list(dataset.provenance["licences"].values()) == ["MIT"]
    assert unstable.answer.fail_to_pass == ("tests/test_numbers.py::test_none",)
    assert list(unstable.answer.metadata["unstable"]) == ["tests/test_numbers.py::test_leftover"]


async def test_rows_fail_untouched_and_pass_with_their_gold_patch(home: Path, dataset: Dataset) -> None:
    grader = make_grader(LocalBackend(home))
    for row in load_dataset(home, "toy").rows:
        assert (await grader.grade(row, "")).verdict is Verdict.FAILED
        assert (await grader.grade(row, row.answer.gold_patch)).verdict is Verdict.PASSED


def test_rows_can_be_read_back_from_the_schema_of_r2e_gym(home: Path, dataset: Dataset) -> None:
    for row in dataset.rows:
        task, answer = json.loads(json.dumps([asdict(row.task), asdict(row.answer)]))
        exported = r2e_row(task, answer, home)
        assert exported["relevant_files"] == ["toy/numbers.py"]
        for diff in json.loads(exported["parsed_commit_content"])["file_diffs"]:
            assert isinstance(diff["old_file_content"], str)
        read = r2e_gym.convert(exported)
        assert is_same_change(read.answer.gold_patch, row.answer.gold_patch)
        assert (read.task.instance_id, read.task.base_commit) == (row.task.instance_id, row.task.base_commit)
        assert read.task.problem_statement == row.task.problem_statement.strip()
        assert read.answer.test_files == {f"r2e_tests/{p}": t for p, t in row.answer.test_files.items()}
        assert "+def test_high" in read.answer.test_patch or row is dataset.rows[0]
        for name in ("fail_to_pass", "pass_to_pass"):
            tests = [test.partition("::")[2] for test in getattr(row.answer, name)]
            assert sorted(getattr(read.answer, name)) == sorted(tests)


class NoBackend:
    """A backend that must not be needed."""

    def open(self, *_: object) -> None:
        raise AssertionError("a commit was tried twice")


async def test_a_second_curation_tries_no_commit_again(home: Path, dataset: Dataset) -> None:
    again = await run(home, NoBackend(), output="again")
    assert [row.task for row in again.rows] == [row.task for row in dataset.rows]


async def test_tasks_of_an_excluded_dataset_are_not_made_again(home: Path, dataset: Dataset) -> None:
    with pytest.raises(NoTasksError, match="contaminated 2") as raised:
        await run(home, NoBackend(), output="other", exclude_datasets=["toy"])
    example = raised.value.record["examples"]["contaminated"][0]
    assert example["detail"] == f"the benchmark has {dataset.rows[0].task.instance_id}"


async def test_the_newest_tasks_are_held_out(home: Path, dataset: Dataset, commits: dict[str, str]) -> None:
    split = await run(home, NoBackend(), output="split", train_tasks=1, heldout_tasks=1)
    assert [(row.split, row.answer.metadata["commit"]) for row in split.rows] == [
        ("heldout", commits["unstable"]), ("train", commits["fix"])
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "problem"),
    [("folder", "not a git repository"), ("empty", "has no commits"), ("shallow", "shallow clone")],
)
async def test_folders_without_history_are_named(
    home: Path, commits: dict[str, str], kind: str, problem: str
) -> None:
    folder = home / f"{kind}-{random.random()}"
    if kind == "empty":
        GitHistory(folder)
    elif kind == "shallow":
        GitHistory(home / "elsewhere").git("clone", "-q", "--depth=1", f"file://{home / 'toy'}", str(folder))
    else:
        folder.mkdir()
    with pytest.raises(DatasetError, match=problem):
        await run(home, NoBackend(), repositories=[str(folder)])


async def test_repositories_with_other_licences_are_not_used(home: Path, commits: dict[str, str]) -> None:
    with pytest.raises(DatasetError, match="its licence is 'MIT', not one of BSD-3-Clause, ISC"):
        await run(home, NoBackend(), licences=["BSD-3-Clause", "ISC"])


def test_a_named_language_needs_no_files_of_the_newest_commit(home: Path, tmp_path: Path) -> None:
    repository = GitHistory(tmp_path / "emptied")
    repository.commit("Begin.", {"a.py": "x = 1\n"})
    repository.git("rm", "-q", "a.py")
    repository.git("commit", "-q", "-m", "Empty.")
    cloned = fetch_repository(str(repository.folder), home)
    assert read_head(cloned, "python", home) == (cloned, Python(home))
    with pytest.raises(DatasetError, match="it is empty"):
        read_head(cloned, "auto", home)


def test_submodules_and_links_of_a_commit_are_not_written(home: Path, tmp_path: Path) -> None:
    repository = GitHistory(tmp_path / "hostile")
    repository.commit("Begin.", {"a.py": "x = 1\n"})
    (repository.folder / "link.py").symlink_to("/etc/passwd")
    repository.git("add", "link.py")
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},sub")
    repository.git("commit", "-q", "-m", "Links.")
    head = repository.git("rev-parse", "HEAD")
    cloned = fetch_repository(str(repository.folder), home)
    newest, _ = list_commits(cloned, Python(home), 10, home)
    assert {file.path for file in newest.files} == {"link.py", "sub"}
    assert newest.contents is None
    out = tmp_path / "out"
    out.mkdir()
    written = write_tree(cloned, head, out, home)
    assert [path.name for path in written.rglob("*")] == ["a.py"]


@pytest.mark.parametrize("where", ["link", "commondir", "alternates"])
async def test_folders_whose_repository_is_elsewhere_are_refused(
    home: Path, commits: dict[str, str], tmp_path: Path, where: str
) -> None:
    folder = tmp_path / "folder"
    if where == "link":
        folder.mkdir()
        (folder / ".git").symlink_to(home / "toy" / ".git")
    else:
        git = GitHistory(folder).folder / ".git"
        (git / ("commondir" if where == "commondir" else "objects/info/alternates")).write_text(str(home))
    with pytest.raises(DatasetError, match="elsewhere"):
        await run(home, NoBackend(), repositories=[str(folder)])


async def test_one_odd_commit_costs_itself(
    home: Path, commits: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    history(tmp_path / "toy")

    async def fail(_shop: Workshop, _repository: object, candidate: Candidate) -> Trial:
        if candidate.commit.subject == "Add mean.":
            raise ValueError("odd")
        reason = "sandbox" if candidate.commit.subject == "Take None." else "no_difference"
        return Trial(reason=reason)

    monkeypatch.setattr(make, "try_candidate", fail)
    with pytest.raises(NoTasksError, match="error 1") as raised:
        await run(home, NoBackend(), repositories=[str(tmp_path / "toy")])
    assert "odd" in raised.value.record["examples"]["error"][0]["detail"]
    kept = next((home / "commits").glob(f"{fetch_repository(str(tmp_path / 'toy'), home).folder.stem}/*"))
    reasons = [json.loads(line)["result"]["reason"] for line in kept.read_text().splitlines() if line]
    assert sorted(reasons) == ["no_difference", "no_difference", "no_difference"]


async def test_a_cancelled_curation_goes_on_with_the_numbers_it_had(
    home: Path, commits: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancel it twice: each attempt reports no less, and the last one ends as an unbroken one."""
    history(tmp_path / "toy")
    tried: list[str] = []

    async def fail(_shop: Workshop, _repository: object, candidate: Candidate) -> Trial:
        if len(tried) == last:
            attempt.cancel()
        await asyncio.sleep(0.01)
        tried.append(candidate.commit.sha)
        return Trial(reason="no_difference")

    monkeypatch.setattr(make, "try_candidate", fail)
    monkeypatch.setattr(funnel, "_REPORT_EVERY_S", 0.0)
    reports: list[Report] = []
    settings: dict[str, Any] = {"repositories": [str(tmp_path / "toy")], "workers": 1}
    for last in (1, 3, None):
        attempt = asyncio.create_task(run(home, NoBackend(), reports, **settings))
        with pytest.raises(NoTasksError if last is None else asyncio.CancelledError):
            await attempt
    reported = [(done, total) for done, total, state in reports if state is not None]
    assert reported == sorted(reported)
    assert {total for _, total in reported} == {5}
    assert len(tried) == len(set(tried)) == 5
    unbroken: list[Report] = []
    with pytest.raises(NoTasksError):
        await run(home, NoBackend(), unbroken, seed=1, **settings)
    state, expected = reports[-1][2], unbroken[-1][2]
    assert state is not None
    assert expected is not None
    assert state.model_copy(update={"trial_seconds": 0}) == expected.model_copy(update={"trial_seconds": 0})


@pytest.mark.parametrize("error", [OSError("no space left"), PreflightError("no index")])
async def test_failures_in_a_row_end_the_curation_and_are_not_kept(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    history(tmp_path / "toy")

    async def fail(*_: object) -> Trial:
        raise error

    monkeypatch.setattr(make, "try_candidate", fail)
    monkeypatch.setattr(make, "_FAILURES_IN_A_ROW", 3)
    with pytest.raises(HostError, match=f"3 commits in a row failed for the same cause: {error}"):
        await run(home, NoBackend(), repositories=[str(tmp_path / "toy")])
    stem = fetch_repository(str(tmp_path / "toy"), home).folder.stem
    assert not list((home / "commits" / stem).iterdir())


def test_a_large_file_in_a_commit_does_not_end_the_history(home: Path, tmp_path: Path) -> None:
    repository = GitHistory(tmp_path / "large")
    repository.commit("Begin.", {"a.py": "x = 1\n"})
    repository.commit(
        "Grow.", {"a.py": "x = 2\n", "tests/data.json": "1" * (3 << 20), "\udcff.py": "y = 1\n"}
    )
    repository.commit("Go on.", {"a.py": "x = 3\n"})
    newest, grown, first = list_commits(
        fetch_repository(str(repository.folder), home), Python(home), 10, home
    )
    assert newest.contents == {"a.py": ("x = 2\n", "x = 3\n")}
    assert (grown.patch, grown.contents, first.parents) == (None, None, ())
