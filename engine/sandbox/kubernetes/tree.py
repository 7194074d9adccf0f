"""The pristine workdir of a pod: how it looked before the first command, and what its files held.

The stamps are the sandbox's own, taken before anything ran in it; contents come from the other container.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from engine.errors import SandboxStartError
from engine.sandbox.client import AgentClient
from engine.sandbox.patches import IGNORED, FileState
from engine.sandbox.remote import Stamp, parse_tree

_FILES_S = 60.0


class PodTree:
    """Implements ``engine.sandbox.remote.PristineTree``."""

    def __init__(self, stamps: Mapping[str, Stamp], workdir: str, pristine: AgentClient) -> None:
        self._stamps = stamps
        self._workdir = workdir
        self._pristine = pristine
        self._loop = asyncio.get_running_loop()

    def stamps(self) -> Mapping[str, Stamp]:
        """See ``PristineTree``."""
        return self._stamps

    def state(self, name: str) -> FileState | None:
        """See ``PristineTree``; blocks, so call it outside of the event loop. Raises SandboxError."""
        return asyncio.run_coroutine_threadsafe(self._fetch(name), self._loop).result()

    async def _fetch(self, name: str) -> FileState | None:
        reply = await self._pristine.call("fetch", timeout_s=_FILES_S, path=self._workdir, names=[name])
        row = reply["files"][0]
        return None if row is None else FileState(*row)


async def take_stamps(client: AgentClient, workdir: str, image: str) -> Mapping[str, Stamp]:
    """The workdir of a sandbox in which nothing has run yet.

    Raises:
        SandboxStartError: the image has no such folder.
    """
    try:
        reply = await client.call("tree", timeout_s=_FILES_S, path=workdir, skip=list(IGNORED))
    except OSError as error:
        raise SandboxStartError(f"image '{image}' has no folder {workdir}: {error.strerror}") from error
    return parse_tree(reply["tree"])
