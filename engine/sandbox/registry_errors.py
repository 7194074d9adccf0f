"""Error messages of image registries, as Docker daemons and kubelets report them."""

from __future__ import annotations

import re

_TAG_OR_DIGEST = re.compile(r"(@[^@]+|:[^:/]+)$")


def without_image(said: str, image: str) -> str:
    """Remove an image's name, which may itself contain ``429`` or ``unknown``, from an error message."""
    repository = _TAG_OR_DIGEST.sub("", image)
    for name in (image, repository, repository.partition("/")[2]):
        said = said.replace(name, "") if name else said
    return said
