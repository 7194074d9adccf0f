"""Tasks from the commits of a toy package of npm, in real sandboxes with Node.js' own test runner."""

from __future__ import annotations

import asyncio
import datetime
import json
from pathlib import Path

import pytest

from engine.config.curation import CommitCuration
from engine.config.sandbox import SandboxConfig
from engine.datasets.commits.languages.javascript.language import (
    JavaScript,
    check_programs,
    node_version,
)
from engine.datasets.commits.make import make_commit_tasks
from engine.datasets.commits.trials import Workshop
from engine.datasets.curation.baseline import sandbox_spec
from engine.datasets.store import Dataset, load_dataset
from engine.errors import PreflightError
from engine.sandbox.local.backend import LocalBackend
from engine.sandbox.local.images import build_image
from engine.types import GradeRule, TestOutcome, Verdict
from tests.builders.dataset_builders import make_grader
from tests.builders.repository_builders import GitHistory

PACKAGE = json.dumps({
    "name": "toy", "main": "lib/numbers.js",
    "scripts": {"test": "c8 node --test test/"},
    "devDependencies": {"c8": "^9.0.0", "evil": "git+ssh://git@example.org/evil.git"},
})  # fmt: skip
CODE = """'use strict'

exports.clamp = function (value, low, high) {
  return Math.max(low, value)
}

exports.total = (values) => values.reduce((sum, value) => sum + value, 0)
"""
TESTS = """'use strict'

const assert = require('node:assert')
const { describe, it } = require('node:test')
const { clamp, total } = require('..')

describe('clamp', () => {
  it('keeps the lower bound', () => {
    assert.strictEqual(clamp(0, 1, 3), 1)
  })
})

it('adds all values', () => {
  assert.strictEqual(total([1, 2]), 3)
})
"""
FIXED = CODE.replace("Math.max(low, value)", "Math.min(high, Math.max(low, value))")
FIXED_TESTS = TESTS.replace("\n})\n\nit(", """
  it('keeps the upper "bound" <too>', () => {
    const value = clamp(9, 1, 3)
    assert.strictEqual(value, 3)
  })
})

it(""")  # fmt: skip
UNSTABLE_TESTS = (
    FIXED_TESTS
    + """
it('takes nothing', () => {
  assert.strictEqual(total(), 0)
})

it('leaves nothing', () => {
  require('node:fs').writeFileSync('/tmp/left-over', '', { flag: 'wx' })
})
"""
)


def history(folder: Path) -> dict[str, str]:
    """Make the repository; return its commits by name."""
    repository = GitHistory(folder)
    return {
        "first": repository.commit("Begin.", {
            "package.json": PACKAGE, "lib/numbers.js": CODE, "test/numbers.test.js": TESTS,
        }),
        "fix": repository.commit("Clamp above the upper bound.", {
            "lib/numbers.js": FIXED, "test/numbers.test.js": FIXED_TESTS,
        }),
        "comment": repository.commit("Explain.", {
            "lib/numbers.js": FIXED.replace("exports.total", "// Adds.\nexports.total"),
            "test/numbers.test.js": FIXED_TESTS + "\n",
        }),
        "unstable": repository.commit("Take nothing.", {
            "lib/numbers.js": FIXED.replace("(values)", "(values = [])"),
            "test/numbers.test.js": UNSTABLE_TESTS,
        }),
    }  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        node_version()
    except PreflightError as error:
        pytest.skip(str(error))
    return tmp_path_factory.mktemp("javascript")


@pytest.fixture(scope="module")
def commits(home: Path) -> dict[str, str]:
    return history(home / "toy")


@pytest.fixture(scope="module")
def dataset(home: Path, commits: dict[str, str]) -> Dataset:
    config = CommitCuration(repositories=(str(home / "toy"),), output="toy", stability_runs=3)
    shop = Workshop(
        config=config,
        home=home,
        backend=LocalBackend(home),
        sandbox=SandboxConfig(memory_mb=512),
        seed=0,
    )
    return asyncio.run(make_commit_tasks(shop, lambda *_, **__: None))


def test_packages_of_npm_go_through_the_same_funnel(dataset: Dataset, commits: dict[str, str]) -> None:
    funnel = dataset.provenance["funnel"]
    assert {reason: number for stage in funnel for reason, number in stage["lost"].items()} == {
        "first_commit": 1, "no_real_change": 1
    }  # fmt: skip
    rows = {row.answer.metadata["commit"]: row for row in dataset.rows}
    fix, unstable = rows[commits["fix"]], rows[commits["unstable"]]
    assert fix.task.metadata["language"] == "javascript"
    assert fix.answer.grade_rule is GradeRule.JUNIT
    assert fix.answer.fail_to_pass == ('test/numbers.test.js::clamp keeps the upper "bound" <too>',)
    assert set(fix.answer.pass_to_pass) == {
        "test/numbers.test.js::clamp keeps the lower bound", "test/numbers.test.js::adds all values"
    }  # fmt: skip
    assert fix.answer.metadata["entities"]["lib/numbers.js"]["changed"] == ("exports.clamp",)
    assert unstable.answer.fail_to_pass == ("test/numbers.test.js::takes nothing",)
    assert list(unstable.answer.metadata["unstable"]) == ["test/numbers.test.js::leaves nothing"]


def test_statements_show_the_test_and_not_its_title(dataset: Dataset, commits: dict[str, str]) -> None:
    (fix,) = (row for row in dataset.rows if row.answer.metadata["commit"] == commits["fix"])
    statement = fix.task.problem_statement
    assert "```javascript\n" in statement
    assert "const { clamp, total } = require('..')\n\nconst value = clamp(9, 1, 3)\n" in statement
    assert "9 !== 3" in statement
    assert "Math.min" not in statement
    assert "keeps the upper" not in statement


async def test_rows_fail_untouched_and_pass_with_their_gold_patch(home: Path, dataset: Dataset) -> None:
    grader = make_grader(LocalBackend(home))
    for row in load_dataset(home, "toy").rows:
        assert (await grader.grade(row, "")).verdict is Verdict.FAILED
        assert (await grader.grade(row, row.answer.gold_patch)).verdict is Verdict.PASSED


MOCHA_TESTS = """const assert = require('assert')

describe('numbers', function () {
  let seen = ''
  it('come first', () => { seen += 'a' })
  it('come second', () => { seen += 'b' })
  it('come third', () => { seen += 'c' })
  it.skip('come never', () => {})
  after(() => { console.log(`order ${seen}`) })
})

it('fails', () => { assert.strictEqual(1, 2) })
"""


async def test_packages_come_from_the_registry(home: Path, tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text(
        json.dumps({"scripts": {"test": "mocha --bail test"}, "devDependencies": {"mocha": "^10.8.0"}})
    )
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "a.js").write_text(MOCHA_TESTS)
    try:
        check_programs(tmp_path)
        project = JavaScript(home).open_project(tmp_path)
        environment = project.environment(datetime.datetime.now(datetime.UTC), ())
    except PreflightError as error:
        pytest.skip(str(error))
    assert [pin for pin in environment.pins if pin.startswith("mocha@10.")]
    build_image(home, "mocha", tmp_path, env=environment.variables, binds=environment.mounts)
    spec = sandbox_spec(
        "local:mocha", SandboxConfig(memory_mb=512), run_id="test", name="mocha", lifetime_s=120
    )
    async with LocalBackend(home).open(spec) as sandbox:
        assert b"3 passing" in (await sandbox.exec("/node_modules/.bin/mocha test", timeout_s=60)).stdout
        first = await environment.run(sandbox, ["test/a.js"], timeout_s=60)
        orders = {
            line
            for count in range(4)
            for run in [await environment.run(sandbox, [*first.ids, *first.ids[:count]], timeout_s=60)]
            for line in run.log.splitlines()
            if line.startswith("order ")
        }
    assert {test: first.case(test).outcome for test in first.ids} == {
        "test/a.js::numbers come first": TestOutcome.PASSED,
        "test/a.js::numbers come second": TestOutcome.PASSED,
        "test/a.js::numbers come third": TestOutcome.PASSED,
        "test/a.js::numbers come never": TestOutcome.SKIPPED,
        "test/a.js::fails": TestOutcome.FAILED,
    }
    assert "test/a.js:12: AssertionError [ERR_ASSERTION]: Expected values to be strictly equal: 1 !== 2" in (
        first.log
    )
    assert "order abc" in first.log
    assert len(orders) > 1
