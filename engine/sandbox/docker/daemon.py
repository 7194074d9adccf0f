"""The Docker daemon: its address, calls in threads, and failures as typed errors.

The Docker SDK blocks, so every call runs in a bounded pool of threads and never on the event loop. Pass
``Daemon.call`` a function of the SDK's client. To convert another kind of failure, extend ``explain``.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import docker
import docker.errors
import docker.utils
import requests

from engine.errors import (
    ImageRemovedError,
    PreflightError,
    SandboxError,
    SandboxStartError,
    SandboxStartTimeoutError,
)

T = TypeVar("T")
_SYSTEM = "unix:///var/run/docker.sock"
_WORKERS = 16


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a daemon."""

    url: str
    tls: docker.tls.TLSConfig | None = None

    @property
    def local(self) -> bool:
        """Return whether the daemon shares this machine's file system."""
        return self.url.startswith("unix://")

    async def connect(
        self, protocol: Callable[[], asyncio.StreamReaderProtocol]
    ) -> tuple[asyncio.Transport, Any]:
        """Open a raw connection to the daemon. Raises OSError."""
        loop = asyncio.get_running_loop()
        if self.local:
            return await loop.create_unix_connection(protocol, self.url.removeprefix("unix://"))
        host, _, port = self.url.partition("://")[2].rstrip("/").rpartition(":")
        return await loop.create_connection(protocol, host, int(port), ssl=self._ssl())

    def _ssl(self) -> ssl.SSLContext | None:
        if self.tls is None:
            return None
        context = ssl.create_default_context(cafile=self.tls.ca_cert)
        if self.tls.cert:
            context.load_cert_chain(*self.tls.cert)
        if not self.tls.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def find_daemon(host: str, home: Path) -> Address:
    """Return the daemon's address: ``host``, else DOCKER_HOST, else one below ``home``, else the system's.

    Raises:
        PreflightError: the address has an unsupported scheme.
    """
    own = home / "docker" / "docker.sock"
    url = host or os.environ.get("DOCKER_HOST") or (f"unix://{own}" if own.is_socket() else _SYSTEM)
    if not url.startswith(("unix://", "tcp://", "http://", "https://")):
        raise PreflightError(f"the Docker daemon's address '{url}' must begin with unix:// or tcp://")
    return Address(url, docker.utils.kwargs_from_env().get("tls") or None)


def explain(error: Exception, where: str) -> SandboxError:
    """Convert an SDK failure to a ``SandboxError``.

    Args:
        error: exception raised by a call.
        where: the daemon's address.
    """
    if isinstance(error, docker.errors.ImageNotFound):
        return ImageRemovedError(str(error.explanation or error))
    if isinstance(error, requests.exceptions.Timeout):
        return SandboxStartTimeoutError(f"the Docker daemon at {where} did not answer in time: {error}")
    if isinstance(error, docker.errors.APIError):
        return SandboxStartError(f"Docker: {error.explanation or error}")
    return SandboxStartError(
        f"the Docker daemon at {where} does not answer ({error}); is it running? `make docker` starts one"
    )


class Daemon:
    """Client of one daemon.

    Args:
        address: the daemon's address.
        timeout_s: timeout of one response, seconds.
    """

    def __init__(self, address: Address, timeout_s: float) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._lock = Lock()
        self._client: docker.APIClient | None = None
        self._threads: ThreadPoolExecutor | None = None

    @property
    def client(self) -> docker.APIClient:
        """Return the SDK's client, created at first use. Blocks; raises as the SDK does."""
        with self._lock:
            if self._client is None:
                self._client = docker.APIClient(
                    base_url=self.address.url,
                    tls=self.address.tls or False,
                    version="auto",
                    timeout=int(self._timeout_s),
                    max_pool_size=_WORKERS,
                )
            return self._client

    async def call(self, function: Callable[[docker.APIClient], T]) -> T:
        """Call ``function(client)`` in a thread.

        Raises:
            SandboxError: the daemon does not answer, or refuses.
        """
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_WORKERS, thread_name_prefix="docker")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self.do, function)

    def do(self, function: Callable[[docker.APIClient], T]) -> T:
        """Call ``function(client)`` in this thread, with the same errors as ``call``."""
        try:
            return function(self.client)
        except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
            raise explain(error, self.address.url) from error

    def close(self) -> None:
        """Close the connections; a later call opens them again."""
        with self._lock:
            client, self._client = self._client, None
        threads, self._threads = self._threads, None
        if client is not None:
            client.close()
        if threads is not None:
            threads.shutdown(wait=False)
