"""Python as a language of commits: projects, their environments and tests."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from packaging.utils import canonicalize_name

from engine.datasets.commits.languages.base import WORKDIR, EntityChange, UnsuitableError, next_month
from engine.datasets.commits.languages.python import definitions, entities, examples
from engine.datasets.commits.languages.python.environments import (
    PYTEST_CLOSURE,
    PYTHON,
    Packages,
    ensure_packages,
    resolve,
)
from engine.datasets.commits.languages.python.project_files import ProjectFiles, read_project
from engine.datasets.curation.toolchain import PYTEST
from engine.datasets.paths import is_test_path
from engine.errors import DatasetError
from engine.sandbox.base import Sandbox
from engine.testing.testrun import TestRun, driver_command, run_tests
from engine.testing.toolchain import MOUNT
from engine.types import GradeRule

_SELECTION = "/tmp/trainyard-selection"  # noqa: S108  inside the sandbox
_MISSING_MODULE = re.compile(r"No module named '([A-Za-z]\w{0,60})", re.ASCII)
_DISTRIBUTIONS = {
    "yaml": "pyyaml", "PIL": "pillow", "dateutil": "python-dateutil", "attr": "attrs",
    "sklearn": "scikit-learn", "bs4": "beautifulsoup4", "cv2": "opencv-python-headless",
    "OpenSSL": "pyopenssl", "jwt": "pyjwt",
    "serial": "pyserial", "Crypto": "pycryptodome", "git": "gitpython", "dotenv": "python-dotenv",
    "pkg_resources": "setuptools<81", "zmq": "pyzmq", "magic": "python-magic",
}  # fmt: skip
"""Distributions of modules that have another name."""


@dataclass(frozen=True, slots=True)
class Python:
    """Python of this interpreter's version.

    Args:
        home: the data folder.
    """

    home: Path
    name = "python"
    suffixes = (".py",)
    tools = f"{PYTHON}-{PYTEST.rpartition('=')[2]}"
    grade_rule = GradeRule.F2P_P2P
    writes_tests = True

    def is_code(self, path: str) -> bool:
        """See ``Language.is_code``."""
        return path.endswith(".py") and not is_test_path(path)

    def is_test_file(self, path: str) -> bool:
        """See ``Language.is_test_file``."""
        name = PurePosixPath(path).name
        is_named = name.startswith("test") or name.endswith("_test.py")
        return is_named and path.endswith(".py") and is_test_path(path)

    def module_name(self, path: str) -> str:
        """Return the dotted name of a module."""
        parts = PurePosixPath(path.removeprefix("src/")).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def changed_entities(self, old: str, new: str) -> EntityChange:
        """See ``Language.changed_entities``."""
        return entities.changed_entities(old, new)

    def example(self, text: str, test: str) -> str:
        """See ``Language.example``."""
        return examples.example(text, test)

    def test_names(self, test: str) -> set[str]:
        """Return the name of a test's function and that of its file."""
        path, _, names = test.partition("[")[0].partition("::")
        return {PurePosixPath(path).name, names.rpartition("::")[2]} - {""}

    def definitions(self, files: Mapping[str, str], names: Iterable[tuple[str, str]]) -> str:
        """See ``Language.definitions``."""
        return definitions.definitions(files, names)

    def open_project(self, tree: Path) -> PythonProject:
        """See ``Language.open_project``; writes the version file that a build would write."""
        files = read_project(tree)
        if canonicalize_name(files.name) in PYTEST_CLOSURE:
            raise UnsuitableError("does_not_build", "the test tools need a version of the project itself")
        if not files.accepts(PYTHON):
            raise UnsuitableError(
                "python_version", f"it requires Python {files.requires_python}, not {PYTHON}"
            )
        version_file = tree / files.version_file if files.version_file else None
        if version_file is not None and not version_file.exists() and version_file.parent.is_dir():
            text = files.version or "0.1.dev0"
            version_file.write_text(
                f"__version__ = version = {text!r}\n__version_tuple__ = version_tuple = (0, 1)\n"
            )
        roots = ("src", ".") if (tree / "src").is_dir() else (".",)
        own = frozenset(path.stem for root in roots for path in (tree / root).iterdir())
        return PythonProject(home=self.home, files=files, roots=roots, own=own)


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonProject:
    """A Python project's declared environment."""

    home: Path
    files: ProjectFiles
    roots: tuple[str, ...]
    """Import roots, relative to the tree."""
    own: frozenset[str]
    """Names of modules and packages below the roots."""

    def environment(self, date: datetime.datetime, added: Sequence[str]) -> PythonEnvironment:
        """Return packages as of the end of the month, else of today, else those of the code alone."""
        wanted = (*self.files.runtime, *self.files.tests, *added)
        errors = []
        for requirements, before in (
            (wanted, next_month(date)),
            (wanted, None),
            ((*self.files.runtime, *added), None),
        ):
            try:
                pins = resolve(requirements, before=before, own=self.files.name)
            except DatasetError as error:
                errors.append(str(error))
                continue
            try:
                packages = ensure_packages(self.home, pins, self.files)
            except DatasetError as error:
                raise UnsuitableError("tree", str(error)) from None
            return PythonEnvironment(packages, self.roots, self.files.pytest_options)
        raise UnsuitableError("does_not_build", "\n".join(errors))

    def missing_packages(self, log: str) -> list[str]:
        """See ``Project.missing_packages``."""
        modules = [name for name in _MISSING_MODULE.findall(log) if name not in self.own]
        return [_DISTRIBUTIONS.get(name, name.replace("_", "-")) for name in modules]


@dataclass(frozen=True, slots=True)
class PythonEnvironment:
    """Installed packages of a project, and its tests by the signing driver."""

    packages: Packages
    roots: tuple[str, ...]
    options: Mapping[str, str]
    """Options of pytest that the project sets."""

    @property
    def key(self) -> str:
        """See ``Environment.key``."""
        return self.packages.folder.name

    @property
    def pins(self) -> tuple[str, ...]:
        """See ``Environment.pins``."""
        return self.packages.pins

    @property
    def mounts(self) -> dict[str, str]:
        """See ``Environment.mounts``."""
        return {MOUNT: str(self.packages.folder)}

    @property
    def variables(self) -> dict[str, str]:
        """See ``Environment.variables``."""
        paths = [WORKDIR if root == "." else f"{WORKDIR}/{root}" for root in self.roots]
        return {"PYTHONPATH": ":".join([*paths, MOUNT]), "PYTHONDONTWRITEBYTECODE": "1"}

    def command(self, tests: Sequence[str]) -> str:
        """See ``Environment.command``."""
        options = [part for plugin in self.packages.plugins for part in ("-p", plugin)]
        options += [part for name, value in self.options.items() for part in ("-o", f"{name}={value}")]
        return driver_command(["--continue-on-collection-errors", *options, *tests], self.roots)

    async def run(self, sandbox: Sandbox, tests: Sequence[str], *, timeout_s: float) -> TestRun:
        """See ``Environment.run``."""
        await sandbox.write_file(_SELECTION, "\n".join(tests).encode())
        return await run_tests(sandbox, self.command([f"@{_SELECTION}"]), timeout_s=timeout_s)
