"""Resolution of image references for the cluster's nodes."""

from __future__ import annotations

from engine.build_contexts import PREFIX
from engine.config.kubernetes import KubernetesConfig
from engine.errors import ImageError
from engine.sandbox.registries import with_registry

_LOCAL = "local:"


def resolve_image(config: KubernetesConfig, image: str) -> str:
    """Return the image reference for the nodes: ``image`` mapped through the configured mirrors.

    Raises:
        ImageError: a local image, one to build, or one without a digest where that is required.
    """
    if image.startswith(_LOCAL):
        if config.allow_local_images:
            return image
        raise ImageError(
            f"image '{image}' exists only on this machine: push it to a registry that the cluster can reach "
            "and use its reference there"
        )
    if image.startswith(PREFIX):
        raise ImageError(
            f"image '{image}' is built from a Dockerfile, which only the Docker backend does: build it, push "
            "it to a registry and name it in the task"
        )
    if config.require_digest and "@sha256:" not in image:
        raise ImageError(
            f"image '{image}' has no digest: write REPOSITORY@sha256:…, or allow it with require_digest=false"
        )
    for reference in (image, with_registry(image)):
        for prefix in sorted(config.mirrors, key=len, reverse=True):
            if reference.startswith(prefix):
                return config.mirrors[prefix] + reference[len(prefix) :]
    return image
