"""Application of a patch's graded part to a sandbox's tree, with the fallbacks of the official harness.

The patch is applied on the host, to copies of the few files that it names; ``filter`` selects the changed
files to grade, and only these are written to the sandbox, all or none. ``git apply`` is tried first, then the
fallbacks of swebench: ``engine.patches.harness``. Preimages that ``--3way`` needs are read from the sandbox's
repository.

Difference from the harness: that discards an image's uncommitted changes before a fallback; here they stay,
as a task's setup is such a change. Patches of more than ``MAX_FILES`` files get no fallback.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from engine.errors import PatchError
from engine.grading.submission.filter import FilteredPatch, PatchFilter
from engine.patches.apply import Changes, apply_patch
from engine.patches.harness import apply_as_harness, named_paths
from engine.patches.sections import preimages
from engine.patches.trees import FileState
from engine.sandbox.base import Sandbox
from engine.types import TaskRow

MAX_FILES = 500
_COMMAND_S = 30.0
_BLOBS_BYTES = 64 << 20
_CAT_FILES = ["git", "-c", "safe.directory=*", "cat-file", "--batch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedPatch:
    """Result of applying a patch."""

    filtered: FilteredPatch
    how: str = ""
    """Fallback that succeeded, for display; empty for ``git apply``."""
    problem: str = ""
    """Reason why nothing was applied; empty when it was."""


async def apply_graded(box: Sandbox, patch: str, row: TaskRow) -> AppliedPatch:
    """Apply the graded part of a patch.

    Args:
        patch: git-format, relative to the tree an agent starts with; untrusted.
    """
    filtered = FilteredPatch(changes=Changes({}, ()))
    if not patch.strip():
        return AppliedPatch(filtered=filtered)
    patch_filter = PatchFilter(row)
    rest = patch
    try:
        names = await asyncio.to_thread(named_paths, patch)
        before = patch_filter.visible(await box.fetch_files(names))
        try:
            changes, how = await asyncio.to_thread(apply_patch, before, patch), ""
        except PatchError as error:
            rest, filtered = await asyncio.to_thread(patch_filter.without_left_out, before, patch)
            changes, how = await _apply_otherwise(box, before, rest, error, changed=rest != patch)
        admitted = await asyncio.to_thread(patch_filter.admit, before, changes)
        filtered = replace(
            admitted,
            left_out=tuple(sorted({*filtered.left_out, *admitted.left_out})),
            findings=tuple(dict.fromkeys([*filtered.findings, *admitted.findings])),
        )
        if filtered.changes.paths:
            await box.commit_files(filtered.changes)
    except PatchError as error:
        return AppliedPatch(filtered=filtered, problem=str(error))
    return AppliedPatch(filtered=filtered, how=how)


async def _apply_otherwise(
    box: Sandbox, before: dict[str, FileState], patch: str, error: PatchError, *, changed: bool
) -> tuple[Changes, str]:
    """Apply a patch that ``git apply`` rejected as a whole. Raises ``error`` if every fallback fails."""
    if not patch.strip():
        return Changes({}, ()), ""
    if changed:
        try:
            return await asyncio.to_thread(apply_patch, before, patch), ""
        except PatchError:
            pass
    names = await asyncio.to_thread(named_paths, patch)
    if len(names) > MAX_FILES:
        raise error
    blobs = await _preimages(box, patch)
    try:
        return await asyncio.to_thread(apply_as_harness, before, patch, blobs, names=names)
    except PatchError:
        raise error from None


async def _preimages(box: Sandbox, patch: str) -> list[bytes]:
    """Return the preimages named by the patch that the sandbox's repository has."""
    wanted = preimages(patch)[:MAX_FILES]
    if not wanted:
        return []
    result = await box.exec(
        _CAT_FILES,
        timeout_s=_COMMAND_S,
        cwd=box.spec.workdir,
        stdin="".join(f"{name}\n" for name in wanted).encode(),
        output_cap=_BLOBS_BYTES,
    )
    return [] if result.dropped_bytes else _blobs(result.stdout)


def _blobs(listing: bytes) -> list[bytes]:
    """Return the contents in the output of ``git cat-file --batch``."""
    blobs: list[bytes] = []
    position = 0
    while (end := listing.find(b"\n", position)) >= 0:
        header = listing[position:end].split(b" ")
        position = end + 1
        if len(header) == 3 and header[2].isdigit():
            size = int(header[2])
            if header[1] == b"blob":
                blobs.append(listing[position : position + size])
            position += size + 1
    return blobs
