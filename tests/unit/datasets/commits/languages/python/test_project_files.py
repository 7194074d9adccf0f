"""Declared environments of projects."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.datasets.commits.languages.python.project_files import ProjectFiles, read_project


def project(tmp_path: Path, **files: str) -> ProjectFiles:
    """Write files (``setup_cfg`` is ``setup.cfg``) and read the project."""
    for name, text in files.items():
        (tmp_path / name.replace("_", ".", 1)).write_text(text)
    return read_project(tmp_path)


def test_pyproject_declares_requirements_groups_and_entry_points(tmp_path: Path) -> None:
    text = """
[project]
name = "toy-pkg"
version = "1.2"
requires-python = ">=3.8"
dependencies = ["attrs>=20", "evil @ https://example.org/x.whl"]
[project.optional-dependencies]
tests = ["hypothesis", "pytest", "flake8"]
docs = ["sphinx"]
[dependency-groups]
dev = ["freezegun; python_version >= '3.8'"]
[project.scripts]
toy = "toy:main"
[tool.setuptools_scm]
write_to = "src/toy/_version.py"
[tool.pytest.ini_options]
asyncio_mode = "auto"
addopts = "--cov"
"""
    found = project(tmp_path, pyproject_toml=text)
    assert (found.name, found.version, found.runtime) == ("toy-pkg", "1.2", ("attrs>=20",))
    assert found.tests == ("hypothesis", 'freezegun; python_version >= "3.8"')
    assert found.entry_points == {"console_scripts": {"toy": "toy:main"}}
    assert found.version_file == "src/toy/_version.py"
    assert found.pytest_options == {"asyncio_mode": "auto"}
    assert found.accepts("3.11")
    assert not ProjectFiles(requires_python="<3.8").accepts("3.11")
    assert ProjectFiles(requires_python="nonsense").accepts("3.11")


def test_setup_py_is_read_and_never_run(tmp_path: Path) -> None:
    text = f"""
import pathlib
pathlib.Path({str(tmp_path / "ran")!r}).touch()
from setuptools import setup
REQUIRED = ["six>=1.0"]
setup(name="old", version=open("VERSION").read(), install_requires=REQUIRED, tests_require=["mock"],
      extras_require={{"test": ["nose"]}})
"""
    found = project(tmp_path, setup_py=text)
    assert (found.name, found.version) == ("old", "")
    assert (found.runtime, found.tests) == (("six>=1.0",), ("nose", "mock"))
    assert not (tmp_path / "ran").exists()


def test_setup_cfg_tox_and_requirements_files_are_read(tmp_path: Path) -> None:
    found = project(
        tmp_path,
        setup_cfg="[options]\ninstall_requires =\n    six\n    attrs\n"
        "[options.extras_require]\ntest = mock\n",
        tox_ini="[testenv]\ndeps =\n    pytest\n    py37: nose\n    -rrequirements.txt\n",
        requirements_txt="# pinned\nsix==1.16.0 --hash=sha256:0\n-e .\n",
    )
    assert found.runtime == ("six", "attrs")
    assert found.tests == ("mock", "nose")


def test_poetry_constraints_become_lower_bounds(tmp_path: Path) -> None:
    text = """
[tool.poetry]
name = "p"
[tool.poetry.dependencies]
python = "^3.8"
attrs = "^22.1"
extra = {version = "~1.0", optional = true}
old = {version = "^1.0", python = "~2.7"}
older = {version = "^1.0", python = "~2.7 || >=3.4,<3.5"}
new = {version = "^1.0", python = "^3.6"}
[tool.poetry.group.test.dependencies]
mock = "*"
"""
    found = project(tmp_path, pyproject_toml=text)
    assert (found.runtime, found.tests) == (("attrs>=22.1", "new>=1.0"), ("mock",))


@pytest.mark.parametrize(
    "files",
    [
        {"pyproject_toml": "[project\n"},
        {"pyproject_toml": "project = 3\ntool = []\n"},
        {"pyproject_toml": '[project]\nname = 3\ndependencies = "attrs"\n[tool]\npoetry = 1\n'},
        {"setup_cfg": "no section\n"},
        {"setup_py": "setup(**" + "(" * 100_000},
        {"setup_py": "def broken(:\n"},
    ],
)
def test_malformed_files_leave_the_environment_empty(tmp_path: Path, files: dict[str, str]) -> None:
    found = project(tmp_path, **files)
    assert found.tests == ()
    assert found.name == ""


def test_the_project_itself_is_no_requirement_and_its_own_extras_are_expanded(tmp_path: Path) -> None:
    text = """
[project]
name = "Toy.Pkg"
dependencies = ["toy-pkg"]
[project.optional-dependencies]
mocks = ["mock", "toy_pkg[mocks]"]
test = ["toy_pkg[mocks]>=1", "nose"]
"""
    read = project(tmp_path, pyproject_toml=text)
    assert (read.runtime, read.tests) == ((), ("nose", "mock"))


@pytest.mark.parametrize("path", ["\\u0000.py", "a" * 300 + ".py", "/etc/x.py", "../x.py", "x.txt"])
def test_version_files_outside_of_the_tree_are_ignored(tmp_path: Path, path: str) -> None:
    read = project(tmp_path, pyproject_toml=f'[tool.setuptools_scm]\nwrite_to = "{path}"\n')
    assert read.version_file == ""


def test_a_setup_py_that_exhausts_memory_ends_its_own_process(tmp_path: Path) -> None:
    assert project(tmp_path, setup_py="import a" + ".a" * 60_000).runtime == ()
