"""What ``package.json`` declares, hostile ones included."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.datasets.commits.languages.javascript.language import declares_javascript
from engine.datasets.commits.languages.javascript.package_files import PackageFile, read_package


def package(tmp_path: Path, **values: Any) -> PackageFile:
    """Write ``package.json`` and read it."""
    (tmp_path / "package.json").write_text(json.dumps(values))
    read = read_package(tmp_path)
    assert read is not None
    return read


def test_requirements_come_from_the_registry_and_are_named_in_files(tmp_path: Path) -> None:
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "a.js").write_text("const x = require('supertest/lib'), y = require(\"@scope/b\")\n")
    (tmp_path / ".mocharc.yml").write_text("require: hook\n")
    (tmp_path / "eslint.config.js").write_text("require('eslint')\n")
    read = package(
        tmp_path,
        name="toy",
        dependencies={"ms": "^2.0.0", "@scope/a": ">=1 <3 || 5.x", "any": "", "toy": "1", "fsevents": "*"},
        optionalDependencies={"fsevents": "^2.0.0"},
        devDependencies={
            "mocha": "~10.0.0", "eslint": "1", "supertest": "1", "@scope/b": "2", "hook": "3", "a": "git+https://x/y.git",
            "b": "file:../b", "c": "https://x/c.tgz", "d": "npm:other@1", "../e": "1", "f": "user/repo",
            "g": 1, "--registry=http://x": "1",
        },
        scripts={"test": "mocha"},
    )  # fmt: skip
    assert read.runtime == ("ms@^2.0.0", "@scope/a@>=1 <3 || 5.x", "any@*")
    assert read.optional == ("fsevents@^2.0.0",)
    assert read.tests == ("mocha@~10.0.0", "supertest@1", "@scope/b@2", "hook@3")
    assert read.others == ("eslint@1",)


@pytest.mark.parametrize(
    ("scripts", "runner", "options"),
    [
        (
            {"test": "mocha --require test/env --reporter spec --bail test/"},
            "mocha",
            ("--require", "test/env"),
        ),
        ({"test": "xo && nyc --reporter lcov _mocha -t=500 --ui bdd"}, "mocha", ("-t", "500", "--ui", "bdd")),
        ({"test": "cross-env A=1 node_modules/.bin/ava"}, "ava", ()),
        ({"test": "npm run lint && npm run unit -- --x", "lint": "eslint .", "unit": "jest"}, "jest", ()),
        ({"test": "node --import ./hook.mjs --test"}, "node", ("--import", "./hook.mjs")),
        ({"test": "mocha --require ../../evil --require /etc/x -r --bail"}, "mocha", ()),
        ({"test": "npm run test"}, "", ()),
        ({"test": "make test"}, "", ()),
        ({"test": "mocha 'unclosed"}, "", ()),
        ({}, "", ()),
    ],
)
def test_the_test_script_names_the_runner(
    tmp_path: Path, scripts: dict[str, str], runner: str, options: tuple[str, ...]
) -> None:
    read = package(tmp_path, scripts=scripts)
    assert (read.runner, read.options) == (runner, options)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", "[" * 100_000, '{"a": ' * 100_000, " " * (2 << 20), "\udcff"],
    ids=["empty", "open", "list", "number", "deep list", "deep object", "large", "no UTF-8"],
)
def test_unreadable_packages_are_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "package.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert read_package(tmp_path) is None


@pytest.mark.parametrize("value", [None, 1, "x", ["x"], {"x": {"y": 1}}])
def test_values_of_other_types_are_left_out(tmp_path: Path, value: object) -> None:
    read = package(
        tmp_path, name=value, scripts=value, dependencies=value, devDependencies=value, peerDependencies=value
    )
    assert (read.runtime, read.tests, read.runner) == ((), (), "")


def test_scripts_that_call_each_other_end(tmp_path: Path) -> None:
    calls = " && ".join(f"npm run s{number}" for number in range(100))
    scripts = {f"s{number}": calls for number in range(100)}
    assert package(tmp_path, scripts={"test": calls, **scripts}).runner == ""


def test_packages_with_tests_are_javascript(tmp_path: Path) -> None:
    package(tmp_path, scripts={"test": "mocha"})
    assert declares_javascript(tmp_path)
    (tmp_path / "setup.py").write_text("")
    assert not declares_javascript(tmp_path)
    (tmp_path / "setup.py").unlink()
    package(tmp_path, scripts={})
    assert not declares_javascript(tmp_path)
