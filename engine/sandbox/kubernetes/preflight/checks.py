"""Preflight checks of a cluster, each with a remedy: access, version, rights, policy, quota, classes.

Requests that the account may not make are skipped: only known problems are reported. To add a check, write a
coroutine that returns findings and list it in ``_CHECKS``.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal, NamedTuple

from kubernetes.utils.quantity import parse_quantity

from engine.config.sandbox import SandboxConfig
from engine.sandbox.base import PreflightFinding, SandboxLimits
from engine.sandbox.kubernetes.api.client import KubeApi
from engine.sandbox.kubernetes.api.errors import ApiError
from engine.sandbox.kubernetes.api.rights import Right
from engine.sandbox.kubernetes.backend import KubernetesBackend
from engine.sandbox.kubernetes.manifests import labels, spec
from engine.sandbox.kubernetes.preflight.trial import try_out

Json = dict[str, Any]
_OLDEST = (1, 25)
_STARTING_S = 2.0
_APPLY = "kubectl apply -k deploy/kubernetes/sandbox"
_BIND = f"{_APPLY} and bind its role trainyard-sandbox-controller to the account"
_BIND_EXEC = f"{_APPLY}/exec and bind its role trainyard-sandbox-exec to the account"
_RIGHTS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("", "pods"): ("create", "get", "list", "watch", "patch", "delete", "deletecollection"),
    ("", "configmaps"): ("create",),
    ("coordination.k8s.io", "leases"): ("create", "get", "list", "patch", "delete"),
}


async def check(backend: KubernetesBackend) -> list[PreflightFinding]:
    """Return the problems of the cluster that prevent sandboxes; empty when there are none."""
    config = backend.config
    try:
        api = await KubeApi.connect(config.kubernetes, backend.rights)
    except ApiError as error:
        return [
            PreflightFinding.error(f"{error}. Set sandbox.kubernetes.kubeconfig, or run inside the cluster.")
        ]
    try:
        problems = await _version(api)
        if not problems:
            results = await asyncio.gather(*(check(api, config) for check in _CHECKS))
            problems = [problem for problems in results for problem in problems]
        if not any(problem.severity == "error" for problem in problems):
            problems += await try_out(backend, api)
        return problems
    except ApiError as error:
        return [PreflightFinding.error(f"The cluster at {api.host} does not answer as it should: {error}.")]
    finally:
        await api.close()


async def _version(api: KubeApi) -> list[PreflightFinding]:
    try:
        version = await api.get("/version", patience_s=5.0)
    except ApiError as error:
        if error.status in (401, 403):
            return [
                PreflightFinding.error(
                    f"The cluster at {api.host} does not accept these credentials: {error}."
                )
            ]
        return [
            PreflightFinding.error(
                f"The cluster at {api.host} does not answer: {error}. "
                "Is the address right, with a route to it?"
            )
        ]
    numbers = tuple(int(re.sub(r"\D.*", "", version[key]) or 0) for key in ("major", "minor"))
    if numbers < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        return [
            PreflightFinding.error(
                f"The cluster runs Kubernetes {version.get('gitVersion')}; {oldest} or newer is needed."
            )
        ]
    return []


async def _namespace(api: KubeApi, config: SandboxConfig) -> list[PreflightFinding]:
    name = config.kubernetes.namespace
    if await _lacks(api, f"/api/v1/namespaces/{name}"):
        return [PreflightFinding.error(f"Namespace {name} does not exist: {_APPLY}.")]
    return []


async def _rights(api: KubeApi, config: SandboxConfig) -> list[PreflightFinding]:
    wanted = [Right(verb, group, resource) for (group, resource), verbs in _RIGHTS.items() for verb in verbs]
    if config.kubernetes.connect == "exec":
        wanted += [Right(verb, "", "pods/exec") for verb in ("create", "get")]  # servers check either verb
    missing = await _denied(api, config, wanted)
    if missing:  # a server that has just started has not loaded its RBAC rules
        await asyncio.sleep(_STARTING_S)
        missing = await _denied(api, config, missing)
    return [
        PreflightFinding.error(
            f"This account may not {_named(lacking)} in namespace {config.kubernetes.namespace}: {remedy}."
        )
        for remedy, lacking in (
            (_BIND, [right for right in missing if right.resource != "pods/exec"]),
            (_BIND_EXEC, [right for right in missing if right.resource == "pods/exec"]),
        )
        if lacking
    ]


def _named(rights: Sequence[Right]) -> str:
    return ", ".join(f"{right.verb} {right.resource}" for right in rights)


async def _denied(api: KubeApi, config: SandboxConfig, wanted: Sequence[Right]) -> list[Right]:
    """Return the rights that the account lacks, and store those that it has."""
    allowed = await asyncio.gather(*(_may(api, config, right) for right in wanted))
    return [right for right, may in zip(wanted, allowed, strict=True) if not may]


async def _may(api: KubeApi, config: SandboxConfig, right: Right) -> bool:
    name, _, subresource = right.resource.partition("/")
    attributes = {
        "namespace": config.kubernetes.namespace,
        "group": right.group,
        "resource": name,
        "verb": right.verb,
        **({"subresource": subresource} if subresource else {}),
    }
    review = await api.create(
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        },
    )
    if allowed := bool(review.get("status", {}).get("allowed")):
        api.rights.note(right)
    return allowed


async def _exec_is_weaker(_: KubeApi, config: SandboxConfig) -> list[PreflightFinding]:
    if config.kubernetes.connect == "network":
        return []
    return [
        PreflightFinding.warning(
            "connect=exec: agents are no init, so that a command can end its own sandbox (never "
            "another), and pods of a killed engine run until a reaper or their deadline ends them."
        )
    ]


async def _classes(api: KubeApi, config: SandboxConfig) -> list[PreflightFinding]:
    problems = []
    name = config.kubernetes.runtime_class
    if name and await _lacks(api, f"/apis/node.k8s.io/v1/runtimeclasses/{name}"):
        problems.append(
            PreflightFinding.error(
                f"Runtime class {name} does not exist: install it on the nodes, or change "
                "sandbox.kubernetes.runtime_class."
            )
        )
    name = config.kubernetes.priority_class
    if name and await _lacks(api, f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}"):
        problems.append(
            PreflightFinding.error(f"Priority class {name} does not exist: {_APPLY}, or change the setting.")
        )
    return problems


async def _policy(api: KubeApi, config: SandboxConfig) -> list[PreflightFinding]:
    path = f"/apis/networking.k8s.io/v1/namespaces/{config.kubernetes.namespace}/networkpolicies"
    try:
        policies = await api.list(path)
    except ApiError as error:
        if error.status in (403, 404):
            return []  # the first sandbox is probed anyway
        raise
    ours = [policy["spec"] for policy in policies["items"] if _selects_sandboxes(policy["spec"])]
    denied = any("Egress" in (policy.get("policyTypes") or []) for policy in ours)
    opened = any(policy.get("egress") for policy in ours)
    if denied and not opened:
        return []
    problem = "lets sandboxes open connections" if denied else "has no network policy that cuts sandboxes off"
    severity: Literal["error", "warning"] = "error" if config.kubernetes.require_network_policy else "warning"
    message = f"Namespace {config.kubernetes.namespace} {problem}: {_APPLY}."
    return [PreflightFinding(severity=severity, message=message)]


def _selects_sandboxes(policy: Json) -> bool:
    selector = policy.get("podSelector") or {}
    wanted = selector.get("matchLabels") or {}
    return not selector.get("matchExpressions") and all(
        labels.COMMON.get(key) == value for key, value in wanted.items()
    )


async def _quota(api: KubeApi, config: SandboxConfig) -> list[PreflightFinding]:
    try:
        quotas = await api.list(f"/api/v1/namespaces/{config.kubernetes.namespace}/resourcequotas")
    except ApiError as error:
        if error.status in (403, 404):
            return []
        raise
    shortages = [
        shortage
        for quota in quotas["items"]
        if (status := quota.get("status"))
        for shortage in _shortages(quota["metadata"]["name"], status, config)
    ]
    if not shortages:
        return []
    room = min(shortage.room for shortage in shortages)
    details = "; ".join(dict.fromkeys(item.text for item in sorted(shortages, key=lambda item: item.room)))
    message = (
        f"Quotas leave room for {room} of {config.max_live} sandboxes ({details}): raise them, or lower "
        "sandbox.max_live."
    )
    return [PreflightFinding.error(message) if room < 1 else PreflightFinding.warning(message)]


class _Shortage(NamedTuple):
    """A resource whose quota is too small for all sandboxes."""

    room: int
    """Number of sandboxes for which the quota suffices."""
    text: str


def _shortages(name: str, status: Json, config: SandboxConfig) -> Iterator[_Shortage]:
    hard, used = status.get("hard") or {}, status.get("used") or {}
    for resource, amount in _needs(config).items():
        if resource not in hard or not amount:
            continue
        spent = used.get(resource, "0")
        room = max(0, int((parse_quantity(hard[resource]) - parse_quantity(spent)) / amount))
        if room < config.max_live:
            yield _Shortage(room, f"{name}: {spent} of {hard[resource]} {resource} used, room for {room}")


def _needs(config: SandboxConfig) -> dict[str, Decimal]:
    """Return the resources of one sandbox under the names used by quotas."""
    limits = SandboxLimits(memory_mb=config.memory_mb, processes=config.processes, disk_mb=config.disk_mb)
    containers = spec.container_resources(config.kubernetes, limits)
    needs = {"pods": Decimal(1), "count/pods": Decimal(1)}
    for field in ("requests", "limits"):
        for resource in ("cpu", "memory", "ephemeral-storage"):
            total = sum((parse_quantity(container[field][resource]) for container in containers), Decimal(0))
            needs[f"{field}.{resource}"] = total
            if field == "requests":
                needs[resource] = total
    return needs


async def _lacks(api: KubeApi, path: str) -> bool:
    try:
        await api.get(path, patience_s=10.0)
    except ApiError as error:
        if error.status == 404:
            return True
        if error.status != 403:
            raise
    return False


_CHECKS: tuple[Callable[[KubeApi, SandboxConfig], Awaitable[list[PreflightFinding]]], ...] = (
    _namespace,
    _rights,
    _classes,
    _policy,
    _quota,
    _exec_is_weaker,
)
