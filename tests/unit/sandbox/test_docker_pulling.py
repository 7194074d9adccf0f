"""What a registry's words mean: come back later, or never; an image's own name means nothing."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import docker.errors
import pytest

from engine.config.sandbox import DockerConfig
from engine.errors import ImageError
from engine.sandbox.docker.pull import pull


def refused(image: str, said: str) -> tuple[int, str]:
    """How often a registry that always says this is asked for an image, and what is made of it."""
    asked = 0

    def fail(*_names: Any, **_options: Any) -> None:
        nonlocal asked
        asked += 1
        raise docker.errors.APIError("refused", explanation=said)

    daemon: Any = SimpleNamespace(client=SimpleNamespace(pull=fail))
    with pytest.raises(ImageError) as caught:
        pull(daemon, image, DockerConfig(pull_retries=2, pull_backoff_s=0.001), lambda _: None)
    return asked, str(caught.value)


def test_a_missing_image_is_believed_at_once_whatever_its_name() -> None:
    for image in ("swe/django-14290", "registry.test:5000/team/timeout-decorator", "plain/name"):
        for said in (
            "manifest for {} not found: manifest unknown",
            "pull access denied for {}: may not exist",
        ):
            asked, message = refused(f"{image}:latest", said.format(image))
            assert asked == 1, (image, said)
            assert f"{image}:latest" in message


def test_a_pull_ends_where_the_image_is_larger_than_the_run_may_pull() -> None:
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


def test_a_busy_registry_is_asked_again_whatever_the_images_name() -> None:
    for image in ("test/unknown", "test/denied-oops", "plain/name"):
        for said in ("toomanyrequests for {}", "net/http: TLS handshake timeout ({})", "EOF {}"):
            assert refused(image, said.format(image))[0] == 3, (image, said)
