"""Puts a patch onto a grading sandbox's tree, with the fallbacks of the official harness.

``git apply`` first, then what swebench tries: ``engine.patches.harness``. All of it happens on the host, on
copies of the few files a patch touches; the sandbox's tree changes completely or not at all. Contents that
the patch names as what it was made from come out of the sandbox's repository, as ``--3way`` needs them.

Where it is not the harness: that one throws away what an image holds uncommitted before it tries again, here
it stays, for a task's setup is such a change. Patches of more than ``MAX_FILES`` files get no fallback.
"""

from __future__ import annotations

import asyncio
import posixpath
import re
import stat

from engine.errors import PatchError
from engine.patches.apply import touched
from engine.patches.diff import diff_trees
from engine.patches.harness import apply_as_harness
from engine.patches.trees import FileState
from engine.sandbox.base import Sandbox

MAX_FILES = 500
_COMMAND_S = 30.0
_BLOBS_BYTES = 64 << 20
_PREIMAGE = re.compile(r"^index ([0-9a-f]{4,64})\.\.", re.MULTILINE)
_CAT_FILES = ["git", "-c", "safe.directory=*", "cat-file", "--batch"]


async def apply_with_fallbacks(box: Sandbox, patch: str) -> str:
    """Apply a patch; returns how, for people: empty for plainly.

    Raises:
        PatchError: no way led to success; the message is ``git apply``'s.
    """
    try:
        await box.apply_patch(patch)
    except PatchError as error:
        names = await asyncio.to_thread(touched, patch)
        if len(names) > MAX_FILES:
            raise
        before = await _states(box, names)
        blobs = await _preimages(box, patch)
        try:
            after, how = await asyncio.to_thread(apply_as_harness, before, patch, blobs)
        except PatchError:
            raise error from None
        await box.apply_patch(await asyncio.to_thread(diff_trees, before, after))
        return how
    return ""


async def _states(box: Sandbox, names: list[str]) -> dict[str, FileState]:
    """Files and symlinks among ``names`` as they are in the workdir."""
    states: dict[str, FileState] = {}
    for name in names:
        path = posixpath.join(box.spec.workdir, name)
        found = await box.exec(["stat", "-c", "%f", "--", path], timeout_s=_COMMAND_S)
        if found.exit_code != 0:
            continue
        mode = int(found.stdout, 16)
        try:
            if stat.S_ISLNK(mode):
                target = await box.exec(["readlink", "-n", "--", path], timeout_s=_COMMAND_S)
                states[name] = FileState(mode, target.stdout)
            elif stat.S_ISREG(mode):
                states[name] = FileState(mode, await box.read_file(path))
        except (OSError, ValueError):
            continue
    return states


async def _preimages(box: Sandbox, patch: str) -> list[bytes]:
    """What the patch was made from, as far as the sandbox's repository has it."""
    wanted = list(dict.fromkeys(_PREIMAGE.findall(patch)))[:MAX_FILES]
    if not wanted:
        return []
    done = await box.exec(
        _CAT_FILES,
        timeout_s=_COMMAND_S,
        cwd=box.spec.workdir,
        stdin="".join(f"{name}\n" for name in wanted).encode(),
        output_cap=_BLOBS_BYTES,
    )
    return [] if done.dropped_bytes else _blobs(done.stdout)


def _blobs(listing: bytes) -> list[bytes]:
    """Contents in the output of ``git cat-file --batch``."""
    found: list[bytes] = []
    position = 0
    while (end := listing.find(b"\n", position)) >= 0:
        header = listing[position:end].split(b" ")
        position = end + 1
        if len(header) == 3 and header[2].isdigit():
            size = int(header[2])
            if header[1] == b"blob":
                found.append(listing[position : position + size])
            position += size + 1
    return found
