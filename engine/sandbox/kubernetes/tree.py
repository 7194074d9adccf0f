"""Pristine workdir of a pod: its state before the first command, and the original content of its files.

Stamps are taken in the sandbox's container before any command; contents come from the ``pristine`` one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from engine.errors import SandboxStartError
from engine.patches.trees import FileState
from engine.sandbox.agent_sandbox import batches, fetch_files, list_tree
from engine.sandbox.client import AgentClient
from engine.sandbox.responses import Stamp


class PodTree:
    """Pristine tree of a pod (``engine.sandbox.agent_sandbox.BaseTree``)."""

    def __init__(self, stamps: Mapping[str, Stamp], workdir: str, pristine: AgentClient) -> None:
        self._stamps = stamps
        self._workdir = workdir
        self._pristine = pristine
        self._loop = asyncio.get_running_loop()

    def stamps(self) -> Mapping[str, Stamp]:
        """Return the stamps of the files; see ``BaseTree``."""
        return self._stamps

    def states(self, names: Sequence[str]) -> dict[str, FileState]:
        """Return the original files; see ``BaseTree``. Blocks the thread. Raises SandboxError."""
        return asyncio.run_coroutine_threadsafe(self._fetch(names), self._loop).result()

    async def _fetch(self, names: Sequence[str]) -> dict[str, FileState]:
        states: dict[str, FileState] = {}
        for batch in batches(names, self._stamps):
            states |= await fetch_files(self._pristine, self._workdir, batch)
        return states


async def take_stamps(client: AgentClient, workdir: str, image: str) -> Mapping[str, Stamp]:
    """Return the stamps of the workdir of a sandbox in which nothing has run yet.

    Raises:
        SandboxStartError: the image has no such folder.
    """
    try:
        return await list_tree(client, workdir)
    except OSError as error:
        raise SandboxStartError(f"image '{image}' has no folder {workdir}: {error.strerror}") from error
