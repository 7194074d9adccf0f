"""A finished trajectory as scanners read it: bounded texts, and what its actions did.

Models and sandboxes determine every value, so that types are checked and texts are cut here, once.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.scanners import shell
from engine.scanners.tool_kinds import COMMANDS, CONTENTS, PATHS, TERMS, action_kind

MOST_CHARS = 20_000
"""Longest text of a step that scanners read; longer ones are cut, observations in the middle."""
_PATH_CHARS = 300
_MOST_FILES = 50
"""Most files that one step writes, or that one command names."""
_MOST_OWN = 100
"""Most files of a trajectory that count as created by the agent."""
_ROOTS = re.compile(r"^(?:/testbed/|/workspace/[^/]+/|/repo/|\./)")
_TEST_FILE = re.compile(
    r"(?:^|/)(?:tests?|testing|__tests__|specs?)/|(?:^|/)(?:test_[^/]*|[^/]*_test|conftest)\.\w+$"
    r"|\.(?:test|spec)\.[jt]sx?$"
)
_EXIT_CODE = re.compile(
    r"exit code:? (?:Error: Exit code )?(-?\d{1,6})|<returncode>(-?\d{1,6})<", re.IGNORECASE
)
_REFUSED = re.compile(r"^(?:ERROR\b|Error:|No replacement was performed|Invalid `)", re.MULTILINE)
_RUNNERS = frozenset(
    {"pytest", "py.test", "tox", "nox", "nosetests", "unittest", "trial", "ctest", "jest", "mocha", "ava"}
)
_BUILDERS = frozenset(
    {
        "npm",
        "yarn",
        "pnpm",
        "npx",
        "node",
        "go",
        "cargo",
        "make",
        "mvn",
        "gradle",
        "gradlew",
        "manage.py",
        "setup.py",
    }
)
"""Programs that run tests with the argument ``test`` or the like."""
_TEST_SCRIPT = re.compile(r"run_?tests?(?:\.\w+)?|tests?\.\w+\.\w+")
_WITHOUT_TESTS = frozenset({"--version", "-V", "--help", "-h", "--collect-only", "--co"})
"""Options with which a test runner runs nothing."""
_INTERPRETERS = re.compile(r"python[\d.]*|sh|bash|ruby|node|perl")
_FAILED = re.compile(
    r"\b[1-9]\d* (?:failed|errors?|failures?)\b|^FAILED\b|no tests ran|collected 0 items", re.MULTILINE
)
_PASSED = re.compile(r"\b[1-9]\d* pass(?:ed|ing)\b|^OK\b|^ok\b", re.MULTILINE)
_READING = frozenset({
    "cat", "cd", "diff", "echo", "find", "grep", "head", "ls", "pwd", "rg", "sed", "sort", "tail", "wc",
    "which",
})  # fmt: skip
_READING_GIT = frozenset({"status", "diff", "log", "show", "blame"})


@dataclass(frozen=True, slots=True)
class ScannedStep:
    """One step; see ``read_step``."""

    index: int
    kind: str
    """Kind of the action, see ``tool_kinds.action_kind``."""
    call: str
    """Hash of tool and arguments: equal for equal calls; empty if no call was parsed."""
    title: str
    """The action in one line."""
    path: str
    """File of a view or an edit, relative to the repository; empty for other actions."""
    commands: tuple[shell.Words, ...]
    """Simple commands of a shell command, see ``shell.invocation``."""
    writes: tuple[tuple[str, bool], ...]
    """Files that the step wrote, and whether it wrote them whole."""
    action: str
    """Tool and arguments as text."""
    thought: str
    message: str
    """Text of a submission."""
    observation: str
    failed: bool
    """Whether the action failed, as far as the observation shows."""
    thinking_tokens: int | None
    """None where they are not known."""

    @property
    def only_reads(self) -> bool:
        """Return whether all shell commands are known to only read, apart from ``writes``."""
        return all(
            program in _READING or (program == "git" and bool(words) and words[0] in _READING_GIT)
            for program, *words in self.commands
        )


def read_step(
    *,
    index: int,
    tool: str,
    arguments: object,
    thought: str = "",
    observation: str = "",
    error: str = "",
    exit_code: int | None = None,
    thinking_tokens: int | None = None,
) -> ScannedStep:
    """Return a step for scanners; arguments of unexpected types count as absent."""
    values: Mapping[str, Any] = arguments if isinstance(arguments, Mapping) else {}
    kind = action_kind(tool, values)
    script = _text(values, COMMANDS) if kind == "command" else ""
    path = _relative(_text(values, PATHS)) if kind in ("view", "edit") else ""
    observation = _middle_cut(observation)
    if exit_code is None and (match := _EXIT_CODE.search(observation)):
        exit_code = int(match[1] or match[2])
    failed = bool(error) or exit_code not in (None, 0)
    failed = failed or (kind == "edit" and _REFUSED.search(observation) is not None)
    parsed = shell.commands(script) if script else []
    writes = [(_relative(name), whole) for name, whole in shell.written_files(parsed)]
    if kind == "edit" and path and not failed:
        writes.append((path, values.get("command") == "create" or bool(_text(values, CONTENTS))))
    encoded = json.dumps([tool, arguments], sort_keys=True, default=str) if tool else ""
    return ScannedStep(
        index=index,
        kind=kind,
        call=hashlib.blake2b(encoded.encode(errors="replace"), digest_size=8).hexdigest() if tool else "",
        title=" ".join((script or path or _text(values, TERMS) or tool)[:400].split())[:200],
        path=path,
        commands=tuple(filter(None, map(shell.invocation, parsed))),
        writes=tuple(writes[:_MOST_FILES]),
        action=" ".join([tool, *(str(value)[:MOST_CHARS] for value in values.values())])[:MOST_CHARS],
        thought=thought[:MOST_CHARS],
        message=_text(values, ("result", "message")) if kind == "finish" else "",
        observation=observation,
        failed=failed,
        thinking_tokens=thinking_tokens,
    )


@dataclass(frozen=True, slots=True)
class FileEdit:
    """A file that a step wrote."""

    step: ScannedStep
    path: str
    own: bool
    """Whether the agent had created the file, so that it is no part of the project."""

    @property
    def is_test(self) -> bool:
        """Return whether the file is a test by its path."""
        return is_test_file(self.path)


@dataclass(frozen=True, slots=True)
class TestRun:
    """A run of the project's tests."""

    __test__ = False

    step: ScannedStep
    passed: bool | None
    """None where the observation does not show it."""


@dataclass(slots=True)
class ScannedTrajectory:
    """A finished trajectory for scanners."""

    steps: Sequence[ScannedStep]
    termination: str = ""
    patch: str | None = None
    """None where it is not known, or the environment has none."""
    edits: list[FileEdit] = field(init=False)
    """Files that steps wrote, in order."""
    test_runs: list[TestRun] = field(init=False)
    """Runs of the project's tests, in order; those of the agent's own scripts alone do not count."""

    def __post_init__(self) -> None:
        self.edits, self.test_runs = [], []
        known: set[str] = set()
        own: set[str] = set()
        for step in self.steps:
            if _runs_tests(step, own):
                self.test_runs.append(TestRun(step, _passed(step)))
            for path, whole in step.writes:
                if whole and path not in known and len(own) < _MOST_OWN:
                    own.add(path)
                self.edits.append(FileEdit(step, path, _is_among(path, own)))
            if step.path and not step.failed:
                known.add(step.path)

    @property
    def project_edits(self) -> list[FileEdit]:
        """Return the edits of files that the agent had not created itself."""
        return [edit for edit in self.edits if not edit.own]


def is_test_file(path: str) -> bool:
    """Return whether a path is that of a test file."""
    return _TEST_FILE.search(path) is not None


def _runs_tests(step: ScannedStep, own: set[str]) -> bool:
    for program, *arguments in step.commands:
        is_script = _INTERPRETERS.fullmatch(program) is not None and bool(arguments)
        path, *rest = arguments if is_script else [program, *arguments]
        name = path.rpartition("/")[2]
        runs = (
            name in _RUNNERS
            or _TEST_SCRIPT.fullmatch(name)
            or (name in _BUILDERS and any(word in ("test", "check", "--test", "jest") for word in rest[:2]))
            or (is_script and "/" in _relative(path) and is_test_file(_relative(path)))
        )
        files = shell.mentioned_files((path, *rest) if is_script else tuple(rest))
        is_own = files and all(_is_among(_relative(file), own) for file in files[:_MOST_FILES])
        if runs and not is_own and not _WITHOUT_TESTS.intersection(rest):
            return True
    return False


def _passed(step: ScannedStep) -> bool | None:
    if _FAILED.search(step.observation):
        return False
    if _PASSED.search(step.observation):
        return not step.failed
    return False if step.failed else None


def _is_among(path: str, files: set[str]) -> bool:
    """Return whether a path names one of the files, which may have a folder more or less in front."""
    if path in files:
        return True
    return any(path.endswith(f"/{name}") or name.endswith(f"/{path}") for name in files)


def _relative(path: str) -> str:
    return _ROOTS.sub("", path[:_PATH_CHARS])


def _text(values: Mapping[str, Any], names: Sequence[str]) -> str:
    value = next((values[name] for name in names if values.get(name) is not None), "")
    return value[:MOST_CHARS] if isinstance(value, str) else ""


def _middle_cut(text: str) -> str:
    half = MOST_CHARS // 2
    return text if len(text) <= MOST_CHARS else f"{text[:half]}\n{text[-half:]}"
