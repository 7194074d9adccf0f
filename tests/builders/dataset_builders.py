"""Builders for curation and grading: a small package with tests, its image, and tasks on it."""

from __future__ import annotations

import asyncio
import functools
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from engine.config.rollout import GradingConfig
from engine.config.sandbox import SandboxConfig
from engine.datasets.curation.baseline import image_environment
from engine.datasets.curation.toolchain import ensure_toolchain
from engine.datasets.sources.fetch import Source, fetch_source
from engine.datasets.store import with_content_id
from engine.errors import PreflightError
from engine.grading.counterfactual.base import Reference, ReferenceStore
from engine.grading.grader import Grader
from engine.patches.diff import diff_texts
from engine.sandbox.base import SandboxBackend
from engine.sandbox.local.backend import LocalBackend
from engine.sandbox.local.images import build_image
from engine.sandbox.preflight import preflight
from engine.testing.testrun import driver_command
from engine.testing.toolchain import MOUNT
from engine.types import Task, TaskAnswer, TaskRow
from tests.services import HOME, elsewhere, made_once

NUMBERS = '''"""Small functions on numbers."""


def clamp(value, low, high):
    """Value within bounds."""
    if value < low:
        return low
    if value > high:
        return high
    return value


def mean(values):
    """Arithmetic mean."""
    total = sum(values)
    count = len(values)
    return total / count


def positives(values):
    """Those above zero."""
    found = []
    for value in values:
        if value > 0:
            found.append(value)
    return found
'''
WORDS = '''"""Small functions on text."""


def shout(text, mark="!"):
    """Upper case, with a mark."""
    loud = text.upper()
    return loud + mark


def initials(text):
    """First letters."""
    letters = [word[0] for word in text.split()]
    return "".join(letters)


def count_vowels(text):
    """How many vowels."""
    count = 0
    for letter in text:
        if letter in "aeiou":
            count += 1
    return count
'''
TEST_NUMBERS = """import pytest
from toy.numbers import clamp, mean, positives


@pytest.mark.parametrize("value, expected", [(-1, 0), (5, 5), (11, 10), (0, 0)])
def test_clamp(value, expected):
    assert clamp(value, 0, 10) == expected


class TestMean:
    def test_mean(self):
        assert mean([1, 2, 6]) == 3


def test_positives():
    assert positives([-1, 0, 2]) == [2]
"""
TEST_WORDS = """import random
import time
from toy.words import count_vowels, initials, shout


def test_shout():
    assert shout("hi") == "HI!"


def test_initials():
    assert initials("red ant") == "ra"


def test_count_vowels():
    assert count_vowels("banana") == 3


def test_always_broken():
    assert False


def test_slow():
    time.sleep(0.6)
    assert shout("a") == "A!"
"""
BROKEN = ("    if value > high:\n", "    if value < high:\n")
WORKDIR = "/testbed"
NO_PLUGINS = "-p no:hypothesispytest -p no:benchmark"
"""Arguments of pytest that disable plugins of this machine's Python, which local sandboxes share: importing
Hypothesis alone takes longer than the tests of a toy task."""


def write_toy(folder: Path) -> Path:
    """Write a source tree with package ``toy`` and its tests."""
    files = {
        "toy/__init__.py": "",
        "toy/numbers.py": NUMBERS,
        "toy/words.py": WORDS,
        "tests/test_numbers.py": TEST_NUMBERS,
        "tests/test_words.py": TEST_WORDS,
        "pyproject.toml": '[project]\nname = "toy"\n',
        "pytest.ini": "[pytest]\naddopts = --no-such-option\n",
    }
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)
    return folder


def toolchain_or_skip(home: Path) -> Path:
    """Return the test toolchain; skip the test without a package index or local sandboxes."""
    if problem := _sandbox_problem():
        pytest.skip(f"no local sandboxes here: {problem}")
    try:
        toolchain = ensure_toolchain(made_once("toolchain", _make_toolchain))
    except PreflightError as error:
        pytest.skip(str(error))
    target = home / "toolchain" / toolchain.name
    if not target.exists():
        shutil.copytree(toolchain, target)
    return target


@functools.cache
def _sandbox_problem() -> str:
    problems = elsewhere(asyncio.run, preflight(LocalBackend(HOME)))
    return str(problems[0]) if problems else ""


def _make_toolchain(home: Path) -> None:
    ensure_toolchain(home)


def broken_task(home: Path, tree: Path) -> TaskRow:
    """Create a task whose image has a broken ``clamp``, which its gold patch fixes."""
    source: Source = fetch_source(str(tree), home)
    broken = NUMBERS.replace(*BROKEN)
    staged = write_toy(home / "staged")
    (staged / "toy/numbers.py").write_text(broken)
    binds = {MOUNT: str(ensure_toolchain(home))}
    build_image(home, "toy-broken", staged, env=image_environment(source), binds=binds)
    failing = tuple(f"tests/test_numbers.py::test_clamp[{case}]" for case in ("5-5", "11-10"))
    passing = ("tests/test_numbers.py::TestMean::test_mean", "tests/test_numbers.py::test_positives")
    task = Task(
        id="", instance_id="toy__numbers-8", repo="toy", base_commit="1", problem_statement="clamp is broken",
        image="local:toy-broken",
    )  # fmt: skip
    answer = TaskAnswer(
        gold_patch=diff_texts("toy/numbers.py", broken, NUMBERS),
        fail_to_pass=failing,
        pass_to_pass=passing,
        test_command=driver_command(["tests/test_numbers.py"], source.roots),
        deterministic=True,
    )
    return with_content_id(TaskRow(task=task, answer=answer, split="train"))


def own_pytest_task(home: Path, tree: Path) -> TaskRow:
    """Create the same task in an image with its own pytest, and with hidden tests."""
    row = broken_task(home, tree)
    staged = home / "staged"
    (staged / "pytest.ini").unlink()
    (staged / "hidden").mkdir()
    (staged / "hidden/test_hidden.py").write_text(TEST_NUMBERS)
    binds = {MOUNT: str(ensure_toolchain(home))}
    env = {**image_environment(fetch_source(str(tree), home)), "PYTEST_ADDOPTS": NO_PLUGINS}
    build_image(home, "toy-own", staged, env=env, binds=binds)
    answer = replace(row.answer, test_command="python3 -m pytest hidden", hidden_paths=("hidden",))
    return replace(row, task=replace(row.task, image="local:toy-own"), answer=answer)


def without_reuse(row: TaskRow) -> TaskRow:
    """Return the task with every verdict from a real test run."""
    return replace(row, answer=replace(row.answer, deterministic=False))


def patched(content: str, path: str = "toy/numbers.py") -> str:
    """Return a patch that replaces the content of the broken module."""
    return diff_texts(path, NUMBERS.replace(*BROKEN), content)


def new_file(path: str, content: str) -> str:
    """Return a patch that adds a file."""
    count = content.count("\n")
    body = "".join(f"+{line}\n" for line in content.rstrip("\n").split("\n"))
    head = f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n"
    return f"{head}@@ -0,0 +1,{count} @@\n{body}"


class MemoryStore:
    """A ``ReferenceStore`` in memory."""

    def __init__(self, *references: tuple[TaskRow, Reference]) -> None:
        self.kept = {row.task.id: reference for row, reference in references}
        self.caught: dict[str, frozenset[str]] = {}

    async def load(self, row: TaskRow) -> Reference | None:
        return self.kept.get(row.task.id)

    async def save(self, row: TaskRow, reference: Reference) -> None:
        self.kept[row.task.id] = reference

    async def mark(self, row: TaskRow, run_id: str) -> None:
        self.caught[row.task.id] = self.caught.get(row.task.id, frozenset()) | {run_id}

    async def marks(self) -> Mapping[str, frozenset[str]]:
        return self.caught


def make_grader(
    backend: SandboxBackend,
    *,
    timeout_s: float = 120.0,
    reuse: bool = True,
    counterfactual: Literal["off", "sample", "always"] = "off",
    store: ReferenceStore | None = None,
) -> Grader:
    """Return a grader with small limits and, by default, without audits."""
    config = GradingConfig(
        timeout_s=timeout_s, reuse_verdicts=reuse, max_parallel=2, counterfactual=counterfactual
    )
    sandbox = SandboxConfig(memory_mb=256)
    return Grader(backend=backend, config=config, sandbox=sandbox, run_id="test", store=store)
