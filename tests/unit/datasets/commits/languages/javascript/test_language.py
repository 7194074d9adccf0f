"""Files of JavaScript: code, tests, entities and examples."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from engine.datasets.commits.languages.base import EntityChange
from engine.datasets.commits.languages.javascript.language import JavaScript, check_programs, node_version
from engine.errors import HostileInputError, PreflightError

OLD = """'use strict'
const limit = 3
exports.double = function (x) { return x + x }
class Counter extends Base {
  add (n) { this.total += n }
}
const half = (x) => x / 2
module.exports = { half, third (x) { return x / 3 } }
"""
TESTS = """const assert = require('assert'), { f } = require('..')
import * as all from '../all.mjs'
const first = 1
let state
describe('f', function () {
  beforeEach(() => { state = 1 })
  it('adds', function () {
    const { a, b: c = first } = f(1)
    assert.equal(a + c, ((x, [y]) => x + y)(1, [2]))
  })
  it('shares', () => { assert.equal(state, f()) })
  it('loads', (done) => { all.load(done) })
})
"""


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> JavaScript:
    try:
        return JavaScript(tmp_path_factory.mktemp("javascript"))
    except PreflightError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("path", "code", "test"),
    [
        ("lib/app.js", True, False),
        ("index.mjs", True, False),
        ("test/app.js", False, True),
        ("test.js", False, True),
        ("lib/test.js", True, False),
        ("src/__tests__/app.cjs", False, True),
        ("lib/app.spec.js", False, True),
        ("src/utils/parse.test.js", False, True),
        ("src/utils/__tests__/a.js", False, True),
        ("lib/helpers/x.spec.js", False, True),
        ("packages/data/test/x.js", False, True),
        ("test/utils.js", False, True),
        ("test/utils/x.js", False, False),
        ("src/__mocks__/x.js", False, False),
        ("test/support/env.js", False, False),
        ("test/fixtures/app.js", False, False),
        ("test/data.json", False, False),
        ("eslint.config.js", False, False),
        (".prettierrc.cjs", False, False),
        ("jest.config.js", False, False),
        ("dist/app.min.js", False, False),
        ("lib/app.ts", False, False),
    ],
)
def test_paths_are_code_or_tests(language: JavaScript, path: str, code: bool, test: bool) -> None:
    assert (language.is_code(path), language.is_test_file(path)) == (code, test)


def test_missing_programs_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "package.json").write_text('{"scripts": {"test": "mocha"}}')
    missing = {"npm"}
    which = shutil.which
    monkeypatch.setattr(
        shutil, "which", lambda name, **options: None if name in missing else which(name, **options)
    )
    with pytest.raises(PreflightError, match="install n"):
        check_programs(tmp_path)
    missing.add("node")
    node_version.cache_clear()
    try:
        with pytest.raises(PreflightError, match="install nodejs and npm"):
            JavaScript(tmp_path)
    finally:
        node_version.cache_clear()


def test_changed_added_and_removed_entities_are_named(language: JavaScript) -> None:
    new = (
        OLD.replace("x + x", "2 * x")
        .replace("add (n)", "increase (n)")
        .replace("x / 3", "x * 3")
        .replace("limit = 3", "limit = 4")
        + "function extra () {}\n"
    )
    assert language.changed_entities(OLD, new) == EntityChange(
        added=("Counter.increase", "extra"),
        removed=("Counter.add",),
        changed=("<module>", "exports.double", "module.exports.third"),
    )


def test_comments_quotes_and_formatting_are_no_change(language: JavaScript) -> None:
    new = OLD.replace("x + x", "x  +\n x // twice\n").replace("'use strict'", '/* x */ "use strict";')
    assert not language.changed_entities(OLD, new)


@pytest.mark.parametrize(
    "text", ["function (", "const x: number = 1", "[" * 200_000], ids=["broken", "TypeScript", "deep"]
)
def test_other_languages_and_hostile_sources_are_refused(language: JavaScript, text: str) -> None:
    with pytest.raises((SyntaxError, HostileInputError)):
        language.changed_entities("", text)


def test_an_example_has_the_declarations_that_it_needs(language: JavaScript) -> None:
    assert language.example(TESTS, "test/f.js::f adds") == (
        "const assert = require('assert'), { f } = require('..')\nconst first = 1\n\n"
        "const { a, b: c = first } = f(1)\nassert.equal(a + c, ((x, [y]) => x + y)(1, [2]))"
    )
    assert language.example(TESTS, "test/f.js::f loads") == (
        "import * as all from '../all.mjs'\n\nall.load(done)"
    )


def test_the_titles_of_suites_tell_equal_tests_apart(language: JavaScript) -> None:
    tests = """describe('a', () => { it('b works', () => { return 1 }) })
describe('b', () => { it('works', () => { return 2 }) })
"""
    assert language.example(tests, "test/f.js::b works") == "return 2"
    assert language.example(tests, "test/f.js::works") == "return 2"


@pytest.mark.parametrize(
    ("test", "names"),
    [
        ("test/clamp.js::clamp", {"test/clamp.js"}),
        ("lib/clamp.test.js::clamp [a] it!", {"clamp.test.js", "clamp [a] it!"}),
    ],
)
def test_only_titles_of_several_words_reveal_tests(language: JavaScript, test: str, names: set[str]) -> None:
    assert language.test_names(test) == names


@pytest.mark.parametrize("title", ["f shares", "f", "absent"])
def test_tests_that_depend_on_others_are_no_example(language: JavaScript, title: str) -> None:
    assert language.example(TESTS, f"test/f.js::{title}") == ""
