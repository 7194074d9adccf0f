"""Image pulls: credentials, progress, and retries for busy registries.

Requests to a busy or unreachable registry are retried with exponential backoff and jitter, so that many
machines do not return at once. A refusal (missing, denied) is final. Registries report it only as text: add
new phrases to ``_FINAL``.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import docker
import docker.auth
import docker.errors
import docker.utils
import requests
import stamina

from engine.config.sandbox import DockerConfig
from engine.errors import ImageError
from engine.sandbox.docker.daemon import Daemon
from engine.sandbox.registries import without_image

_MAX_PAUSE_S = 120.0
_REPORT_S = 5.0
_FINAL = re.compile(
    r"not found|unknown|does not exist|denied|unauthorized|authentication required|no basic auth|forbidden|"
    r"invalid reference|no matching manifest|no space left|unsupported",
    re.IGNORECASE,
)
_BUSY = re.compile(r"toomanyrequests|too many requests|429|rate limit|timeout|unknown blob", re.IGNORECASE)


@dataclass(slots=True)
class PullProgress:
    """Progress of a pull over all layers known so far."""

    image: str
    layers: dict[str, tuple[int, int, bool]] = field(default_factory=dict)
    """Layer → bytes fetched, total bytes, whether complete."""

    def feed(self, event: Mapping[str, Any]) -> None:
        """Process one message of the daemon."""
        layer, status = event.get("id"), str(event.get("status", ""))
        if not layer or status.startswith("Pulling from"):
            return
        done, total, _ = self.layers.get(layer, (0, 0, False))
        detail = event.get("progressDetail") or {}
        if status == "Downloading":
            done, total = int(detail.get("current", done)), int(detail.get("total", total))
        complete = status in ("Pull complete", "Already exists")
        self.layers[layer] = (total if complete else done, total, complete)

    @property
    def total_bytes(self) -> int:
        """Return the size of the layers known so far."""
        return sum(total for _, total, _ in self.layers.values())

    def __str__(self) -> str:
        """Return the progress as one line."""
        done, total = (sum(layer[part] for layer in self.layers.values()) / 1e6 for part in (0, 1))
        complete = sum(layer[2] for layer in self.layers.values())
        return f"{self.image}: {complete} of {len(self.layers)} layers, {done:.0f} of {total:.0f} MB"


def pull(daemon: Daemon, image: str, config: DockerConfig, report: Callable[[str], None]) -> None:
    """Fetch an image; blocks.

    Args:
        daemon: the daemon that fetches the image.
        image: the image's reference.
        config: retries, size limit and credentials.
        report: called with a line every few seconds.

    Raises:
        ImageError: the registry refuses, all attempts failed, or the image is too large.
    """
    attempts = stamina.retry_context(
        on=_BusyRegistryError,
        attempts=config.pull_retries + 1,
        timeout=None,
        wait_initial=config.pull_backoff_s,
        wait_max=_MAX_PAUSE_S,
        wait_jitter=config.pull_backoff_s,
    )
    try:
        for attempt in attempts:
            with attempt:
                _attempt(daemon.client, image, config, report)
    except _BusyRegistryError as error:
        raise ImageError(
            f"image '{image}' could not be pulled in {config.pull_retries + 1} attempts: {error}"
        ) from error


class _BusyRegistryError(Exception):
    """A pull failed with a transient error."""


def _attempt(
    client: docker.APIClient, image: str, config: DockerConfig, report: Callable[[str], None]
) -> None:
    try:
        _pull_once(client, image, config, report)
    except (docker.errors.DockerException, requests.exceptions.RequestException, OSError) as error:
        message = str(getattr(error, "explanation", None) or error)
        reason = without_image(message, image)
        if _FINAL.search(reason) and not _BUSY.search(reason):
            raise ImageError(_refusal(image, message)) from error
        report(f"{image}: {message}")
        raise _BusyRegistryError(message) from error


def _refusal(image: str, said: str) -> str:
    hint = ""
    if re.search(r"denied|unauthorized|authentication|basic auth", said, re.IGNORECASE):
        hint = "; if it is private, run `docker login` or set sandbox.docker.registry_config"
    return f"image '{image}' cannot be pulled: {said}{hint}"


def _pull_once(
    client: docker.APIClient, image: str, config: DockerConfig, report: Callable[[str], None]
) -> None:
    repository, tag = docker.utils.parse_repository_tag(image)
    events = client.pull(
        repository,
        tag=tag or "latest",
        stream=True,
        decode=True,
        auth_config=_credentials(repository, config),
    )
    progress, reported = PullProgress(image), time.monotonic()
    for event in events:
        if "error" in event:
            raise docker.errors.DockerException(event["error"])
        progress.feed(event)
        if progress.total_bytes > config.max_pull_gb * 1e9:
            raise ImageError(
                f"image '{image}' has {progress.total_bytes / 1e9:.1f} GB to pull, more than "
                f"sandbox.docker.max_pull_gb ({config.max_pull_gb:g}): raise it, or use a smaller image"
            )
        if time.monotonic() - reported > _REPORT_S:
            report(str(progress))
            reported = time.monotonic()


def _credentials(repository: str, config: DockerConfig) -> dict[str, Any] | None:
    """Read the configured credentials; None makes the SDK use the user's own."""
    if not config.registry_config:
        return None
    registry, _ = docker.auth.resolve_repository_name(repository)
    known = docker.auth.load_config(config_path=config.registry_config)
    credentials: dict[str, Any] | None = known.resolve_authconfig(registry)
    return credentials or {}
