"""The shipped scanners, about ten lines each.

To change a rule, raise its version: trajectories are then scanned again. To add one, write a function here.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from engine.scanners.shell import run_files
from engine.scanners.trajectory import ScannedStep, ScannedTrajectory
from engine.types import TerminationReason


@dataclass(frozen=True, slots=True)
class Hit:
    """A place where a scanner found its behaviour."""

    step: int | None
    """Index of the step; None for the whole trajectory."""
    detail: str


Rule = Callable[[ScannedTrajectory], Iterable[Hit]]


@dataclass(frozen=True, slots=True)
class Scanner:
    """A named, versioned rule."""

    name: str
    version: int
    words: str
    """Description of what it finds."""
    scan: Rule


_RULES: dict[str, Scanner] = {}
RULES: Mapping[str, Scanner] = MappingProxyType(_RULES)
"""The shipped scanners by name."""


def _rule(version: int) -> Callable[[Rule], Rule]:
    """Return a decorator that registers a rule under its name; its docstring says what it finds."""

    def register(scan: Rule) -> Rule:
        name, words = getattr(scan, "__name__", ""), (scan.__doc__ or "").removeprefix("Find ")
        _RULES[name] = Scanner(name, version, words[:1].upper() + words[1:], scan)
        return scan

    return register


def _hit(step: ScannedStep, detail: str = "") -> Hit:
    return Hit(step.index, (detail or step.title)[:200])


@_rule(1)
def ran_project_tests(trajectory: ScannedTrajectory) -> Iterator[Hit]:
    """Find runs of the project's tests."""
    return (_hit(run.step) for run in trajectory.test_runs)


_SCRIPT = re.compile(r".+\.(?:py|sh|js|ts|rb|php|pl|go|java)")


@_rule(1)
def wrote_reproduction(trajectory: ScannedTrajectory) -> Iterator[Hit]:
    """Find a script that was created and run before the first change of the project's files."""
    first = next((edit.step.index for edit in trajectory.project_edits), float("inf"))
    written: dict[int, list[str]] = defaultdict(list)
    for edit in trajectory.edits:
        if edit.own and _SCRIPT.fullmatch(edit.path):
            written[edit.step.index].append(edit.path)
    paths: dict[str, str] = {}
    for step in (step for step in trajectory.steps if step.index < first):
        paths |= {path.rpartition("/")[2]: path for path in written[step.index]}
        for file in (file for words in step.commands for file in run_files(words)) if paths else ():
            if path := paths.get(file.rpartition("/")[2]):
                yield _hit(step, f"{path}: {step.title}")
                return


@_rule(1)
def tests_after_last_edit(trajectory: ScannedTrajectory) -> Iterator[Hit]:
    """Find a run of the project's tests after the last change of its files."""
    edits = trajectory.project_edits
    runs = [run for run in trajectory.test_runs if edits and run.step.index > edits[-1].step.index]
    return (_hit(run.step) for run in runs[:1])


_EDGE_CASES = re.compile(
    r"\b(?:edge|corner|boundary)[- ](?:cases?|conditions?|values?)\b"
    r"|\bwhat (?:if|happens (?:if|when|with))\b[^.?\n]{0,80}"
    r"\b(?:empty|none|null|zero|negative|missing|duplicate)\b",
    re.IGNORECASE,
)


@_rule(1)
def edge_cases_considered(trajectory: ScannedTrajectory) -> Iterator[Hit]:
    """Find thoughts about edge cases."""
    for step in trajectory.steps:
        if match := _EDGE_CASES.search(step.thought):
            yield _hit(step, step.thought[max(0, match.start() - 60) : match.end() + 60])


@_rule(1)
def edited_tests(trajectory: ScannedTrajectory) -> Iterator[Hit]:
    """Find changes of test files that the agent had not created itself."""
    return (_hit(edit.step, edit.path) for edit in trajectory.project_edits if edit.is_test)


_HISTORY = frozenset(
    {"log", "show", "blame", "reflog", "rev-list", "whatchanged", "fsck", "format-patch", "bisect"}
)
_REVISION = re.compile(r"(?:HEAD|ORIG_HEAD|@)[~^@].*|[0-9a-f]{7,40}(?::.*)?|[\w/-]+\.\.\.?\w.*|origin/.+")


def _git(step: ScannedStep) -> Iterator[list[str]]:
    """Yield the subcommand and arguments of each call of git."""
    for program, *words in step.commands:
        while words and words[0].startswith("-"):
            words = words[2:] if words[0] in ("-C", "-c") else words[1:]
        if program == "git" and words:
            yield words


@_rule(1)
def looked_into_history(trajectory: ScannedTrajectory) -> Iterator[Hit]:
    """Find commands that read the history of the repository."""
    for step in trajectory.steps:
        for command, *words in _git(step):
            compares = command == "diff" and any(_REVISION.fullmatch(word) for word in words)
            if command in _HISTORY or compares or (command == "stash" and words[:1] in (["list"], ["show"])):
                yield _hit(step)
                break


_OTHER_REVISION = re.compile(r"[0-9a-f]{7,40}(?::.*)?|origin/.+|\w*@\{.+")
_CODE_HOST = re.compile(r"https?://\S{0,200}(?:github|gitlab|bitbucket|pypi|pythonhosted|npmjs|sourceforge)")


@_rule(1)
def retrieved_answer(trajectory: ScannedTrajectory) -> Iterator[Hit]:
    """Find commands that retrieve code from elsewhere or from another revision, where the fix may be."""
    for step in (step for step in trajectory.steps if not step.failed):
        git = any(
            words[0] in ("fetch", "pull", "clone", "cherry-pick")
            or (words[0] in ("checkout", "restore", "show") and any(map(_OTHER_REVISION.fullmatch, words)))
            for words in _git(step)
        )
        loads = any(
            (program in ("curl", "wget") and any(map(_CODE_HOST.search, words)))
            or (program in ("pip", "pip3") and words[:1] == ["download"])
            for program, *words in step.commands
        )
        if git or loads:
            yield _hit(step)


@_rule(1)
def repeated_command(trajectory: ScannedTrajectory) -> Iterator[Hit]:
    """Find calls that were repeated although nothing had changed since."""
    seen: set[str] = set()
    writing = {edit.step.index for edit in trajectory.edits}
    for step in trajectory.steps:
        if step.kind not in ("command", "search", "view", "edit"):
            continue
        if step.call in seen:
            yield _hit(step)
        if not step.only_reads or step.index in writing:
            seen = set()
        seen.add(step.call)


@_rule(1)
def edited_after_passing(trajectory: ScannedTrajectory) -> Iterator[Hit]:
    """Find changes of the project's code after its tests had passed with an earlier change of it."""
    edits = [edit for edit in trajectory.project_edits if not edit.is_test]
    passed = [
        run.step.index
        for run in trajectory.test_runs
        if run.passed and edits and run.step.index > edits[0].step.index
    ]
    return (_hit(edit.step, edit.path) for edit in edits if passed and edit.step.index > passed[0])


_GAVE_UP = re.compile(
    r"\b(?:giv(?:e|ing)|gave) up\b|\bbest (?:I|we) can do\b"
    r"|\b(?:ran|running|am) out of (?:time|steps|ideas)\b"
    r"|\b(?:unable|not able|not possible|cannot|can't|could not|couldn't|failed)(?: to)? "
    r"(?:fix|solve|resolve|complete|finish|reproduce)\b",
    re.IGNORECASE,
)


@_rule(1)
def gave_up(trajectory: ScannedTrajectory) -> Iterator[Hit]:
    """Find statements in the last two steps that the task cannot be solved."""
    for step in trajectory.steps[-2:]:
        for text in (step.thought, step.message):
            if match := _GAVE_UP.search(text):
                yield _hit(step, text[max(0, match.start() - 60) : match.end() + 60])
                break


@_rule(1)
def submitted_without_change(trajectory: ScannedTrajectory) -> Iterator[Hit]:
    """Find submissions without any change."""
    changed = trajectory.patch if trajectory.patch is not None else trajectory.edits
    if trajectory.termination == TerminationReason.SUBMITTED and not changed:
        yield Hit(None, "the patch is empty" if trajectory.patch is not None else "no step changed a file")
