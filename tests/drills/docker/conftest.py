"""The fixtures of the tests with a Docker daemon."""

from tests.integration.docker.conftest import home, host

__all__ = ["home", "host"]
