"""Folders, hosts and settings that configurations may use, as granted by the administrator.

The grants are environment variables, listed in this application's README, and the endpoints entered by
administrators. The engine receives the grants at every launch and checks them again
(``engine.config.access.places``).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from engine.config.access.places import Allowed
from engine.config.run import AnyRun, check_places, parse_run_config
from webapp.endpoints.models import Endpoint
from webapp.endpoints.services import endpoints


def allowed() -> Allowed:
    """Return the paths, hosts, models, endpoints and values that configurations may use.

    Raises:
        ImproperlyConfigured: an environment variable is invalid.
    """
    home = Path(settings.TRAINYARD_HOME)
    return Allowed(
        imports=(home / "imports", *_folders("TRAINYARD_IMPORT_FOLDERS")),
        policies=(home / "policies", home / "runs", *_folders("TRAINYARD_POLICY_FOLDERS")),
        repository_hosts=tuple(map(str.lower, _listed("TRAINYARD_REPOSITORY_HOSTS"))),
        hub_models=_listed("TRAINYARD_HUB_MODELS"),
        hub_datasets=_listed("TRAINYARD_HUB_DATASETS"),
        image_registries=tuple(map(str.lower, _listed("TRAINYARD_IMAGE_REGISTRIES"))),
        endpoints=tuple(Endpoint.objects.values_list("name", flat=True)),
        attachable=tuple(Endpoint.objects.filter(attachable=True).values_list("name", flat=True)),
        granted={
            setting: tuple(values) for setting, values in _by_setting("TRAINYARD_GRANTED", list).items()
        },
        limits=_by_setting("TRAINYARD_LIMITS", (int, float)),
    )


def checked(config: dict[str, Any]) -> AnyRun:
    """Return a stored configuration with its paths resolved.

    Raises:
        ConfigError: it is not valid in this version, or uses something that is not allowed.
    """
    resolved = check_places(parse_run_config(config), allowed())
    endpoints.check_models(resolved)
    return resolved


def _folders(name: str) -> tuple[Path, ...]:
    return tuple(Path(folder) for folder in os.environ.get(name, "").split(":") if folder)


def _listed(name: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in os.environ.get(name, "").split(",") if item.strip())


_EXAMPLES = {
    "TRAINYARD_GRANTED": 'an object of lists, like {"sandbox.docker.host": ["tcp://HOST:PORT"]}',
    "TRAINYARD_LIMITS": 'an object of numbers, like {"sandbox.memory_mb": 131072}',
}


def _by_setting(variable: str, kind: type | tuple[type, ...]) -> dict[str, Any]:
    """Return the values of an environment variable with a JSON object of dotted setting names."""
    try:
        values = json.loads(os.environ.get(variable, "") or "{}")
    except ValueError as error:
        raise ImproperlyConfigured(f"{variable} is not JSON: {error}") from None
    if not isinstance(values, dict) or not all(
        isinstance(value, kind) and not isinstance(value, bool) for value in values.values()
    ):
        raise ImproperlyConfigured(f"{variable} must be {_EXAMPLES[variable]}")
    return values
