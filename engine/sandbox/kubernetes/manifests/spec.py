"""Manifests: pods, the agent's ConfigMap, and the patch that claims a warm pod.

Pure functions of the configuration, with golden files. A pod has two containers of the same image:
``sandbox``, whose init is the agent and in which commands run, and ``pristine``, whose agent never runs
commands, so that its files stay original. To add a setting, extend ``KubernetesConfig`` and the function that
builds that part.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import engine.sandbox.agent
from engine.config.kubernetes import KubernetesConfig
from engine.sandbox.agent.interpreters import CANDIDATES, launcher
from engine.sandbox.agent.limits import PROCESSES_VARIABLE, RLIMITS_VARIABLE
from engine.sandbox.agent.listen import TOKEN_VARIABLE
from engine.sandbox.base import SandboxLimits, SandboxSpec
from engine.sandbox.kubernetes.manifests import labels
from engine.sandbox.kubernetes.manifests.images import resolve_image

Json = dict[str, Any]
SANDBOX, BASE_FILES = "sandbox", "pristine"
ACCEPT_S = 90
"""Time an agent waits for its client before it exits, and with it the container, seconds."""
SLACK_S = 120
"""Time by which a pod may outlive its sandbox's lifetime before the kubelet ends it, seconds."""
WARM_DEADLINE_S = 24 * 3600
"""The kubelet's deadline of a pod that waits to be claimed, seconds; claiming shortens it."""

_FOLDER = "/run/trainyard"
_FILES = f"{_FOLDER}/agent"
_BROUGHT_PYTHON = f"{_FOLDER}/python/bin/python3"
# The token is piped to the agent, which replaces the shell, so that its environment does not contain it.
_START = (
    f"token=${TOKEN_VARIABLE}; unset {TOKEN_VARIABLE}; ulimit -S -n 65536 2>/dev/null; "
    'exec "$@" <<END\n$token\nEND\n'
)
_WAIT = "exec sleep 2147483647"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Owner reference of pods for garbage collection: a lease, see ``owner``."""

    name: str
    uid: str


def pod(
    config: KubernetesConfig,
    spec: SandboxSpec,
    *,
    sandbox_id: str,
    owner: Owner,
    token: bytes,
    deadline: float,
    warm: bool = False,
) -> Json:
    """Return the manifest of one sandbox's pod.

    Args:
        sandbox_id: also the pod's name, so that repeated requests create one pod.
        token: secret that clients must send to its agents.
        deadline: when a reaper may remove the pod, seconds since the epoch by the cluster's clock.
        warm: whether the pod is started ahead of demand.

    Raises:
        ImageError: the image is not allowed on this cluster.
    """
    image = resolve_image(config, spec.image)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": sandbox_id,
            "namespace": config.namespace,
            "labels": {
                **config.labels,
                **labels.COMMON,
                labels.SANDBOX_ID: sandbox_id,
                labels.OWNER: owner.name,
                labels.POOL: pool_key(spec.image, spec.limits),
                **_purpose_labels(spec, warm=warm),
            },
            "annotations": {
                **config.annotations,
                labels.IMAGE: spec.image,
                **_purpose_annotations(spec, deadline, warm=warm),
            },
            "ownerReferences": [
                {
                    "apiVersion": "coordination.k8s.io/v1",
                    "kind": "Lease",
                    "name": owner.name,
                    "uid": owner.uid,
                }
            ],
        },
        "spec": _pod_spec(config, spec.limits, image, token, warm=warm),
    }


def claim(spec: SandboxSpec, *, deadline: float, running_s: float) -> Json:
    """Return the merge patch that turns a warm pod into the sandbox of ``spec``.

    Args:
        deadline: see ``pod``.
        running_s: time that the pod has been on its node, seconds.
    """
    active = min(WARM_DEADLINE_S, math.ceil(running_s + spec.limits.lifetime_s + SLACK_S))
    return {
        "metadata": {
            "labels": _purpose_labels(spec, warm=False),
            "annotations": _purpose_annotations(spec, deadline, warm=False),
        },
        "spec": {"activeDeadlineSeconds": active},
    }


def pool_key(image: str, limits: SandboxLimits) -> str:
    """Return a hash of the key of interchangeable sandboxes: image and limits except the lifetime."""
    shape = (image, limits.memory_mb, limits.processes, limits.disk_mb, limits.cpus)
    return hashlib.sha256(repr(shape).encode()).hexdigest()[:16]


@cache
def agent_config_map() -> Json:
    """Return an immutable ConfigMap of the agent's source files, shared by all pods, named by content."""
    folder = Path(engine.sandbox.agent.__file__).parent
    files = {path.name: path.read_text() for path in sorted(folder.glob("*.py"))}
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:12]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"trainyard-agent-{digest}", "labels": dict(labels.COMMON)},
        "immutable": True,
        "data": files,
    }


def _purpose_labels(spec: SandboxSpec, *, warm: bool) -> dict[str, str]:
    if warm:
        return {labels.STATE: labels.WARM}
    run = {labels.RUN_ID: labels.label_value(spec.run_id)}
    return {labels.STATE: labels.LEASED, **run, **labels.rollout_labels(spec.name)}


def _purpose_annotations(spec: SandboxSpec, deadline: float, *, warm: bool) -> dict[str, str]:
    return {
        labels.DEADLINE: f"{deadline:.0f}",
        labels.NAME: spec.name,
        labels.SAFE_TO_EVICT: "true" if warm else "false",
        labels.DO_NOT_DISRUPT: "false" if warm else "true",
    }


def container_resources(config: KubernetesConfig, limits: SandboxLimits) -> tuple[Json, Json]:
    """Return requests and limits of a pod's two containers."""
    fixed = {"memory": f"{config.pristine_memory_mb}Mi", "ephemeral-storage": "16Mi"}
    pristine = {"requests": {"cpu": "10m", **fixed}, "limits": {"cpu": "1", **fixed}}
    return _resources(config, limits), pristine


def _pod_spec(
    config: KubernetesConfig, limits: SandboxLimits, image: str, token: bytes, *, warm: bool
) -> Json:
    active = limits.lifetime_s + config.pull_timeout_s + config.start_timeout_s + SLACK_S
    sandbox_resources, pristine_resources = container_resources(config, limits)
    spec: Json = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": WARM_DEADLINE_S if warm else math.ceil(active),
        "terminationGracePeriodSeconds": config.delete_grace_s,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "hostname": "sandbox",
        # Names never resolve, and fail at once instead of after the resolver's timeout.
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["127.0.0.1"]},
        "securityContext": pod_security(config),
        "containers": [
            _container(config, SANDBOX, image, sandbox_resources, config.agent_port, token, limits),
            _container(config, BASE_FILES, image, pristine_resources, config.agent_port + 1, token),
        ],
        **_agent_volume(config),
        **placement(config),
    }
    if config.host_users is not None:
        spec["hostUsers"] = config.host_users
    if config.runtime_class:
        spec["runtimeClassName"] = config.runtime_class
    if config.priority_class:
        spec["priorityClassName"] = config.priority_class
    return spec


def placement(config: KubernetesConfig) -> Json:
    """Return the pod fields for node selection and image pull secrets."""
    spec: Json = {}
    if config.node_selector:
        spec["nodeSelector"] = dict(config.node_selector)
    if config.tolerations:
        spec["tolerations"] = [
            {key: value for key, value in toleration.model_dump().items() if value}
            for toleration in config.tolerations
        ]
    if config.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in config.image_pull_secrets]
    return spec


def pod_security(config: KubernetesConfig) -> Json:
    """Return the security context shared by all containers of a pod."""
    kind, _, profile = config.seccomp.partition("/")
    security: Json = {"seccompProfile": {"type": kind, **({"localhostProfile": profile} if profile else {})}}
    if config.run_as_user is not None:
        security["runAsUser"] = config.run_as_user
    if config.run_as_non_root:
        security["runAsNonRoot"] = True
    return security


def _container(
    config: KubernetesConfig,
    name: str,
    image: str,
    resources: Json,
    port: int,
    token: bytes,
    limits: SandboxLimits | None = None,
) -> Json:
    env = [{"name": TOKEN_VARIABLE, "value": token.hex()}]
    if limits is not None:
        env.append({"name": PROCESSES_VARIABLE, "value": str(limits.processes)})
    if limits is not None and config.host_users is False:
        # Without a user namespace the kernel would count the user's processes in all pods of the node. The
        # address space is unlimited (-1): the container limits memory.
        env.append({"name": RLIMITS_VARIABLE, "value": f"-1,{limits.processes}"})
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": config.image_pull_policy,
        "command": agent_command(config, port),
        "env": env,
        "ports": [
            {"name": "agent" if name == SANDBOX else BASE_FILES, "containerPort": port, "protocol": "TCP"}
        ],
        "resources": resources,
        "securityContext": security(config.added_capabilities),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "agent", "mountPath": _FOLDER if config.agent_image else _FILES, "readOnly": True}
        ],
    }


def agent_command(config: KubernetesConfig, port: int) -> list[str]:
    """Return a container's command: the agent on its port, or an idle process if ``pods/exec`` starts it."""
    if config.connect == "exec":
        return ["/bin/sh", "-c", _WAIT]
    code = f"from agent.listen import main; main({port}, {ACCEPT_S})"
    return ["/bin/sh", "-c", _START, "start", *_launcher(config, code)]


def exec_command(config: KubernetesConfig) -> list[str]:
    """Return the command of ``pods/exec``: the agent on stdin and stdout."""
    return _launcher(config, "from agent.listen import serve_stdio; serve_stdio()")


def _launcher(config: KubernetesConfig, code: str) -> list[str]:
    return python_command(config, f"import sys; sys.path[:0] = ['{_FOLDER}']; {code}")


def python_command(config: KubernetesConfig, code: str) -> list[str]:
    """Return a command that runs one line of Python with the agent's interpreter."""
    candidates = (_BROUGHT_PYTHON, *CANDIDATES) if config.agent_image else CANDIDATES
    return launcher(code, candidates)


def security(added_capabilities: Sequence[str]) -> Json:
    """Return a container's security context: all capabilities dropped except those added back."""
    capabilities: Json = {"drop": ["ALL"]}
    if added_capabilities:
        capabilities["add"] = list(added_capabilities)
    return {"allowPrivilegeEscalation": False, "privileged": False, "capabilities": capabilities}


def _resources(config: KubernetesConfig, limits: SandboxLimits) -> Json:
    fixed = {"memory": f"{limits.memory_mb}Mi", "ephemeral-storage": f"{limits.disk_mb}Mi"}
    return {
        "requests": {"cpu": _cores(min(config.cpu_request, limits.cpus)), **fixed},
        "limits": {"cpu": _cores(limits.cpus), **fixed},
    }


def _cores(count: float) -> str:
    return f"{count:g}" if count == int(count) else f"{round(count * 1000)}m"


def _agent_volume(config: KubernetesConfig) -> Json:
    if not config.agent_image:
        source = {"name": agent_config_map()["metadata"]["name"], "defaultMode": 0o444}
        return {"volumes": [{"name": "agent", "configMap": source}]}
    small = {"cpu": "100m", "memory": "64Mi", "ephemeral-storage": "16Mi"}
    bring: Json = {
        "name": "agent",
        "image": resolve_image(config, config.agent_image),
        "imagePullPolicy": config.image_pull_policy,
        "command": ["/bin/sh", "-c", f"cp -a /trainyard/. {_FOLDER}/"],
        "resources": {"requests": small, "limits": {**small, "memory": "256Mi"}},
        "securityContext": security(config.added_capabilities),
        "volumeMounts": [{"name": "agent", "mountPath": _FOLDER}],
    }
    volume = {"name": "agent", "emptyDir": {"medium": "Memory", "sizeLimit": "192Mi"}}
    return {"initContainers": [bring], "volumes": [volume]}
