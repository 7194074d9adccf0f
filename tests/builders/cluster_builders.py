"""What tests of and on the fake cluster share: manifests, and the official client off the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pytest
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

P = ParamSpec("P")
T = TypeVar("T")
Object = dict[str, Any]
_PATIENCE_S = 120.0


async def do(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call the blocking official client without blocking the cluster, which lives on this event loop."""
    return await asyncio.to_thread(function, *args, **kwargs)


@contextlib.contextmanager
def api_client(kubeconfig: Path) -> Iterator[client.ApiClient]:
    """A client configured as for any cluster; its connections are closed afterwards."""
    with config.new_client_from_config(str(kubeconfig)) as api:
        yield api
        api.rest_client.pool_manager.clear()


async def eventually(read: Callable[[], Awaitable[T]], expected: object) -> T:
    """Read again and again until what is read equals ``expected``; returns it. Raises AssertionError."""
    ends = time.monotonic() + _PATIENCE_S
    while (found := await read()) != expected:
        assert time.monotonic() < ends, f"{found!r} did not become {expected!r}"
        await asyncio.sleep(0.02)
    return found


async def fails(code: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> ApiException:
    """Assert that a call fails with an HTTP code; returns the error."""
    with pytest.raises(ApiException) as caught:
        await do(function, *args, **kwargs)
    assert caught.value.status == code, caught.value
    return caught.value


def pod(name: str = "", *, image: str = "registry.test/demo:1", **spec: Any) -> Object:
    """A small pod of one container ``main``; keywords go into its spec."""
    metadata: Object = {"name": name} if name else {"generateName": "pod-"}
    container: Object = {"name": "main", "image": image}
    for key in ("command", "env", "resources", "ports"):
        if key in spec:
            container[key] = spec.pop(key)
    metadata.update(spec.pop("metadata", {}))
    spec.setdefault("restartPolicy", "Never")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [container], **spec},
    }


def configmap(name: str, labels: dict[str, str] | None = None, **metadata: Any) -> Object:
    """A ConfigMap with one key."""
    meta = {"name": name, "labels": labels or {}, **metadata}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"key": "value"}}
