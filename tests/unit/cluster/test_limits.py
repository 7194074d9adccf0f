"""Quotas, limit ranges, disruption budgets, pod security."""

from __future__ import annotations

import json

from kubernetes import client
from kubernetes.client import CoreV1Api

from tests.builders.cluster_builders import configmap, do, eventually, fails, pod

_SMALL = {"requests": {"cpu": "500m", "memory": "64Mi"}, "limits": {"memory": "64Mi"}}


def _message(error: client.ApiException) -> str:
    message: str = json.loads(error.body)["message"]
    return message


async def test_a_quota_holds_and_tells_what_is_used(core: CoreV1Api) -> None:
    hard = {"pods": "2", "requests.cpu": "1200m", "limits.memory": "1Gi", "count/configmaps": "2"}
    await do(
        core.create_namespaced_resource_quota, "default", {"metadata": {"name": "q"}, "spec": {"hard": hard}}
    )
    error = await fails(403, core.create_namespaced_pod, "default", pod("bare"))
    assert "must specify limits.memory for: main; requests.cpu for: main" in _message(error)
    await do(core.create_namespaced_pod, "default", pod("a", resources=_SMALL))
    big = {"requests": {"cpu": "1"}, "limits": {"memory": "64Mi"}}
    error = await fails(403, core.create_namespaced_pod, "default", pod("big", resources=big))
    expected = (
        "exceeded quota: q, requested: requests.cpu=1, used: requests.cpu=500m, limited: requests.cpu=1200m"
    )
    assert expected in _message(error)
    await do(core.create_namespaced_pod, "default", pod("b", resources=_SMALL))
    error = await fails(403, core.create_namespaced_pod, "default", pod("c", resources=_SMALL))
    assert "requested: pods=1,requests.cpu=500m" in _message(error)
    await do(core.create_namespaced_config_map, "default", configmap("one"))
    await fails(403, core.create_namespaced_config_map, "default", configmap("two"))

    async def used() -> object:
        status = (await do(core.read_namespaced_resource_quota, "q", "default")).status
        return status and status.used

    await eventually(
        used, {"count/configmaps": "2", "limits.memory": "128Mi", "pods": "2", "requests.cpu": "1"}
    )
    await do(core.patch_namespaced_pod_status, "b", "default", {"status": {"phase": "Failed"}})
    await do(core.create_namespaced_pod, "default", pod("c", resources=_SMALL))


async def test_a_limit_range_fills_in_and_bounds(core: CoreV1Api) -> None:
    limits = {
        "type": "Container",
        "default": {"memory": "256Mi", "cpu": "1"},
        "defaultRequest": {"cpu": "50m"},
        "max": {"memory": "1Gi"},
    }
    body = {"metadata": {"name": "l"}, "spec": {"limits": [limits]}}
    await do(core.create_namespaced_limit_range, "default", body)
    made = await do(core.create_namespaced_pod, "default", pod("a"))
    assert made.spec.containers[0].resources.limits == {"cpu": "1", "memory": "256Mi"}
    assert made.spec.containers[0].resources.requests == {"cpu": "50m", "memory": "256Mi"}
    given = await do(core.create_namespaced_pod, "default", pod("b", resources={"limits": {"cpu": "2"}}))
    assert given.spec.containers[0].resources.requests["cpu"] == "2"
    error = await fails(
        403, core.create_namespaced_pod, "default", pod("c", resources={"limits": {"memory": "2Gi"}})
    )
    assert "maximum memory usage per Container is 1Gi, but limit is 2Gi" in _message(error)


async def test_budgets_hold_back_evictions(api: client.ApiClient) -> None:
    core = CoreV1Api(api)
    spec = {"maxUnavailable": 0, "selector": {"matchLabels": {"run": "1"}}}
    body = {"metadata": {"name": "b"}, "spec": spec}
    policy = client.PolicyV1Api(api)
    await do(policy.create_namespaced_pod_disruption_budget, "default", body)
    for name, run in (("kept", "1"), ("free", "2")):
        await do(core.create_namespaced_pod, "default", pod(name, metadata={"labels": {"run": run}}))
    eviction = {"metadata": {"name": "kept"}}
    error = await fails(429, core.create_namespaced_pod_eviction, "kept", "default", eviction)
    assert json.loads(error.body)["details"]["causes"][0]["reason"] == "DisruptionBudget"
    await do(core.create_namespaced_pod_eviction, "free", "default", {"metadata": {"name": "free"}})
    await fails(404, core.read_namespaced_pod, "free", "default")

    async def counts() -> object:
        status = (await do(policy.read_namespaced_pod_disruption_budget, "b", "default")).status
        return status and (status.expected_pods, status.disruptions_allowed)

    await eventually(counts, (1, 0))


async def test_pod_security_is_enforced_by_the_namespaces_label(core: CoreV1Api) -> None:
    labels = {
        "pod-security.kubernetes.io/enforce": "baseline",
        "pod-security.kubernetes.io/warn": "restricted",
    }
    await do(core.create_namespace, {"metadata": {"name": "safe", "labels": labels}})
    body = pod("a", hostNetwork=True, volumes=[{"name": "host", "hostPath": {"path": "/"}}])
    body["spec"]["containers"][0]["securityContext"] = {
        "privileged": True,
        "capabilities": {"add": ["SYS_ADMIN"]},
    }
    error = await fails(403, core.create_namespaced_pod, "safe", body)
    for part in (
        "host namespaces (hostNetwork=true)",
        'hostPath volumes (volumes "host")',
        "privileged",
        '"SYS_ADMIN"',
    ):
        assert part in _message(error)
    made, _, headers = await do(core.create_namespaced_pod_with_http_info, "safe", pod("b"))
    assert made.metadata.name == "b"
    assert "would violate PodSecurity" in headers["Warning"]
    assert "runAsNonRoot" in headers["Warning"]
    await do(core.create_namespaced_pod, "default", body)
