"""The server and the browser of the end-to-end tests."""

from tests.e2e.conftest import browser, context, page, screenshots, server

__all__ = ["browser", "context", "page", "screenshots", "server"]
