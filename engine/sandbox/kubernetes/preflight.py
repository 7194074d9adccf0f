"""What the cluster lacks for sandboxes, each with a remedy: reach, version, rights, policy, quota, classes.

Questions that the account may not ask are left out: only what is known to be missing is reported. To add a
check, write a coroutine that returns findings and list it in ``_CHECKS``.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal

from kubernetes.utils.quantity import parse_quantity

from engine.config.sandbox import SandboxConfig
from engine.errors import PreflightError, SandboxError
from engine.sandbox.base import PreflightFinding, SandboxLimits, SandboxSpec
from engine.sandbox.kubernetes import labels, spec
from engine.sandbox.kubernetes.api import KubeApi
from engine.sandbox.kubernetes.backend import KubernetesBackend
from engine.sandbox.kubernetes.errors import ApiError
from engine.sandbox.kubernetes.rights import Right

Json = dict[str, Any]
_OLDEST = (1, 25)
_STARTING_S = 2.0
_APPLY = "kubectl apply -k deploy/kubernetes/sandbox"
_RIGHTS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("", "pods"): ("create", "get", "list", "watch", "patch", "delete", "deletecollection"),
    ("", "configmaps"): ("create",),
    ("coordination.k8s.io", "leases"): ("create", "get", "list", "patch", "delete"),
}


async def check(backend: KubernetesBackend) -> list[PreflightFinding]:
    """Return what the cluster lacks for sandboxes; empty when nothing is missing."""
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
            found = await asyncio.gather(*(check(api, config) for check in _CHECKS))
            problems = [problem for problems in found for problem in problems]
    except ApiError as error:
        return [PreflightFinding.error(f"The cluster at {api.host} does not answer as it should: {error}.")]
    finally:
        await api.close()
    if not problems and config.kubernetes.preflight_image:
        problems = await _try_one(backend)
    return problems


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
        wanted += [Right(verb, "", "pods/exec") for verb in ("create", "get")]  # servers ask for either
    missing = await _denied(api, config, wanted)
    if missing:  # a server that has just started knows no rules for a moment
        await asyncio.sleep(_STARTING_S)
        missing = await _denied(api, config, missing)
    denied = [f"{right.verb} {right.resource}" for right in missing]
    if not denied:
        return []
    return [
        PreflightFinding.error(
            f"This account may not {', '.join(denied)} in namespace {config.kubernetes.namespace}: "
            f"{_APPLY} and bind its role trainyard-sandbox-controller to the account."
        )
    ]


async def _denied(api: KubeApi, config: SandboxConfig, wanted: Sequence[Right]) -> list[Right]:
    """Return the rights that the account lacks, and remember those that it has."""
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
        found = await api.list(path)
    except ApiError as error:
        if error.status in (403, 404):
            return []  # the first sandbox is probed anyway
        raise
    ours = [policy["spec"] for policy in found["items"] if _selects_sandboxes(policy["spec"])]
    denied = any("Egress" in (policy.get("policyTypes") or []) for policy in ours)
    opened = any(policy.get("egress") for policy in ours)
    if denied and not opened:
        return []
    what = "lets sandboxes open connections" if denied else "has no network policy that cuts sandboxes off"
    severity: Literal["error", "warning"] = "error" if config.kubernetes.require_network_policy else "warning"
    message = f"Namespace {config.kubernetes.namespace} {what}: {_APPLY}."
    return [PreflightFinding(severity=severity, message=message)]


def _selects_sandboxes(policy: Json) -> bool:
    selector = policy.get("podSelector") or {}
    wanted = selector.get("matchLabels") or {}
    return not selector.get("matchExpressions") and all(
        labels.COMMON.get(key) == value for key, value in wanted.items()
    )


async def _quota(api: KubeApi, config: SandboxConfig) -> list[PreflightFinding]:
    try:
        found = await api.list(f"/api/v1/namespaces/{config.kubernetes.namespace}/resourcequotas")
    except ApiError as error:
        if error.status in (403, 404):
            return []
        raise
    needs = _needs(config)
    problems = []
    for quota in found["items"]:
        status = quota.get("status") or {}
        hard, used = status.get("hard") or {}, status.get("used") or {}
        for resource, amount in needs.items():
            if resource not in hard or not amount:
                continue
            room = int((parse_quantity(hard[resource]) - parse_quantity(used.get(resource, "0"))) / amount)
            if room < config.max_live:
                message = (
                    f"Quota {quota['metadata']['name']} leaves room for "
                    f"{max(0, room)} of {config.max_live} sandboxes ({resource} {hard[resource]}, "
                    f"{used.get(resource, 0)} used): raise it, or lower sandbox.max_live."
                )
                problems.append(
                    PreflightFinding.error(message) if room < 1 else PreflightFinding.warning(message)
                )
    return problems


def _needs(config: SandboxConfig) -> dict[str, Decimal]:
    """What one sandbox takes of a quota, by the quota's names."""
    limits = SandboxLimits(memory_mb=config.memory_mb, processes=config.processes, disk_mb=config.disk_mb)
    containers = spec.container_resources(config.kubernetes, limits)
    needs = {"pods": Decimal(1), "count/pods": Decimal(1)}
    for field in ("requests", "limits"):
        for resource in ("cpu", "memory", "ephemeral-storage"):
            total = sum((parse_quantity(one[field][resource]) for one in containers), Decimal(0))
            needs[f"{field}.{resource}"] = total
            if field == "requests":
                needs[resource] = total
    return needs


async def _try_one(backend: KubernetesBackend) -> list[PreflightFinding]:
    """Start a sandbox of the configured image, run a command, and see what it reaches."""
    image = backend.config.kubernetes.preflight_image
    try:
        async with backend.open(SandboxSpec(image=image, workdir="/tmp", name="preflight")) as sandbox:
            result = await sandbox.exec("echo works", timeout_s=30)
            if result.stdout != b"works\n":
                printed = result.stdout + result.stderr
                return [PreflightFinding.error(f"A trivial command printed {printed[:500]!r}.")]
    except (SandboxError, PreflightError) as error:
        return [PreflightFinding.error(f"A sandbox of {image} does not start: {error}.")]
    return []


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
