"""Kubernetes API client: write budget, Retry-After, and the rights that requests need."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from engine.config.kubernetes import KubernetesConfig
from engine.sandbox.kubernetes.api.client import KubeApi
from engine.sandbox.kubernetes.api.errors import ApiError
from engine.sandbox.kubernetes.api.rights import Right, Rights, right_for

PODS = "/api/v1/namespaces/n/pods"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/n/leases"
_PATIENCE_S = 120.0
_MOMENT_S = 0.3

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def connected(tmp_path: Path, handler: Handler, **settings: Any) -> AsyncIterator[KubeApi]:
    """Connect a client to a server that answers with ``handler``."""
    runner = web.ServerRunner(web.Server(handler), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    address = f"http://127.0.0.1:{runner.addresses[0][1]}"
    path = tmp_path / "kubeconfig"
    config = {
        "clusters": [{"name": "c", "cluster": {"server": address}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
        "current-context": "c",
    }
    path.write_text(yaml.safe_dump(config))
    api = await KubeApi.connect(KubernetesConfig(kubeconfig=str(path), **settings))
    try:
        yield api
    finally:
        await api.close()
        await runner.cleanup()


async def test_writes_wait_for_their_budget_and_reads_do_not(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        seen[request.method] += 1
        return web.json_response({})

    async with connected(tmp_path, answer, writes_per_second=0.001, write_burst=2) as api:
        writes = [asyncio.create_task(api.create(PODS, {})) for _ in range(3)]
        await asyncio.wait(writes[:2], timeout=_PATIENCE_S)
        await api.get(f"{PODS}/a")
        await asyncio.wait(writes, timeout=_MOMENT_S)
        assert [write.done() for write in writes] == [True, True, False]
        assert seen == {"POST": 2, "GET": 1}
        writes[2].cancel()


async def test_retry_after_delays_every_write_but_no_read(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        seen[request.method] += 1
        if request.method == "GET":
            return web.json_response({})
        return web.json_response({"message": "later"}, status=429, headers={"Retry-After": "3600"})

    async with connected(tmp_path, answer) as api:
        with pytest.raises(ApiError) as refused:
            await api.create(PODS, {}, patience_s=0)
        assert refused.value.retry_after == 3600
        assert refused.value.pause_s is not None
        assert refused.value.pause_s >= 3600
        waiting = asyncio.create_task(api.create(PODS, {}))
        await api.get(f"{PODS}/a")
        await asyncio.wait([waiting], timeout=_MOMENT_S)
        assert seen == {"POST": 1, "GET": 1}
        waiting.cancel()


async def test_only_rbac_refusals_of_a_previously_used_right_are_retried(tmp_path: Path) -> None:
    answers: list[tuple[int, dict[str, Any]]] = []

    async def answer(_: web.BaseRequest) -> web.StreamResponse:
        status, body = answers.pop(0)
        return web.json_response(body, status=status)

    by_rbac = (403, {"reason": "Forbidden", "details": {"kind": "pods"}})
    by_quota = (403, {"reason": "Forbidden", "details": {"kind": "pods", "name": "a"}})
    async with connected(tmp_path, answer) as api:
        answers += [by_rbac]
        with pytest.raises(ApiError):
            await api.create(PODS, {})
        answers += [(201, {}), by_rbac, by_rbac, (201, {"fine": True})]
        assert await api.create(PODS, {}) == {}
        assert await api.create(PODS, {}) == {"fine": True}
        answers += [by_quota]
        with pytest.raises(ApiError) as refused:
            await api.create(PODS, {})
        assert not refused.value.starting
        answers += [by_rbac]
        with pytest.raises(ApiError):
            await api.delete(f"{PODS}/a")
        assert not answers


@pytest.mark.parametrize(
    ("method", "path", "query", "right"),
    [
        ("GET", PODS, {}, ("list", "", "pods")),
        ("GET", PODS, {"watch": "true"}, ("watch", "", "pods")),
        ("GET", f"{PODS}/a", {}, ("get", "", "pods")),
        ("GET", f"{PODS}/a/exec", {}, ("get", "", "pods/exec")),
        ("POST", PODS, {}, ("create", "", "pods")),
        ("PATCH", f"{PODS}/a", {}, ("patch", "", "pods")),
        ("DELETE", PODS, {}, ("deletecollection", "", "pods")),
        ("DELETE", f"{LEASES}/a", {}, ("delete", "coordination.k8s.io", "leases")),
        ("GET", "/api/v1/namespaces/n", {}, ("get", "", "namespaces")),
    ],
)
def test_rights_of_requests(method: str, path: str, query: dict[str, str], right: tuple[str, ...]) -> None:
    needed = right_for(method, path, query)
    rights = Rights()
    assert needed == right
    assert needed not in rights
    rights.note(needed)
    assert Right(*needed) in rights
