"""Thin JSON client of the Kubernetes API.

Configuration, TLS and credentials come from the official client (``kubernetes.aio``). Requests and responses
stay plain dictionaries: building its model objects costs more than the rest of a sandbox's start. Every
request has a timeout, writes have a common rate limit, and transient errors are retried. A new kind of object
needs no code: pass its path.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import email.utils
import json
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Self

import aiohttp
from aiolimiter import AsyncLimiter
from kubernetes.aio import config as kube_config
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration

from engine.config.kubernetes import KubernetesConfig
from engine.sandbox.kubernetes.api.errors import ApiError, read_failure
from engine.sandbox.kubernetes.api.retries import refused, retrying
from engine.sandbox.kubernetes.api.rights import Right, Rights, right_for

Json = dict[str, Any]
EXEC_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
MERGE_PATCH = "application/merge-patch+json"
_PATIENCE_S = 120.0
_STARTING_S = 30.0
"""Time for which a server that has just started may refuse requests the account is entitled to, seconds."""
_PAGE = 500
_MAX_MESSAGE = 16 << 20
"""Maximum message size of an exec stream, bytes; servers send some 32 KiB."""
_IN_CLUSTER = "KUBERNETES_SERVICE_HOST"
_EXEC = Right("get", "", "pods/exec")


class KubeApi:
    """Client of one cluster's API: create it with ``connect``, use it on one event loop, close it."""

    def __init__(
        self,
        client: ApiClient,
        config: KubernetesConfig,
        rights: Rights,
        refresh: asyncio.Task[None] | None,
    ) -> None:
        self.rights = rights
        self.host: str = client.configuration.host.rstrip("/")
        self.writes = 0
        """Number of write requests sent, retries included."""
        self._client = client
        self._session: aiohttp.ClientSession = client.rest_client.pool_manager
        self._server_name = client.configuration.tls_server_name
        self._proxy = client.configuration.proxy
        self._config = config
        self._limiter = AsyncLimiter(config.write_burst, config.write_burst / config.writes_per_second)
        self._closed_until = 0.0
        self._refresh = refresh
        self._streams: ApiClient | None = None
        self._clock_offset = time.time() - time.monotonic()

    @classmethod
    async def connect(cls, config: KubernetesConfig, rights: Rights | None = None) -> Self:
        """Create a client with the configured credentials; sends no request yet.

        Args:
            rights: the known rights of the account, shared with its other clients.

        Raises:
            ApiError: the configuration, which the message names, is missing or unusable.
        """
        configuration = Configuration()
        refresh = None
        try:
            if not config.kubeconfig and not config.context and os.environ.get(_IN_CLUSTER):
                kube_config.load_incluster_config(client_configuration=configuration)
            else:
                path = config.kubeconfig or None
                loader = await kube_config.load_kube_config(
                    config_file=path,
                    context=config.context or None,
                    client_configuration=configuration,
                    persist_config=False,
                )
                refresh = asyncio.ensure_future(kube_config.refresh_token(loader, configuration))
        except (kube_config.ConfigException, OSError, TypeError, ValueError) as error:
            where = config.kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
            raise ApiError(f"no usable cluster configuration in {where}: {error}") from error
        return cls(ApiClient(configuration), config, rights or Rights(), refresh)

    async def close(self) -> None:
        """Close connections and stop refreshing credentials."""
        if self._refresh is not None:
            self._refresh.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._refresh
        await self._client.close()
        if self._streams is not None:
            await self._streams.close()

    def now(self) -> float:
        """Return the cluster's time as of its last response, seconds since the epoch; accurate to 1 s."""
        return time.monotonic() + self._clock_offset

    async def get(self, path: str, *, patience_s: float = _PATIENCE_S) -> Json:
        """Return one object. Raises ApiError."""
        return await self._retrying("GET", path, {}, patience_s=patience_s)

    async def list(self, path: str, **query: str) -> Json:
        """Return a whole collection, page by page: ``items`` and the list's ``metadata``. Raises ApiError."""
        query = {"limit": str(_PAGE), **query}
        items: list[Json] = []
        while True:
            page = await self._retrying("GET", path, query)
            items += page.get("items") or []
            following = page.get("metadata", {}).get("continue")
            if not following:
                return {**page, "items": items}
            query = {**query, "continue": following}

    async def create(self, path: str, body: Json, *, patience_s: float = _PATIENCE_S, **query: str) -> Json:
        """Create an object.

        Raises:
            ApiError: with status 409 when it exists, maybe from an earlier attempt whose response was lost.
        """
        return await self._retrying("POST", path, query, body, patience_s=patience_s)

    async def patch(self, path: str, body: Json, *, patience_s: float = _PATIENCE_S) -> Json:
        """Apply a merge patch. Raises ApiError."""
        return await self._retrying("PATCH", path, {}, body, patience_s=patience_s)

    async def delete(self, path: str, *, grace_s: int | None = None, **query: str) -> None:
        """Delete an object or, with a selector, a collection; missing objects are fine. Raises ApiError."""
        body: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        try:
            await self._retrying("DELETE", path, query, body)
        except ApiError as error:
            if error.status != 404:
                raise

    async def watch(self, path: str, *, silence_s: float, **query: str) -> AsyncIterator[Json]:
        """Yield the events of a watch until the server ends it.

        Args:
            silence_s: silence after which the connection counts as broken, seconds.

        Raises:
            ApiError: the watch was refused (410: version too old) or broke.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=silence_s, sock_read=silence_s)
        try:
            async with self._send("GET", path, {**query, "watch": "true"}, None, timeout) as response:
                if response.status >= 300:
                    raise await self._failure(response, right_for("GET", path, {"watch": "true"}))
                pending = b""
                async for chunk in response.content.iter_any():
                    *lines, pending = (pending + chunk).split(b"\n")
                    for line in lines:
                        if line.strip():
                            yield json.loads(line)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise ApiError(f"the watch of {path} broke: {_words(error)}") from error

    async def exec(self, path: str, container: str, argv: Sequence[str]) -> aiohttp.ClientWebSocketResponse:
        """Start a command in a pod's container, with its streams on a websocket.

        Streams use separate connections: hundreds stay open as long as their sandboxes.

        Args:
            path: API path of the pod.

        Raises:
            ApiError: the server refused the stream or could not be reached.
        """
        if self._streams is None:
            configuration = copy.deepcopy(self._client.configuration)
            configuration.connection_pool_maxsize = 0
            self._streams = ApiClient(configuration)
        query = [("container", container), *(("command", word) for word in argv)]
        query += [(stream, "true") for stream in ("stdin", "stdout", "stderr")]
        try:
            async with asyncio.timeout(self._config.request_timeout_s):
                socket: aiohttp.ClientWebSocketResponse = (
                    await self._streams.rest_client.pool_manager.ws_connect(
                        f"{self.host}{path}/exec",
                        params=query,
                        headers=await self._credentials(),
                        protocols=EXEC_PROTOCOLS,
                        max_msg_size=_MAX_MESSAGE,
                        proxy=self._proxy,
                        server_hostname=self._server_name,
                    )
                )
        except aiohttp.WSServerHandshakeError as error:
            starting = error.status == 403 and _EXEC in self.rights
            raise ApiError(
                f"exec in {path}: the handshake failed with status {error.status}",
                status=error.status,
                starting=starting,
            ) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(f"exec in {path}: {_words(error)}") from error
        self.rights.note(_EXEC)
        return socket

    # --- one request -------------------------------------------------------------------------------

    async def _retrying(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Json | None = None,
        *,
        patience_s: float = _PATIENCE_S,
    ) -> Json:
        right, began = right_for(method, path, query), time.monotonic()

        def again(error: Exception) -> bool | float:
            if not isinstance(error, ApiError) or not error.passing:
                return False
            if error.starting and time.monotonic() - began > _STARTING_S:
                return False
            return refused(error)

        async for attempt in retrying(again, within_s=patience_s):
            with attempt:
                if method != "GET":
                    await self._wait_for_turn()
                    self.writes += 1
                result = await self._once(method, path, query, body, right)
        self.rights.note(right)
        return result

    async def _wait_for_turn(self) -> None:
        await self._limiter.acquire()
        await asyncio.sleep(max(0.0, self._closed_until - time.monotonic()))

    async def _once(
        self, method: str, path: str, query: Mapping[str, str], body: Json | None, right: Right
    ) -> Json:
        timeout = aiohttp.ClientTimeout(total=self._config.request_timeout_s)
        try:
            async with self._send(method, path, query, body, timeout) as response:
                self._note_time(response)
                if response.status >= 300:
                    raise await self._failure(response, right)
                result: Json = await response.json(content_type=None)
                return result
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise ApiError(f"{method} {path} at {self.host}: {_words(error)}") from error

    async def _failure(self, response: aiohttp.ClientResponse, right: Right) -> ApiError:
        error = read_failure(response, await response.text(errors="replace"), right, self.rights)
        if error.retry_after and response.method != "GET":
            self._closed_until = max(self._closed_until, time.monotonic() + error.retry_after)
        return error

    @contextlib.asynccontextmanager
    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Json | None,
        timeout: aiohttp.ClientTimeout,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        content = MERGE_PATCH if method == "PATCH" else "application/json"
        async with self._session.request(
            method,
            self.host + path,
            params=query,
            data=None if body is None else json.dumps(body),
            headers={**await self._credentials(), "Accept": "application/json", "Content-Type": content},
            timeout=timeout,
            proxy=self._proxy,
            server_hostname=self._server_name,
        ) as response:
            yield response

    async def _credentials(self) -> dict[str, str]:
        # No Accept header: servers refuse upgrade requests with 406 unless they accept everything.
        headers = {"User-Agent": "trainyard"}
        await self._client.update_params_for_auth(headers, [], ["BearerToken"])
        return headers

    def _note_time(self, response: aiohttp.ClientResponse) -> None:
        date = (
            email.utils.parsedate_to_datetime(response.headers["Date"])
            if "Date" in response.headers
            else None
        )
        if date is not None:
            self._clock_offset = date.timestamp() - time.monotonic()


def _words(error: Exception) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
