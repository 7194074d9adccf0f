"""JavaScript as a language of commits: packages by npm, tests by mocha, jest, ava, tape or Node.js itself."""

from __future__ import annotations

import datetime
import functools
import re
import secrets
import shlex
import shutil
import subprocess
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from engine.datasets.commits.languages.base import EntityChange, UnsuitableError, next_month
from engine.datasets.commits.languages.javascript import syntax
from engine.datasets.commits.languages.javascript.environments import (
    MOUNT,
    RUNNERS,
    TOOLS,
    Resolution,
    drivers,
    ensure_packages,
    resolve,
)
from engine.datasets.commits.languages.javascript.package_files import PackageFile, read_package
from engine.datasets.paths import is_configuration, is_test_folder, is_test_path
from engine.errors import DatasetError, PreflightError
from engine.sandbox.base import Sandbox
from engine.testing.testrun import LOG_BYTES, REPORT_BYTES, TestRun, junit_address, log_text, parse_junit
from engine.threads import in_thread
from engine.types import GradeRule

_SUFFIXES = (".js", ".cjs", ".mjs")
_SUPPORT = re.compile(
    r"(?:^|/)(?:(?:_?fixtures?|support|helpers?|utils?|__mocks__|__snapshots__|mocks?|data)/"
    r"|(?:_?fixtures?|support|helpers?|mocks?)\.\w+$)"
)
"""Files of test folders without tests, from the outermost test folder on."""
_TEST_NAME = re.compile(r"\.(?:tests?|spec)\.[cm]?js$")
_MIN_TITLE_WORDS = 3
"""Words from which the title of a test is more than the name of what it tests."""
_SETTINGS = re.compile(r"(?:^|/)(?:\.[^/]*|[^/]+\.(?:config|min))\.[cm]?js$")
"""Settings of tools, and bundled code."""
_MISSING = re.compile(
    r"Cannot find (?:module|package) '((?:@[a-z0-9][\w.-]{0,99}/)?[a-z0-9][\w.-]{0,99})[/']"
)
_VARIABLES = {"TZ": "UTC"}


@functools.cache
def node_version() -> str:
    """Return the version of Node.js in sandboxes. Raises PreflightError: it is missing or too old."""
    node = shutil.which("node", path="/usr/local/bin:/usr/bin:/bin")
    if node is None:
        raise PreflightError(
            "JavaScript needs Node.js below /usr, which sandboxes share, and npm: install nodejs and npm"
        )
    done = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=60, check=False)
    version = re.match(r"v(\d+)\.(\d+)\.\d+$", done.stdout.strip())
    if version is None or (int(version[1]), int(version[2])) < (18, 15):
        raise PreflightError(
            f"JavaScript needs Node.js 18.15 or newer; {node} is {done.stdout[:50].strip()!r}"
        )
    return version[0].removeprefix("v")


def check_programs(tree: Path) -> None:
    """Check that this machine can test a package. Raises PreflightError: Node.js, or npm for its packages."""
    node_version()
    package = read_package(tree)
    if (
        package is not None
        and (package.runtime or package.optional or package.tests or package.runner != "node")
        and shutil.which("npm") is None
    ):
        raise PreflightError("its packages need npm, which is not installed: install npm")


def declares_javascript(tree: Path) -> bool:
    """Return whether a tree is a package of npm with tests, and no Python project."""
    if any((tree / name).exists() for name in ("pyproject.toml", "setup.py", "setup.cfg")):
        return False
    package = read_package(tree)
    return package is not None and bool(package.script)


class JavaScript:
    """JavaScript of this machine's Node.js.

    Args:
        home: the data folder.

    Raises:
        PreflightError: Node.js is missing or too old.
    """

    name = "javascript"
    suffixes = _SUFFIXES
    grade_rule = GradeRule.JUNIT
    writes_tests = False

    def __init__(self, home: Path) -> None:
        self._home = home
        digest = zlib.crc32(b"".join(drivers().values()))
        self.tools = f"node{node_version()}-{digest:08x}"

    def is_code(self, path: str) -> bool:
        """See ``Language.is_code``."""
        is_product = not is_test_path(path) and not is_configuration(path) and not _SETTINGS.search(path)
        return path.endswith(_SUFFIXES) and is_product

    def is_test_file(self, path: str) -> bool:
        """See ``Language.is_test_file``."""
        if not path.endswith(_SUFFIXES) or not is_test_path(path):
            return False
        parts = path.split("/")
        folders = [at for at, name in enumerate(parts[:-1]) if is_test_folder(name)]
        is_support = bool(folders) and _SUPPORT.search("/".join(parts[folders[0] :])) is not None
        return not is_support or _TEST_NAME.search(path) is not None

    def module_name(self, path: str) -> str:
        """Return the path of a module without its suffix, of an index that of its folder."""
        module = PurePosixPath(path).with_suffix("")
        return str(module.parent if module.name == "index" and len(module.parts) > 1 else module)

    def changed_entities(self, old: str, new: str) -> EntityChange:
        """See ``Language.changed_entities``."""
        return syntax.changed_entities(old, new, home=self._home)

    def example(self, text: str, test: str) -> str:
        """See ``Language.example``."""
        return syntax.example(text, test.partition("::")[2], home=self._home)

    def test_names(self, test: str) -> set[str]:
        """Return the titles of a test if they have several words, and its file: by path if named as code."""
        path, _, title = test.partition("::")
        name = PurePosixPath(path).name
        names = {name if _TEST_NAME.search(name) else path}
        return names | {title} if len(title.split()) >= _MIN_TITLE_WORDS else names

    def definitions(self, files: Mapping[str, str], names: Iterable[tuple[str, str]]) -> str:  # noqa: ARG002
        """Return nothing: prompts get the whole files."""
        return ""

    def open_project(self, tree: Path) -> JavaScriptProject:
        """See ``Language.open_project``."""
        package = read_package(tree)
        if package is None:
            raise UnsuitableError("does_not_build", "it has no package.json that can be read")
        if not package.runner:
            raise UnsuitableError(
                "no_tests_run",
                f"its test script calls none of mocha, jest, ava, tape, node --test: {package.script}",
            )
        return JavaScriptProject(home=self._home, package=package)


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaScriptProject:
    """A package of npm."""

    home: Path
    package: PackageFile

    def environment(self, date: datetime.datetime, added: Sequence[str]) -> JavaScriptEnvironment:
        """Return packages as of the end of the month, else of today, else those of code and runner alone."""
        runner = [self.package.runner] if self.package.runner in RUNNERS else []
        tests = self.package.tests
        declared = {line.rpartition("@")[0]: line for line in (*tests, *self.package.others)}
        extra = [declared.get(name, f"{name}@*") for name in (*added, *runner)]
        wanted = (*self.package.runtime, *tests, *extra)
        errors = []
        for requirements, before in (
            (wanted, next_month(date)),
            (wanted, None),
            ((*self.package.runtime, *extra), None),
        ):
            try:
                resolution = resolve(requirements, self.package.optional, before=before, home=self.home)
            except DatasetError as error:
                errors.append(str(error))
                continue
            try:
                folder = ensure_packages(self.home, resolution)
            except DatasetError as error:
                raise UnsuitableError("tree", str(error)) from None
            return JavaScriptEnvironment(folder, resolution, self.package)
        raise UnsuitableError("does_not_build", "\n".join(errors))

    def missing_packages(self, log: str) -> list[str]:
        """See ``Project.missing_packages``."""
        return [name for name in _MISSING.findall(log) if name != self.package.name]


@dataclass(frozen=True, slots=True)
class JavaScriptEnvironment:
    """Installed packages of a project, and its tests by the driver."""

    folder: Path
    resolution: Resolution
    package: PackageFile

    @property
    def key(self) -> str:
        """See ``Environment.key``."""
        return self.folder.name

    @property
    def pins(self) -> tuple[str, ...]:
        """See ``Environment.pins``."""
        return self.resolution.pins

    @property
    def mounts(self) -> dict[str, str]:
        """See ``Environment.mounts``."""
        return {MOUNT: str(self.folder)}

    @property
    def variables(self) -> dict[str, str]:
        """See ``Environment.variables``."""
        return _VARIABLES

    def command(self, tests: Sequence[str]) -> str:
        """Return the command that runs the files of tests, in their order, and writes a JUnit report."""
        files = dict.fromkeys(test.partition("::")[0] for test in tests)
        options = shlex.join([self.package.runner, *self.package.options, "--", *files])
        return f"node {MOUNT}/{TOOLS}/driver.cjs {{junit}} {options}"

    async def run(self, sandbox: Sandbox, tests: Sequence[str], *, timeout_s: float) -> TestRun:
        """See ``Environment.run``; mocha also shuffles the tests of each suite."""
        report = f"/tmp/trainyard-{secrets.token_hex(8)}.xml"  # noqa: S108  inside the sandbox
        order = zlib.crc32("\n".join(tests).encode()) if any("::" in test for test in tests) else 0
        result = await sandbox.exec(
            self.command(tests).replace("{junit}", report),
            timeout_s=timeout_s,
            env={"TRAINYARD_ORDER": str(order)},
            output_cap=LOG_BYTES,
        )
        log = log_text(result)
        if result.timed_out:
            return TestRun(timed_out=True, problem="the tests hit their deadline", log=log)
        try:
            data = await sandbox.read_file(report, max_bytes=REPORT_BYTES)
            cases = await in_thread(partial(parse_junit, data))
        except (OSError, ValueError) as error:
            problem = f"the tests ended without a report (exit code {result.exit_code}): {error}"
            return TestRun(problem=problem, log=log, seconds=result.seconds)
        by_id = {"::".join(address): case for address, case in cases.items()}
        return TestRun(
            cases={junit_address(test): case for test, case in by_id.items()},
            ids=tuple(by_id),
            problem="" if by_id else f"no test reported (exit code {result.exit_code})",
            log=log,
            seconds=result.seconds,
        )
