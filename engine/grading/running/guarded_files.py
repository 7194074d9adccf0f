"""Comparison of test files before and after a run: only the code under test can have changed them meanwhile.

Guarded are the answer's test files, the files of its test patch, the files of required tests, every
``conftest.py`` above them, and scripts. A script may place tests itself, so a file may also end with the
content of the test patch or the overlay, or be absent. The row's data (expected output, snapshots) is guarded
like source text; its sign contains no hash, as tests write content that depends on the code. A file that can
no longer be read counts as changed.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from engine.errors import PatchError, SandboxError
from engine.grading.evidence import Evidence, first_names
from engine.patches.apply import apply_patch, touched
from engine.patches.sections import split_patch
from engine.patches.trees import MAX_FILES, is_plain, path_below
from engine.sandbox.base import Sandbox
from engine.types import TaskAnswer

_SOURCE = frozenset(
    {
        ".py", ".sh", ".js", ".jsx", ".ts", ".tsx", ".mjs", ".cjs", ".go", ".rs", ".java", ".kt", ".scala",
        ".rb", ".php", ".c", ".cc", ".cpp", ".h", ".hpp", ".cs", ".swift", ".ini", ".cfg", ".toml", ".exs",
    }
)  # fmt: skip
_MAX_BYTES = 16 << 20
_BATCH_FILES = 32
_ABSENT = ""


class GuardedFiles:
    """Hashes of test files at the start of a run.

    Args:
        names: guarded paths below the workdir.
        outside: guarded absolute paths.
        allowed: path → hashes of allowed final contents.
    """

    def __init__(self, names: Sequence[str], outside: Sequence[str], allowed: Mapping[str, set[str]]) -> None:
        self._names = names
        self._outside = outside
        self._allowed = allowed

    @classmethod
    async def hashed(
        cls, box: Sandbox, answer: TaskAnswer, *, scripts: Iterable[str] = (), overlay: Mapping[str, bytes]
    ) -> GuardedFiles:
        """Hash the test files of a sandbox right before its tests run.

        Args:
            scripts: absolute paths of scripts that run the tests.
            overlay: test files that a command writes later.

        Raises:
            SandboxError: the files cannot be read; no test has run yet.
        """
        workdir = box.spec.workdir
        sections = await asyncio.to_thread(split_patch, answer.test_patch)
        patched = await _patched(box, [section.text for section in sections])
        given = {
            path_below(workdir, path)
            for path in [*answer.test_files, *answer.binary_files, *scripts, *overlay]
        }
        guarded = {*given, *patched, *_files_of(answer)}
        names = sorted(path for path in guarded if is_plain(path))[:MAX_FILES]
        outside = sorted(path for path in guarded if not is_plain(path))
        hashes, unreadable = await _hashes(box, names, outside)
        if unreadable:
            raise SandboxError(f"the test files cannot be hashed: {first_names(unreadable.values())}")
        allowed = {path: {hashes[path], _ABSENT} for path in hashes}
        for contents in (overlay, patched):
            for path, digest in (await asyncio.to_thread(_hashed, contents)).items():
                allowed.setdefault(path_below(workdir, path), set()).add(digest)
        # An absent file may only be created with the content of the test patch or the overlay.
        return cls(names, outside, allowed)

    async def checked(self, box: Sandbox, evidence: Evidence) -> Evidence:
        """Return the evidence of the run, with a sign for each file that was altered.

        A file is altered if its content is not an allowed one, or if it can no longer be read.
        """
        hashes, unreadable = await _hashes(box, self._names, self._outside)
        altered = sorted(path for path, digest in hashes.items() if digest not in self._allowed[path])
        signs = {path: f"{path} was changed while the tests ran" for path in altered}
        data = [sign for path, sign in signs.items() if not _is_source(path)]
        data += [sign for path, sign in unreadable.items() if not _is_source(path)]
        source = [f"{sign} (SHA-256 {hashes[path]})" for path, sign in signs.items() if _is_source(path)]
        source += [sign for path, sign in unreadable.items() if _is_source(path)]
        return replace(evidence, signs=(*evidence.signs, *source), data_signs=(*evidence.data_signs, *data))


async def _hashes(
    box: Sandbox, names: Sequence[str], outside: Sequence[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return path → hash, empty for absent files, and path → reason of files that cannot be read.

    Files are read in batches, to limit memory.
    """
    hashes: dict[str, str] = {}
    unreadable: dict[str, str] = {}
    for start in range(0, len(names), _BATCH_FILES):
        batch = names[start : start + _BATCH_FILES]
        try:
            hashes |= await _fetched(box, batch)
        except PatchError:  # one unreadable file fails the batch
            for name in batch:
                try:
                    hashes |= await _fetched(box, [name])
                except PatchError as error:
                    unreadable[name] = f"{name} cannot be read: {error}"
    for path in outside:
        try:
            content = await box.read_file(path, max_bytes=_MAX_BYTES)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            hashes[path] = _ABSENT
        except (OSError, ValueError) as error:
            unreadable[path] = f"{path} cannot be read: {error}"
        else:
            hashes |= await asyncio.to_thread(_hashed, {path: content})
    return hashes, unreadable


async def _fetched(box: Sandbox, names: Sequence[str]) -> dict[str, str]:
    """Return path → hash of files below the workdir. Raises PatchError if one cannot be read."""
    states = await box.fetch_files(names)
    hashes = await asyncio.to_thread(_hashed, {name: state.data for name, state in states.items()})
    return dict.fromkeys(names, _ABSENT) | hashes


async def _patched(box: Sandbox, sections: Sequence[str]) -> dict[str, bytes]:
    """Return the files that result from a test patch's sections.

    Sections that do not apply are found by bisection and left out: rows may lack contents of binary files.
    """
    try:
        return await _applied(box, "".join(sections))
    except PatchError:
        if len(sections) == 1:
            return {}
    half = len(sections) // 2
    return await _patched(box, sections[:half]) | await _patched(box, sections[half:])


async def _applied(box: Sandbox, patch: str) -> dict[str, bytes]:
    """Return the files that result from a patch. Raises PatchError if it does not apply to the tree."""
    if not patch:
        return {}
    before = await box.fetch_files(await asyncio.to_thread(touched, patch))
    changes = await asyncio.to_thread(apply_patch, before, patch)
    return {path: state.data for path, state in changes.files.items()}


def _is_source(path: str) -> bool:
    return PurePosixPath(path).suffix in _SOURCE


def _files_of(answer: TaskAnswer) -> set[str]:
    """Return the files in the names of required tests, and every possible ``conftest.py`` above them."""
    paths: set[str] = set()
    for test in (*answer.fail_to_pass, *answer.pass_to_pass):
        path, separator, _ = test.partition("::")
        if separator and _is_source(path) and is_plain(path):
            paths.add(path)
            paths.update(f"{parent}/conftest.py".removeprefix("./") for parent in PurePosixPath(path).parents)
    return paths


def _hashed(contents: Mapping[str, bytes]) -> dict[str, str]:
    """Return path → hash. Call in a thread: hashing releases the interpreter's lock."""
    return {path: hashlib.sha256(content).hexdigest() for path, content in contents.items()}
