"""Puts a patch onto a grading sandbox's tree, with the fallbacks of the official harness.

``git apply`` first; then, as swebench does, ``patch --fuzz=5``, and last the check whether the patch
is there already. Its ``git apply --reject`` adds nothing: a rejected hunk is a failure. ``--3way`` needs
blobs of the repository's history, which the host does not have; ``patch`` covers the same cases. All of it
happens on the host, on copies of the few files a patch touches; the sandbox's tree changes completely or not
at all.
"""

from __future__ import annotations

import asyncio
import posixpath

from engine.errors import PatchError
from engine.sandbox.base import Sandbox
from engine.sandbox.patches import FileState, apply_fuzzily, is_applied, make_patch, touched

_COMMAND_S = 30.0


async def apply_with_fallbacks(box: Sandbox, patch: str) -> str:
    """Apply a patch; returns how, for people: empty for plainly.

    Raises:
        PatchError: no way led to success; the message is ``git apply``'s.
    """
    try:
        await box.apply_patch(patch)
    except PatchError as error:
        before = await _states(box, touched(patch))
        try:
            after = await asyncio.to_thread(apply_fuzzily, before, patch)
        except PatchError:
            if await asyncio.to_thread(is_applied, before, patch):
                return "the patch was there already"
            raise error from None
        await box.apply_patch(await asyncio.to_thread(make_patch, before, after))
        return "the patch applied with fuzz only"
    return ""


async def _states(box: Sandbox, names: list[str]) -> dict[str, FileState]:
    """Regular files among ``names`` as they are in the workdir."""
    states: dict[str, FileState] = {}
    for name in names:
        path = posixpath.join(box.spec.workdir, name)
        try:
            data = await box.read_file(path)
        except (OSError, ValueError):
            continue
        found = await box.exec(["stat", "-c", "%f", "--", path], timeout_s=_COMMAND_S)
        if found.exit_code == 0:
            states[name] = FileState(int(found.stdout, 16), data)
    return states
