"""The registry that the fake nodes pull from: image references and the local images behind them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from engine.sandbox.local.images import image_exists

_LOCAL = "local:"


@dataclass(frozen=True, slots=True)
class RegistryImage:
    """What a reference stands for."""

    local: str | None
    """The local image that its containers run; None for one whose containers only exist (pause, helpers)."""
    pull_s: float = 0.0
    """How long a node takes to pull it."""


class Registry:
    """Image references that can be pulled. ``local:NAME`` always stands for the local image of that name.

    Args:
        home: the data folder that holds the local images.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self._images: dict[str, RegistryImage] = {}

    def add(self, reference: str, local: str | None = None, *, pull_s: float = 0.0) -> None:
        """Make a reference known."""
        self._images[reference] = RegistryImage(local, pull_s)

    def find(self, reference: str) -> RegistryImage | None:
        """The image, or None when there is no such thing."""
        found = self._images.get(reference)
        if found is None and reference.startswith(_LOCAL) and image_exists(self.home, reference):
            return RegistryImage(reference.removeprefix(_LOCAL))
        return found


class NodeImages:
    """What one node has pulled; it pulls one image at a time, as a kubelet does by default."""

    def __init__(self) -> None:
        self.present: dict[str, RegistryImage] = {}
        self._lock = asyncio.Lock()

    async def pull(self, reference: str, image: RegistryImage) -> None:
        """Take the time of a pull, once."""
        async with self._lock:
            if reference not in self.present:
                await asyncio.sleep(image.pull_s)
                self.present[reference] = image
