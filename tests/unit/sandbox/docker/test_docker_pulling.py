"""Pull errors: permanent or temporary by the registry's message, regardless of the image's name."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import docker.errors
import pytest

from engine.config.sandbox import DockerConfig
from engine.errors import ImageError
from engine.sandbox.docker.pull import pull


def failed_pull(image: str, explanation: str) -> tuple[int, str]:
    """Pull from a registry that always fails with ``explanation``; return the attempts and the error."""
    asked = 0

    def fail(*_names: Any, **_options: Any) -> None:
        nonlocal asked
        asked += 1
        raise docker.errors.APIError("refused", explanation=explanation)

    daemon: Any = SimpleNamespace(client=SimpleNamespace(pull=fail))
    with pytest.raises(ImageError) as caught:
        pull(daemon, image, DockerConfig(pull_retries=2, pull_backoff_s=0.001), lambda _: None)
    return asked, str(caught.value)


def test_missing_image_is_not_retried_whatever_its_name() -> None:
    for image in ("swe/django-14290", "registry.test:5000/team/timeout-decorator", "plain/name"):
        for explanation in (
            "manifest for {} not found: manifest unknown",
            "pull access denied for {}: may not exist",
        ):
            asked, message = failed_pull(f"{image}:latest", explanation.format(image))
            assert asked == 1, (image, explanation)
            assert f"{image}:latest" in message


def test_pull_stops_when_the_image_exceeds_the_size_limit() -> None:
    layers = [
        {"id": f"layer{n}", "status": "Downloading", "progressDetail": {"total": 10**9}} for n in (1, 2)
    ]
    read: list[str] = []

    def events() -> Iterator[dict[str, Any]]:
        for layer in layers:
            read.append(str(layer["id"]))
            yield layer
        raise AssertionError("read on")

    daemon: Any = SimpleNamespace(client=SimpleNamespace(pull=lambda *_, **__: events()))
    with pytest.raises(ImageError, match=r"has 2\.0 GB to pull, more than sandbox\.docker\.max_pull_gb"):
        pull(daemon, "acme/large:1", DockerConfig(max_pull_gb=1.5), lambda _: None)
    assert read == ["layer1", "layer2"]


def test_busy_registry_is_retried_whatever_the_name_of_the_image() -> None:
    for image in ("test/unknown", "test/denied-oops", "plain/name"):
        for explanation in ("toomanyrequests for {}", "net/http: TLS handshake timeout ({})", "EOF {}"):
            assert failed_pull(image, explanation.format(image))[0] == 3, (image, explanation)
