"""Files of the two example images, as folders that are copied over a Debian root file system.

Both contain the repository at ``/testbed`` on the commit before the fix, with a later commit reachable by a
tag, like images of published datasets. They differ in the locations of Python, the hidden tests and the
runner.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

NAME, OLD, NEW = "parse", "1.20.1", "1.20.2"
REPO = "r1chardj0n3s/parse"
FILES = ("parse.py", "README.rst", "LICENSE", "pyproject.toml", "tests")
CHANGED = ("parse.py",)
TESTS = ("tests/test_parse.py",)
_PYTEST = ("pytest==8.4.2", "iniconfig==2.1.0", "packaging==25.0", "pluggy==1.6.0", "pygments==2.19.2")
_DATES = {OLD: "2024-01-28T04:13:23+00:00", NEW: "2024-06-11T04:41:48+00:00"}
MESSAGES = {OLD: "Release 1.20.1", NEW: "Allow hyphens in field names (#86)"}

RUN_TESTS = """#!/bin/bash
cd /testbed
PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' .venv/bin/python -W ignore -m pytest -rA r2e_tests
"""
_ACTIVATE = """# Stands in for conda's own: after it, `conda activate NAME` puts an environment first on PATH.
conda() {
    if [ "$1" = activate ]; then export CONDA_DEFAULT_ENV="$2"; PATH="/opt/miniconda3/envs/$2/bin:$PATH"; fi
}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Sources of the package before and after the fix."""

    old: Path
    new: Path
    repository: Path
    """Git repository whose work tree is the old version."""
    old_commit: str
    new_commit: str
    site_packages: Path
    """Folder with pytest and its dependencies."""
    instance_id: str = "r1chardj0n3s__parse-86"

    def git(self, *arguments: str) -> str:
        """Run git in the repository and return its output."""
        return git(self.repository, *arguments)


def git(folder: Path, *arguments: str, date: str = _DATES[OLD]) -> str:
    """Run git with a fixed identity, date and configuration, so that commits are reproducible."""
    who = {
        f"GIT_{role}_{part}": value
        for role in ("AUTHOR", "COMMITTER")
        for part, value in (("NAME", "Richard Jones"), ("EMAIL", "richard@python.org"), ("DATE", date))
    }
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        **who,
    }
    command = [
        "git",
        "-c",
        "init.defaultBranch=master",
        "-c",
        "core.autocrlf=false",
        "-C",
        str(folder),
        *arguments,
    ]
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout


def fetch(folder: Path) -> Source:
    """Download both versions and pytest (once), and create the repository from them."""
    folder.mkdir(parents=True, exist_ok=True)
    trees = {version: _sdist(folder, version) for version in (OLD, NEW)}
    site = folder / "site-packages"
    if not site.exists():
        partial = folder / "site-packages.partial"
        shutil.rmtree(partial, ignore_errors=True)
        _pip("install", "--quiet", "--no-deps", "--target", str(partial), *_PYTEST)
        shutil.rmtree(partial / "bin", ignore_errors=True)
        partial.rename(site)
    repository = folder / "repository"
    shutil.rmtree(repository, ignore_errors=True)
    repository.mkdir()
    git(repository, "init", "-q")
    commits = {}
    for version, tree in trees.items():
        for name in FILES:
            copy = shutil.copytree if (tree / name).is_dir() else shutil.copy
            shutil.rmtree(repository / name, ignore_errors=True)
            copy(tree / name, repository / name)
        (repository / ".gitignore").write_text(".venv/\n__pycache__/\n*.pyc\n")
        git(repository, "add", "-A", date=_DATES[version])
        git(repository, "commit", "-q", "-m", MESSAGES[version], date=_DATES[version])
        git(repository, "tag", version)
        commits[version] = git(repository, "rev-parse", "HEAD").strip()
    git(repository, "checkout", "-q", commits[OLD])
    return Source(
        old=trees[OLD],
        new=trees[NEW],
        repository=repository,
        old_commit=commits[OLD],
        new_commit=commits[NEW],
        site_packages=site,
    )


def _pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments], check=True)


def _sdist(folder: Path, version: str) -> Path:
    tree = folder / f"{NAME}-{version}"
    if not tree.exists():
        _pip(
            "download",
            "--quiet",
            "--no-deps",
            "--no-binary",
            ":all:",
            "-d",
            str(folder),
            f"{NAME}=={version}",
        )
        with tarfile.open(folder / f"{NAME}-{version}.tar.gz") as tar:
            tar.extractall(folder, filter="data")
    return tree


def _environment(folder: Path, source: Source) -> None:
    """Create a virtual environment without own executables: the base's Python, pytest and the repository."""
    site = folder / "lib/python3.11/site-packages"
    shutil.copytree(source.site_packages, site)
    (site / "testbed.pth").write_text("/testbed\n")
    (folder / "bin").mkdir()
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    for name, target in (("python3", "/usr/bin/python3"), ("python", "python3")):
        (folder / "bin" / name).symlink_to(target)


def _script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def r2e_tree(source: Source, folder: Path) -> Path:
    """Create R2E-Gym's layout: ``/testbed/.venv``, hidden tests in ``/r2e_tests``, runner in ``/root``."""
    shutil.rmtree(folder, ignore_errors=True)
    testbed = folder / "testbed"
    shutil.copytree(source.repository, testbed, symlinks=True)
    _environment(testbed / ".venv", source)
    (folder / "r2e_tests").mkdir()
    for number, name in enumerate(TESTS, 1):
        shutil.copy(source.new / name, folder / "r2e_tests" / f"test_{number}.py")
    _script(folder / "root/run_tests.sh", RUN_TESTS)
    (folder / "root/r2e_tests").symlink_to("/r2e_tests")
    (folder / "root/.venv").symlink_to("/testbed/.venv")
    (testbed / "r2e_tests").symlink_to("/r2e_tests")
    return folder


def swe_tree(source: Source, folder: Path) -> Path:
    """Create SWE-bench's layout: the repository in ``/testbed``, Python at conda's path."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source.repository, folder / "testbed", symlinks=True)
    conda = folder / "opt/miniconda3"
    _environment(conda / "envs/testbed", source)
    python = "/opt/miniconda3/envs/testbed/bin/python"
    _script(
        conda / "envs/testbed/bin/pytest",
        f"#!{python}\nimport sys\nfrom pytest import console_main\nsys.exit(console_main())\n",
    )
    _script(conda / "bin/activate", _ACTIVATE)
    return folder
