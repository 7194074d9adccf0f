"""The Docker daemon for tests: DOCKER_HOST, the daemon of `make docker`, or the system's."""

from __future__ import annotations

import os
from pathlib import Path

import docker
import docker.errors
import pytest
import requests

_OWN = Path(__file__).parents[1] / ".trainyard" / "docker" / "docker.sock"
_CANDIDATES = (os.environ.get("DOCKER_HOST"), f"unix://{_OWN}", "unix:///var/run/docker.sock")

one_at_a_time = pytest.mark.xdist_group("docker")
"""Mark for modules that use the daemon: they count its containers and reap each other's orphans."""


def docker_host() -> str:
    """Return the daemon's address; skip the calling test if no daemon answers."""
    reasons = []
    for host in filter(None, _CANDIDATES):
        try:
            client = docker.APIClient(base_url=host, version="auto", timeout=20)
            client.ping()
            client.close()
        except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
            reasons.append(f"{host}: {error}")
        else:
            return host
    pytest.skip(f"no Docker daemon answers; `make docker` starts one as root ({'; '.join(reasons)})")
