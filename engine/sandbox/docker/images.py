"""Images of one daemon: fetched when missing, kept within a disk budget.

All callers of an image wait for the same pull. The time of each image's last use is stored next to the
ledger, where all processes read it. Beyond the budget the least recently used images that Trainyard fetched
are removed, unless a container uses them. ``local:…`` names an image of this machine (``local_images``),
``dockerfile:…`` an image to build (``builds``).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import docker
import docker.errors
import structlog

from engine.build_contexts import PREFIX
from engine.config.access.places import ANY
from engine.config.sandbox import DockerConfig
from engine.errors import ImageError, SandboxError, SandboxStartError
from engine.files import atomic_write
from engine.sandbox.docker.builds import build
from engine.sandbox.docker.daemon import Daemon
from engine.sandbox.docker.image import DockerImage
from engine.sandbox.docker.local_images import import_local
from engine.sandbox.docker.pull import pull
from engine.sandbox.local.images import load_image

_LOCAL = "local:"
_log = structlog.get_logger(__name__)


class Images:
    """The images of one daemon.

    Args:
        daemon: the daemon that stores the images.
        config: timeouts, credentials and budget.
        home: the data folder.
        registries: hosts of the base images allowed in Dockerfiles; ``*`` for any.
    """

    def __init__(
        self, daemon: Daemon, config: DockerConfig, home: Path, *, registries: Collection[str] = (ANY,)
    ) -> None:
        self._daemon = daemon
        self._config = config
        self._registries = registries
        self._home = home
        self._used = home / "sandboxes" / "docker-images"
        self._known: dict[str, DockerImage] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pulls: dict[str, asyncio.Task[DockerImage]] = {}
        self._places = asyncio.Semaphore(config.max_pulling)

    async def ensure(self, name: str) -> tuple[DockerImage, float]:
        """Return an image, fetched if missing, and the seconds the fetch took.

        Raises:
            ImageError: the image cannot be pulled, built or imported.
            SandboxStartError: the daemon does not answer.
        """
        began = time.monotonic()
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._pulls = loop, {}
            self._places = asyncio.Semaphore(self._config.max_pulling)
        key = f"{name} {local_version(self._home, name)}" if name.startswith(_LOCAL) else name
        image = self._known.get(key)
        if image is None:
            task = self._pulls.get(key)
            if task is None:
                task = self._pulls[key] = loop.create_task(self._find(name))
                task.add_done_callback(lambda _: self._pulls.pop(key, None))
            image = self._known[key] = await asyncio.shield(task)
        self._touch(image)
        return image, time.monotonic() - began

    def forget(self, name: str) -> None:
        """Forget the cached image; it was removed outside of this process."""
        self._known = {key: image for key, image in self._known.items() if image.name != name}

    async def remove(self, name: str) -> None:
        """Remove an image that no container uses any more. Raises SandboxError."""
        image, _ = await self.ensure(name)
        await self._daemon.call(lambda client: client.remove_image(image.id, force=True))
        self._record(image.id).unlink(missing_ok=True)
        self.forget(name)

    async def _find(self, name: str) -> DockerImage:
        if name.startswith(_LOCAL):
            image = await asyncio.to_thread(import_local, self._daemon, self._home, name)
            await self._record_fetched(image)
        elif name.startswith(PREFIX):
            async with self._places:
                built = await asyncio.to_thread(
                    build, self._daemon, self._home, name, self._config, registries=self._registries
                )
            image = DockerImage(id=built, name=name)
            await self._record_fetched(image)
        else:
            image_id = await self._daemon.call(lambda client: _inspect(client, name))
            image = DockerImage(id=image_id or await self._pull(name), name=name)
            if image_id is None:
                await self._record_fetched(image)
        return image

    async def _record_fetched(self, image: DockerImage) -> None:
        """Record a fetched image; remove old ones beyond the budget, which may fail and is then logged."""
        self._used.mkdir(parents=True, exist_ok=True)
        record = self._record(image.id)
        atomic_write(record, json.dumps({"id": image.id, "name": image.name}))
        try:
            await self._daemon.call(self._make_room)
        except SandboxError as error:
            _log.warning("no room could be made for images", error=str(error))

    async def _pull(self, name: str) -> str:
        async with self._places:
            await asyncio.to_thread(pull, self._daemon, name, self._config, _log.info)
        image_id = await self._daemon.call(lambda client: _inspect(client, name))
        if image_id is None:
            raise ImageError(f"image '{name}' was pulled and is gone again: is the disk full?")
        return image_id

    def _record(self, image_id: str) -> Path:
        return self._used / f"{hashlib.sha256(image_id.encode()).hexdigest()[:24]}.json"

    def _touch(self, image: DockerImage) -> None:
        try:
            os.utime(self._record(image.id))
        except FileNotFoundError:  # not fetched by Trainyard, so never removed by it
            pass

    def _records(self) -> list[tuple[str, Path]]:
        """Return ids and records of images fetched by Trainyard, least recently used first."""
        records = []
        for path in self._used.glob("*.json"):
            try:
                records.append((path.stat().st_mtime, json.loads(path.read_text())["id"], path))
            except FileNotFoundError:
                continue
        return [(image_id, path) for _, image_id, path in sorted(records)]

    def _make_room(self, client: docker.APIClient) -> None:
        if not self._config.image_budget_gb:
            return
        ours = self._records()
        present = {row["Id"]: row for row in client.df()["Images"]}
        used_bytes = _bytes_of([present[known_id] for known_id, _ in ours if known_id in present])
        for image_id, path in ours[:-1]:  # the most recent one was just fetched
            if used_bytes <= self._config.image_budget_gb * 1e9:
                return
            row = present.get(image_id)
            if row is None:
                path.unlink(missing_ok=True)
            elif _remove(client, row):
                _log.info("image removed to make room", image=image_id, tags=row.get("RepoTags"))
                path.unlink(missing_ok=True)
                used_bytes -= row["Size"] - max(0, row.get("SharedSize", 0))
                self._known = {key: image for key, image in self._known.items() if image.id != image_id}


def local_version(home: Path, name: str) -> tuple[int, int]:
    """Return the build version of a local image. Raises ImageError when it is missing."""
    try:
        return load_image(home, name).version
    except SandboxStartError as error:
        raise ImageError(str(error)) from error


def _bytes_of(rows: list[dict[str, Any]]) -> int:
    """Return the total disk use of images: their unshared parts plus the largest shared part."""
    shared = [max(0, row.get("SharedSize", 0)) for row in rows]
    unshared = sum(row["Size"] - part for row, part in zip(rows, shared, strict=True))
    return int(unshared + max(shared, default=0))


def _inspect(client: docker.APIClient, name: str) -> str | None:
    try:
        image_id: str = client.inspect_image(name)["Id"]
    except docker.errors.ImageNotFound:
        return None
    return image_id


def _remove(client: docker.APIClient, row: dict[str, Any]) -> bool:
    """Remove an image by all its names; return False when a container uses it."""
    if row.get("Containers", 0) > 0:
        return False
    names = [tag for tag in row.get("RepoTags") or () if tag != "<none>:<none>"] or [row["Id"]]
    try:
        for name in names:
            client.remove_image(name, force=False)
    except docker.errors.ImageNotFound:
        return True
    except docker.errors.APIError:
        return False
    return True
