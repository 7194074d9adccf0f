"""What a registry's words mean: come back later, or never; an image's own name means nothing."""

from __future__ import annotations

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


@pytest.mark.parametrize("registry", ["", "registry.test:5000/"])
@pytest.mark.parametrize("name", ["swe/django-14290", "team/timeout-decorator", "plain/name"])
@pytest.mark.parametrize(
    "said", ["manifest for {} not found: manifest unknown", "pull access denied for {}: may not exist"]
)
def test_a_missing_image_is_believed_at_once_whatever_its_name(registry: str, name: str, said: str) -> None:
    asked, message = refused(f"{registry}{name}:latest", said.format(f"{registry}{name}"))
    assert asked == 1
    assert f"{registry}{name}:latest" in message


@pytest.mark.parametrize("name", ["test/unknown", "test/denied-oops", "plain/name"])
@pytest.mark.parametrize("said", ["toomanyrequests for {}", "net/http: TLS handshake timeout ({})", "EOF {}"])
def test_a_busy_registry_is_asked_again_whatever_the_images_name(name: str, said: str) -> None:
    assert refused(name, said.format(name))[0] == 3
