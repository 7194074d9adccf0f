"""Image registries: check that a run may use them; cleaning of their error messages."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from engine.build_contexts import NOT_PULLED
from engine.config.access.places import ANY
from engine.config.sandbox import SandboxConfig
from engine.errors import PreflightError

_TAG_OR_DIGEST = re.compile(r"(@[^@]+|:[^:/]+)$")


def with_registry(image: str) -> str:
    """Return an image reference that names its registry."""
    first, slash, _ = image.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return image
    return f"docker.io/{image}" if slash else f"docker.io/library/{image}"


def refused_registry(image: str, config: SandboxConfig) -> str:
    """Return why an image may not be pulled from its registry; empty when it may, or is not pulled."""
    if config.backend == "local" or not image or image.startswith(NOT_PULLED):
        return ""
    mirrors = config.kubernetes.mirrors if config.backend == "kubernetes" else ()
    return unlisted_registry(image, config.registries, mirrors)


def unlisted_registry(image: str, registries: Collection[str], mirrors: Iterable[str] = ()) -> str:
    """Return the refusal of an image from an unlisted registry; empty when it is listed."""
    reference = with_registry(image)
    host = reference.partition("/")[0].lower()
    if (
        ANY in registries
        or host in registries
        or any(name.startswith(prefix) for name in (image, reference) for prefix in mirrors)
    ):
        return ""
    return (
        f"image '{image}' is from '{host}', which is not among the registries of this run "
        f"({', '.join(registries) or 'there is none'}): name it in sandbox.registries, and have the "
        "administrator add it to TRAINYARD_IMAGE_REGISTRIES"
    )


def check_registries(images: Iterable[str], config: SandboxConfig) -> None:
    """Raise PreflightError where an image may not be pulled, before a run starts with it."""
    for image in dict.fromkeys(images):
        if refusal := refused_registry(image, config):
            raise PreflightError(refusal)


def without_image(said: str, image: str) -> str:
    """Remove an image's name, which may itself contain ``429`` or ``unknown``, from a registry's error."""
    repository = _TAG_OR_DIGEST.sub("", image)
    for name in (image, repository, repository.partition("/")[2]):
        said = said.replace(name, "") if name else said
    return said
