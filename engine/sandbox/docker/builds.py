"""Builds of images from a dataset's Dockerfile, where the administrator has granted a network for them.

A Dockerfile is untrusted code. Its commands run in containers with the granted network (``none``: no access),
a memory limit and a deadline, without build arguments, secrets or proxies of this machine. The daemon cannot
limit disk use during a build, so a result that is too large is removed. Base images and sources of ``COPY``
must come from listed registries: the daemon reports each step before it pulls an image for it. Triggers of
a base image (``ONBUILD``) are reported without their images, so with listed registries they end the build.
"""

from __future__ import annotations

import hashlib
import io
import re
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import docker
import docker.errors
import requests
import urllib3.exceptions

from engine.build_contexts import PREFIX, context_path
from engine.config.access.places import ANY
from engine.config.sandbox import DockerConfig
from engine.errors import ImageError
from engine.sandbox.docker.daemon import Daemon
from engine.sandbox.registries import unlisted_registry

REPOSITORY = "trainyard/built"
_TAIL = 2_000
_STEP = re.compile(r"Step (\d+)/(\d+) : (\w+)\s+(.*)", re.DOTALL)
_FROM = re.compile(r"(?:--\S+\s+)*(\S+)(?:\s+AS\s+([a-z][\w.-]*))?\s*", re.IGNORECASE)
_COPIED = re.compile(r"--from=(\S+)", re.IGNORECASE)
_QUOTED_FLAG = re.compile(r"(?:--\S+\s+)*--\S*[\\`\"']")
"""Flags of an instruction, the last with quotes or backslashes, which Docker would remove."""
_TRIGGERS = re.compile(r"# Executing \d+ build trigger")


def build(
    daemon: Daemon, home: Path, name: str, config: DockerConfig, *, registries: Collection[str] = (ANY,)
) -> str:
    """Build the image ``dockerfile:<hash>`` if it is missing, and return its id; blocks.

    Raises:
        ImageError: builds are not granted, the context is missing, an image is of an unlisted registry, or
            the build failed, took too long or became too large; the message has the end of its output.
    """
    try:
        path = context_path(home, name)
    except ValueError as error:
        raise ImageError(str(error)) from None
    tag = tag_of(name, registries)
    return daemon.do(
        lambda client: _present(client, tag) or _build(client, path, name, tag, config, registries)
    )


def tag_of(name: str, registries: Collection[str]) -> str:
    """Return the tag of a built image, which depends on the allowed registries."""
    allowed = hashlib.sha256(" ".join(sorted(registries)).encode()).hexdigest()[:8]
    return f"{REPOSITORY}:{name.removeprefix(PREFIX)}-{allowed}"


def _present(client: docker.APIClient, tag: str) -> str:
    try:
        return str(client.inspect_image(tag)["Id"])
    except docker.errors.ImageNotFound:
        return ""


class _Steps:
    """Steps of a build, which the daemon reports before it executes them.

    The same stream contains the output of commands, so a step out of sequence ends the build.
    """

    def __init__(self, name: str, registries: Collection[str]) -> None:
        self._name, self._registries = name, registries
        self._stages: set[str] = {"scratch"}
        self._stage = ""
        """Name of the current stage, which only later stages can use; within the stage it names an image."""
        self._last, self._count = 0, ""
        self.has_begun = ANY in registries
        """Whether a FROM step was checked, or all registries are allowed."""

    def check(self, output: str) -> None:
        """Raise ImageError if a step names an image of an unlisted registry or cannot be checked."""
        if ANY in self._registries:
            return
        if _TRIGGERS.match(output):
            raise ImageError(
                f"image '{self._name}' is not built: its base image has ONBUILD triggers, whose registries "
                "cannot be checked"
            )
        step = _STEP.match(output)
        if step is None:
            return
        self._last, self._count = self._last + 1, self._count or step[2]
        if (int(step[1]), step[2]) != (self._last, self._count):
            raise ImageError(f"image '{self._name}' is not built: its output imitates steps of the build")
        instruction, rest = step[3].upper(), step[4]
        if instruction == "FROM" and (source := _FROM.fullmatch(rest)):
            self.has_begun = True
            self._stages.add(self._stage)
            self._check_image(source[1])
            self._stage = (source[2] or "").lower()
        elif instruction == "FROM":
            raise ImageError(f"image '{self._name}': 'FROM {rest.strip()}' could not be read")
        if instruction == "ONBUILD":
            instruction, _, rest = re.sub(r"\s+", " ", rest).partition(" ")
        if instruction.upper() not in ("COPY", "ADD"):
            return
        if _QUOTED_FLAG.match(rest):
            raise ImageError(f"image '{self._name}' is not built: '{rest.strip()}' has quotes in a flag")
        for image in _COPIED.findall(rest):
            if not image.isdigit():  # number of a stage
                self._check_image(image)

    def _check_image(self, image: str) -> None:
        if image.lower() in self._stages:
            return
        refusal = (
            f"'{image}' has a variable: name the image itself, so that its registry can be checked"
            if "$" in image
            else unlisted_registry(image, self._registries)
        )
        if refusal:
            raise ImageError(f"image '{self._name}' is not built: {refusal}")


def _build(
    client: docker.APIClient,
    path: Path,
    name: str,
    tag: str,
    config: DockerConfig,
    registries: Collection[str],
) -> str:
    if not config.build_network:
        raise ImageError(
            f"image '{name}' must be built from the Dockerfile of its task, and builds are off: have the "
            "administrator grant sandbox.docker.build_network ('none' for builds without network) and set it"
        )
    try:
        context = path.read_bytes()
    except FileNotFoundError:
        raise ImageError(f"image '{name}' has no build context {path}: import its dataset again") from None
    memory, steps = config.build_memory_mb << 20, _Steps(name, registries)
    events = client.build(
        fileobj=io.BytesIO(context),
        custom_context=True,
        encoding="gzip",
        tag=tag,
        rm=True,
        forcerm=True,
        decode=True,
        network_mode=config.build_network,
        container_limits={"memory": memory, "memswap": memory},
        timeout=config.build_timeout_s,
        use_config_proxy=False,
    )
    _follow(events, name, config.build_timeout_s, steps)
    image = client.inspect_image(tag)
    if not steps.has_begun:
        client.remove_image(tag, force=True)
        raise ImageError(f"image '{name}' is not used: the daemon did not report the steps of its build")
    size_mb = image["Size"] >> 20
    if size_mb >= config.build_disk_mb:
        client.remove_image(tag, force=True)
        raise ImageError(
            f"image '{name}' has {size_mb} MiB; at most {config.build_disk_mb} MiB are allowed "
            "(sandbox.docker.build_disk_mb)"
        )
    return str(image["Id"])


def _follow(events: Any, name: str, timeout_s: float, steps: _Steps) -> None:
    """Read a build's events to their end. Raises ImageError when it is refused, fails or exceeds its time."""
    deadline = time.monotonic() + timeout_s
    tail = ""
    too_long = f"building image '{name}' took more than {timeout_s:g} s (sandbox.docker.build_timeout_s)"
    try:
        for event in events:
            tail = f"{tail}{event.get('stream', '')}"[-_TAIL:]
            if "error" in event:
                raise ImageError(f"building image '{name}' failed: {event['error']}\n{tail}")
            steps.check(str(event.get("stream", "")))
            if time.monotonic() > deadline:
                raise ImageError(f"{too_long}\n{tail}")
    except (requests.exceptions.RequestException, urllib3.exceptions.TimeoutError):
        if time.monotonic() < deadline:
            raise
        raise ImageError(f"{too_long}\n{tail}") from None
    finally:
        events.close()  # ends a build that still runs
