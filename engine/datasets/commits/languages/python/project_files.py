"""Parser of the environment that a Python project declares in its files; none of its code is executed.

Reads ``pyproject.toml`` (PEP 621, PEP 735, Poetry, pytest's options), ``setup.cfg``, the literals of
``setup.py``, requirements files and ``tox.ini``. Declarations that are not understood are left out.
"""

from __future__ import annotations

import ast
import configparser
import re
import sys
import tomllib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from engine.errors import HostileInputError
from engine.isolation import SOURCE_LIMITS, call_isolated
from engine.reading import read_bounded

_MAX_BYTES = 1 << 20
_TEST_GROUPS = ("test", "tests", "testing", "dev", "develop", "development", "all")
"""Names of extras and groups that tests need, the closest first."""
_FILES = (
    "requirements.txt", "test-requirements.txt", "test_requirements.txt", "requirements-test.txt",
    "requirements_test.txt", "requirements-tests.txt", "requirements-dev.txt", "requirements_dev.txt",
    "dev-requirements.txt", "dev_requirements.txt", "requirements/test.txt", "requirements/tests.txt",
    "requirements/testing.txt", "requirements/dev.txt", "tests/requirements.txt",
    "requirements/requirements-tests.txt",
)  # fmt: skip
_TOOLS = frozenset({
    "pytest", "tox", "nox", "coverage", "pytest-cov", "pytest-xdist", "codecov", "coveralls", "mypy",
    "flake8", "black", "ruff", "isort", "pylint", "pre-commit", "bandit", "twine", "wheel", "build", "sphinx",
    "furo", "myst-parser", "mkdocs", "pip", "pip-tools", "bumpversion", "bump2version", "invoke", "towncrier",
    "check-manifest", "cogapp", "pyright", "pytest-mypy-plugins", "pytest-codspeed", "sphinx-rtd-theme",
})  # fmt: skip
"""Packages that neither code nor tests import, and those that the test tools replace."""
_PYTEST_OPTIONS = frozenset({"asyncio_mode", "python_files", "python_classes", "python_functions"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectFiles:
    """Declared environment of a project."""

    name: str = ""
    version: str = ""
    requires_python: str = ""
    runtime: tuple[str, ...] = ()
    """Requirements of its code."""
    tests: tuple[str, ...] = ()
    """Further requirements of its tests."""
    entry_points: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    version_file: str = ""
    """File with the version that its build writes; empty if there is none."""
    pytest_options: Mapping[str, str] = field(default_factory=dict)

    def accepts(self, python: str) -> bool:
        """Return whether the project declares that it runs with a version of Python, e.g. ``3.11``."""
        try:
            return SpecifierSet(self.requires_python).contains(python)
        except InvalidSpecifier:
            return True


def read_project(tree: Path) -> ProjectFiles:
    """Return the declared environment of the project at the root of a tree, read in a process of its own.

    Files that exceed its limits count as none.
    """
    try:
        return call_isolated(partial(_read_project, tree), SOURCE_LIMITS)
    except HostileInputError:
        return ProjectFiles()


def _read_project(tree: Path) -> ProjectFiles:
    toml = _toml(tree / "pyproject.toml")
    setup_cfg, tox = _ini(tree / "setup.cfg"), _ini(tree / "tox.ini")
    setup = _setup_arguments(tree / "setup.py")
    project, tool = _table(toml, "project"), _table(toml, "tool")
    poetry = _table(tool, "poetry")
    extras = {
        **_lists(setup.get("extras_require")),
        **{name: text.splitlines() for name, text in setup_cfg.get("options.extras_require", {}).items()},
        **_lists(project.get("optional-dependencies")),
    }
    groups = {**_lists(toml.get("dependency-groups")), **_poetry_groups(poetry)}
    options = setup_cfg.get("options", {})
    runtime = [
        *_texts(project.get("dependencies")), *_texts(setup.get("install_requires")),
        *options.get("install_requires", "").splitlines(), *_poetry(poetry.get("dependencies")),
        *_file_lines(tree / "requirements.txt"),
    ]  # fmt: skip
    tests = [
        *(text for name in _TEST_GROUPS for text in (*extras.get(name, ()), *groups.get(name, ()))),
        *_texts(setup.get("tests_require")), *options.get("tests_require", "").splitlines(),
        *(line for name in _FILES[1:] for line in _file_lines(tree / name)),
        *(line.partition(":")[2] if re.match(r"[\w,.{}-]+:\s", line) else line
          for line in tox.get("testenv", {}).get("deps", "").splitlines()),
    ]  # fmt: skip
    scripts, metadata = _table(project, "scripts"), setup_cfg.get("metadata", {})
    name = _first_text(*(table.get("name") for table in (project, poetry, setup, metadata)))[:100]
    return ProjectFiles(
        name=name,
        version=_version(*(table.get("version") for table in (project, poetry, setup, metadata))),
        requires_python=_first_text(
            project.get("requires-python"), setup.get("python_requires"), options.get("python_requires")
        ),
        runtime=tuple(_usable(runtime, name, extras)),
        tests=tuple(_usable(tests, name, extras)),
        entry_points={
            **({"console_scripts": _strings(scripts)} if scripts else {}),
            **{group: _strings(points) for group, points in _table(project, "entry-points").items()},
        },
        version_file=_version_file(tool),
        pytest_options=_pytest_options(tool, setup_cfg, tox, _ini(tree / "pytest.ini")),
    )  # fmt: skip


def _usable(lines: Iterable[str], own: str, extras: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield the requirements of packages of the index, each name once.

    Tools and the project itself are left out; its own extras are replaced by their requirements.
    """
    known: set[str] = set()
    expanded: set[str] = set()
    pending = deque(lines)
    while pending:
        text = re.split(r"\s#|(?:^|\s)--", pending.popleft(), maxsplit=1)[0].strip().strip(",;")
        try:
            requirement = Requirement(text)
            line = str(requirement)
        except ValueError:  # InvalidRequirement, and markers that cannot be printed
            continue
        name = canonicalize_name(requirement.name)
        if name == canonicalize_name(own):
            new = requirement.extras - expanded
            expanded |= new
            pending += [inner for extra in sorted(new) for inner in extras.get(extra, ())]
            continue
        if requirement.url or name in known or name in _TOOLS or not line.isascii():
            continue
        if requirement.marker is not None and "extra" in str(requirement.marker):
            continue
        known.add(name)
        yield line


def _read(path: Path) -> str:
    try:
        return read_bounded(path, _MAX_BYTES).decode()
    except (OSError, ValueError):
        return ""


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_read(path))
    except (ValueError, RecursionError):
        return {}


def _ini(path: Path) -> dict[str, dict[str, str]]:
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(_read(path))
    except configparser.Error:
        return {}
    return {name: dict(parser[name]) for name in parser.sections()}


def _setup_arguments(path: Path) -> dict[str, Any]:
    """Return the literal arguments of the call of ``setup``; names of literals are looked up."""
    try:
        tree = ast.parse(_read(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    named = {
        target.id: statement.value
        for statement in ast.walk(tree)
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }
    arguments: dict[str, Any] = {}
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and getattr(call.func, "id", getattr(call.func, "attr", "")) == "setup":
            for keyword in call.keywords:
                value = keyword.value
                value = named.get(value.id, value) if isinstance(value, ast.Name) else value
                try:
                    arguments[keyword.arg or ""] = ast.literal_eval(value)
                except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
                    continue
    return arguments


def _file_lines(path: Path) -> list[str]:
    return [line for line in _read(path).splitlines() if not line.lstrip().startswith(("-", "#"))]


def _table(value: object, key: str) -> dict[str, Any]:
    inner = value.get(key) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else {}


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return value.splitlines()
    return [text for text in value if isinstance(text, str)] if isinstance(value, list | tuple) else []


def _lists(value: object) -> dict[str, list[str]]:
    return {str(key): _texts(texts) for key, texts in value.items()} if isinstance(value, dict) else {}


def _strings(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        return {}
    return {str(key): text for key, text in value.items() if isinstance(text, str)}


def _first_text(*values: object) -> str:
    return next((value.strip() for value in values if isinstance(value, str) and value.strip()), "")


def _version(*values: object) -> str:
    text = _first_text(*values)
    return text if re.fullmatch(r"[0-9][0-9A-Za-z.+!-]{0,60}", text) else ""


def _poetry(table: object) -> list[str]:
    """Return Poetry's dependencies as requirements; caret and tilde become lower bounds."""
    requirements = []
    for name, wanted in table.items() if isinstance(table, dict) else ():
        options = wanted if isinstance(wanted, dict) else {"version": wanted}
        version = options.get("version", "")
        if name == "python" or not isinstance(version, str) or options.get("optional"):
            continue
        if not _poetry_python(options.get("python")):
            continue
        parts = (part.strip() for part in version.split(",") if part.strip("* "))
        bounds = ",".join(re.sub(r"^[\^~]=?\s*|^(?=\d)", ">=", part) for part in parts)
        requirements.append(f"{name}{bounds}")
    return requirements


def _poetry_python(constraint: object) -> bool:
    """Return whether a dependency with a constraint on Python is needed by this interpreter."""
    if not isinstance(constraint, str):
        return True
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    for alternative in constraint.split("||"):
        bounds = re.sub(r"\^(\d+)([.\d]*)", lambda m: f">={m[1]}{m[2]},<{int(m[1]) + 1}", alternative)
        try:
            if SpecifierSet(re.sub(r"~=?\s*(\d+\.\d)", r"~=\1", bounds).strip()).contains(python):
                return True
        except InvalidSpecifier:
            return True
    return False


def _poetry_groups(poetry: dict[str, Any]) -> dict[str, list[str]]:
    groups = {
        name: _poetry(_table(_table(poetry, "group"), name).get("dependencies"))
        for name in _table(poetry, "group")
    }
    dev = _poetry(poetry.get("dev-dependencies"))
    return {"dev": dev, **groups} if dev else groups


def _version_file(tool: dict[str, Any]) -> str:
    scm, hatch = _table(tool, "setuptools_scm"), _table(_table(_table(tool, "hatch"), "build"), "hooks")
    path = _first_text(
        scm.get("version_file"), scm.get("write_to"), _table(hatch, "vcs").get("version-file"),
        _table(_table(tool, "pdm"), "version").get("write_to"),
    )  # fmt: skip
    return path if re.fullmatch(r"(?!/)[\w./-]{1,200}\.py", path) and ".." not in path else ""


def _pytest_options(tool: dict[str, Any], *files: dict[str, dict[str, str]]) -> dict[str, str]:
    tables: list[Mapping[str, Any]] = [_table(_table(tool, "pytest"), "ini_options")]
    tables += [file.get(section, {}) for file in files for section in ("tool:pytest", "pytest")]
    options: dict[str, str] = {}
    for table in tables:
        for name in _PYTEST_OPTIONS & table.keys():
            value = table[name]
            text = " ".join(_texts(value)) if isinstance(value, list) else str(value)
            if "\n" not in text and len(text) < 200:
                options.setdefault(name, text)
    return options
