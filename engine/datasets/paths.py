"""Classification of paths: code, tests, test configuration, installed packages.

All lists of names are here. Grading drops agents' changes to everything but code
(``engine.grading.submission.filter``). Test support counts as tests: fixtures, snapshots, ``testing``
packages, test scripts. To protect more files, extend a list. Names match in any case where file systems or
tools ignore it.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from pathlib import PurePosixPath

_PYTEST_CONFIGURATION = (
    "conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg",
    "sitecustomize.py", "usercustomize.py", "*.pth",
)  # fmt: skip
_CONFIGURATION = (
    *_PYTEST_CONFIGURATION,
    # Python
    "pyproject.toml", "noxfile.py", "tox.toml", ".coveragerc", "*.egg-link", "entry_points.txt",
    # JavaScript and TypeScript
    "package.json", "package-lock.json", "npm-shrinkwrap.json", "yarn.lock", "pnpm-*.yaml", ".npmrc",
    ".yarnrc*", ".pnp.*", "jest.*", "jest-*.*", "vitest.*", "vite.config.*", "karma.conf.*", ".mocharc*",
    "mocha.opts", ".nycrc*", ".c8rc*", "ava.config.*", ".taprc", "cypress.config.*", "cypress.json",
    "playwright.config.*", "web-test-runner.config.*", "wdio.conf.*", "testem.*", "setuptests.*",
    "gulpfile.*", "gruntfile.*", "karma.config.*",
    "babel.config.*", ".babelrc*", ".swcrc", "tsconfig*.json", "jsconfig*.json", "bunfig.toml", "deno.json*",
    "nx.json", "turbo.json", "lerna.json",
    # Go, Rust, C and C++
    "go.mod", "go.sum", "go.work", "go.work.sum", "cargo.toml", "cargo.lock", "rust-toolchain*",
    "nextest.toml", "makefile", "gnumakefile", "makefile.am", "makefile.in", "*.mk", "cmakelists.txt",
    "*.cmake", "meson.build", "build.bazel", "workspace", "workspace.bazel", "module.bazel", ".bazelrc",
    "sconstruct", "sconscript",
    # Java, Kotlin, Scala
    "pom.xml", "build.xml", "*.gradle", "*.gradle.kts", "gradle.properties", "gradlew*", "mvnw*",
    "build.sbt", "testng*.xml", "junit-platform.properties",
    # Ruby, PHP, C#, Elixir, Dart, Swift, Lua, Perl
    ".rspec", "rakefile", "gemfile*", ".simplecov", "phpunit*.xml*", "composer.json", "composer.lock",
    "pest.php", "codeception.yml", "directory.build.*", "*.[cfv]*proj", "*.runsettings", "xunit.runner.json",
    "mix.exs",
    "dart_test.yaml", "package.swift", ".busted", ".proverc",
    # Git attributes change checked-out content; other task runners
    ".gitattributes", "taskfile.y*ml", "justfile", ".justfile",
)  # fmt: skip
_CASED_CONFIGURATION = frozenset({"BUILD"})
"""Bazel's build file; a lowercase ``build`` is an ordinary script in many projects."""
_CONFIGURATION_FOLDERS = frozenset({".cargo", ".mvn"})
_INSTALLED_FOLDERS = frozenset(
    {
        "site-packages",
        "dist-packages",
        ".venv",
        "venv",
        ".tox",
        ".nox",
        "node_modules",
        "__pycache__",
        ".gradle",
    }
)
_INSTALLED = ("*.egg-info", "*.dist-info", "*.pyc")
_BUILT = re.compile(
    r"^vendor/|(?:^|/)(?:target/(?:debug|release|classes|test-classes|surefire[^/]*)|build/(?:classes|test-results)"
    r"|gradle/wrapper)/"
)
_TEST_FOLDER = re.compile(
    r"(?:_|__|r2e_)?tests?(?:__)?|_?testing|__(?:mocks|snapshots|fixtures)__|specs?|e2e"
    r"|test[_-]?(?:utils?|data|lib|helpers?|suites?|cases?|fixtures?|support|resources)|[\w.-]+[._-]tests",
    re.IGNORECASE,
)
_SHIPPED_FOLDER = re.compile(
    r"_?testing|test|test[_-]?(?:utils?|lib|helpers?|support)|specs?|e2e", re.IGNORECASE
)
"""Test folders that products may ship: test helpers for their users (``numpy/testing``), specifications."""
_SOURCE = (
    r"\.(?:pyi?|pyx|[cm]?[jt]sx?|vue|svelte|coffee|go|rs|rb|java|kts?|scala|groovy|php|c|cc|cpp|cxx|h|hh|hpp"
    r"|cs|fs|vb|swift|mm?|exs?|erl|dart|lua|pl|r|jl|hs|mli?|zig|nim|sh|bash)"
)
_TEST_FILE = re.compile(
    rf"test_.*{_SOURCE}|.*_tests?{_SOURCE}|.*\.(?:tests?|spec|test-d|cy|e2e){_SOURCE}"
    r"|.*[_-]spec\.(?:rb|lua|coffee|[cm]?[jt]sx?)|tests?\.rs|.*\.(?:snap|bats|feature)|test\.(?:sh|bat|ps1)"
    rf"|run[_-]?tests?(?:{_SOURCE}|\.bat|\.ps1)?"
)
_ROOT_TEST_FILE = re.compile(r"tests?\.[cm]?[jt]s")
"""The only test file of many small packages of npm."""
_TEST_CLASS = re.compile(
    r"(?:Test[A-Z0-9].*|.+(?:Tests?|TestCase|TestSuite))\.(?:java|kts?|scala|groovy|php|cs|fs|vb|swift)"
)
_TEST_SCRIPT = re.compile(r"(?:^|/)(?:bin|scripts?|tools|ci)/(?:doc|run[_-]?)?tests?(?:[_.-][^/]*)?$")


def _matcher(patterns: tuple[str, ...]) -> Callable[[str], re.Match[str] | None]:
    return re.compile("|".join(map(fnmatch.translate, patterns))).match


_IS_PYTEST_CONFIGURATION = _matcher(_PYTEST_CONFIGURATION)
_IS_CONFIGURATION = _matcher(_CONFIGURATION)
_IS_INSTALLED = _matcher(_INSTALLED)


def is_test_path(path: str) -> bool:
    """Return whether a path is a test, test support or configuration of pytest.

    Importers do not count these paths as part of a fix; curation injects no faults into them.
    """
    parts = PurePosixPath(path).parts
    return bool(parts) and (configures_pytest(path) or is_test_code(path))


def is_test_code(path: str) -> bool:
    """Return whether a path is a test or test support, by its name or that of a folder."""
    parts = PurePosixPath(path).parts
    if not parts:
        return False
    name = parts[-1]
    return bool(
        _test_folders(path)
        or _TEST_FILE.fullmatch(name)
        or _TEST_CLASS.fullmatch(name)
        or _ROOT_TEST_FILE.fullmatch(path)
        or _TEST_SCRIPT.search(path)
    )


def innermost_test_folder(path: str) -> str:
    """Return the innermost folder of a path whose whole content counts as tests; empty without one."""
    parts = PurePosixPath(path).parts
    count = max(_test_folders(path), default=0)
    return "/".join(parts[:count])


def may_be_shipped(folder: str) -> bool:
    """Return whether a test folder may contain helpers that the product ships, by its name and place."""
    name = PurePosixPath(folder).name
    return _SHIPPED_FOLDER.fullmatch(name) is not None and len(_test_folders(f"{folder}/x")) == 1


def _test_folders(path: str) -> list[int]:
    """Return the depth of each folder of a path whose whole content counts as tests."""
    parts = PurePosixPath(path).parts
    python = path.endswith((".py", ".pyi"))  # in Python these are specifications, not tests
    return [
        count
        for count, folder in enumerate(parts[:-1], start=1)
        if _TEST_FOLDER.fullmatch(folder) and not (python and folder.lower() in ("spec", "specs"))
    ]


def is_test_folder(name: str) -> bool:
    """Return whether everything below a folder of this name counts as tests."""
    return _TEST_FOLDER.fullmatch(name) is not None


def is_configuration(path: str) -> bool:
    """Return whether a path configures a test runner, a build or dependency resolution."""
    parts = PurePosixPath(path.lower()).parts
    return bool(parts) and (
        _IS_CONFIGURATION(parts[-1]) is not None
        or not _CONFIGURATION_FOLDERS.isdisjoint(parts[:-1])
        or PurePosixPath(path).name in _CASED_CONFIGURATION
    )


def configures_pytest(path: str) -> bool:
    """Return whether a path configures pytest or Python itself."""
    return _IS_PYTEST_CONFIGURATION(PurePosixPath(path.lower()).name) is not None


def is_installed(path: str) -> bool:
    """Return whether a path belongs to an installed package or is build output."""
    parts = PurePosixPath(path).parts
    return (
        not _INSTALLED_FOLDERS.isdisjoint(parts)
        or any(_IS_INSTALLED(part) for part in parts)
        or _BUILT.search(path) is not None
    )
