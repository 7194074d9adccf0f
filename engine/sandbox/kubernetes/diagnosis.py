"""Interpretation of a pod's status: running, waiting or failed. Pure functions of the JSON.

An unknown reason becomes a plain start or died error with the cluster's words; to give it another type, add
it to the tables.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from engine.errors import (
    ImageError,
    SandboxDiedError,
    SandboxError,
    SandboxEvictedError,
    SandboxMemoryError,
    SandboxStartError,
)
from engine.sandbox.agent.interpreters import NO_PYTHON_STATUS
from engine.sandbox.kubernetes.manifests.labels import IMAGE
from engine.sandbox.kubernetes.manifests.spec import BASE_FILES, SANDBOX
from engine.sandbox.registries import without_image

Json = dict[str, Any]
_PULL = frozenset(("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError"))
_NEVER_PULLS = frozenset(("InvalidImageName", "ErrImageNeverPull"))
_HOPELESS = (
    "not found",
    "manifest unknown",
    "does not exist",
    "unauthorized",
    "authentication required",
    "access denied",
    "forbidden",
    "denied:",
    "invalid reference",
    "no match for platform",
)
"""Phrases in registry errors for which a retry is pointless."""
_CANNOT_RUN = frozenset(
    (
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "StartError",
        "ContainerCannotRun",
    )
)
_TAKEN_AWAY = frozenset(
    (
        "Evicted",
        "Preempting",
        "NodeLost",
        "NodeShutdown",
        "Terminated",
        "Shutdown",
        "NodeAffinity",
        "UnexpectedAdmissionError",
    )
)
_LIFETIME = "DeadlineExceeded"


@dataclass(frozen=True, slots=True)
class Waiting:
    """State of a pod that may still start."""

    stage: str
    """Stage whose timeout applies: ``schedule``, ``pull`` or ``start``."""
    reason: str
    """Reason in the cluster's words; empty while the start proceeds normally."""


def running(pod: Json) -> bool:
    """Return whether both containers run and the pod has an address."""
    states = (_state(pod, SANDBOX), _state(pod, BASE_FILES))
    return all("running" in state for state in states) and bool(address(pod))


def waiting(pod: Json) -> Waiting:
    """Return the stage and the reason for which a pod does not run yet."""
    status = pod.get("status", {})
    scheduled = _condition(status, "PodScheduled")
    if not pod["spec"].get("nodeName"):
        blocked = scheduled is not None and scheduled.get("status") == "False"
        reason = f"{scheduled.get('reason')}: {scheduled.get('message')}" if blocked and scheduled else ""
        return Waiting("schedule", reason)
    for state in _waiting_states(status):
        if state.get("reason") in _PULL:
            return Waiting("pull", _words(state))
    usual = (None, "ContainerCreating", "PodInitializing")
    trouble = next((state for state in _waiting_states(status) if state.get("reason") not in usual), None)
    return Waiting("pull" if _pulling(pod) else "start", _words(trouble) if trouble else "")


def failure(pod: Json | None) -> SandboxError | None:
    """Return the reason why a pod cannot host a sandbox (any more); None while it may."""
    if pod is None:
        return SandboxEvictedError("the pod was deleted by another client")
    name, status = pod["metadata"]["name"], pod.get("status", {})
    reason = str(status.get("reason") or "")
    if reason == _LIFETIME:
        return SandboxDiedError(f"pod {name} reached the end of its lifetime")
    disruption = _condition(status, "DisruptionTarget")
    if reason in _TAKEN_AWAY or (disruption is not None and disruption.get("status") == "True"):
        words = status.get("message") or (disruption or {}).get("message") or reason
        return SandboxEvictedError(
            f"pod {name} was taken away: {reason or (disruption or {}).get('reason')}: {words}"
        )
    for container in (SANDBOX, BASE_FILES):
        if terminated := _state(pod, container).get("terminated"):
            return _ended(pod, container, terminated)
    for state in _waiting_states(status):
        if error := _hopeless(pod, state):
            return error
    if pod["metadata"].get("deletionTimestamp"):
        return SandboxEvictedError(f"pod {name} is being deleted by another client")
    if status.get("phase") in ("Failed", "Succeeded"):
        return SandboxDiedError(f"pod {name} ended: {reason} {status.get('message') or ''}".rstrip(" :"))
    return None


def node(pod: Json) -> str:
    """Return the node of the pod; empty before it was scheduled."""
    return str(pod["spec"].get("nodeName") or "")


def address(pod: Json) -> str:
    """Return the pod's IP address; empty before it has one."""
    return str(pod.get("status", {}).get("podIP") or "")


def pull_seconds(pod: Json) -> float:
    """Return the seconds from the pod's sandbox to its container's start; 0 when the image was present."""
    status = pod.get("status", {})
    ready = _condition(status, "PodReadyToStartContainers") or _condition(status, "PodScheduled")
    began = _time((ready or {}).get("lastTransitionTime"))
    started = _time(_state(pod, SANDBOX).get("running", {}).get("startedAt"))
    seconds = (started - began).total_seconds() if began and started else 0.0
    return seconds if seconds > 1 else 0.0


def seconds_on_node(pod: Json, now: float) -> float:
    """Return the time for which the kubelet has known the pod, seconds; ``now`` is the cluster's clock."""
    start = _time(pod.get("status", {}).get("startTime"))
    return max(0.0, now - start.timestamp()) if start else 0.0


def _ended(pod: Json, container: str, terminated: Json) -> SandboxError:
    name, code = pod["metadata"]["name"], terminated.get("exitCode")
    reason, words = str(terminated.get("reason") or ""), str(terminated.get("message") or "").strip()
    if reason == "OOMKilled" and container == SANDBOX:
        return SandboxMemoryError(f"pod {name} went over its memory limit")
    if code == NO_PYTHON_STATUS:
        return ImageError(f"image '{_image(pod)}' has {words or 'no Python that can run the agent'}")
    if reason in _CANNOT_RUN:
        return SandboxStartError(f"pod {name} cannot run: {reason}: {words}")
    detail = f"{reason} {words}".strip()
    return SandboxDiedError(
        f"container {container} of pod {name} ended with status {code}" + (f": {detail}" if detail else "")
    )


def _hopeless(pod: Json, state: Json) -> SandboxError | None:
    image = str(pod["spec"]["containers"][0].get("image"))
    reason, words = str(state.get("reason") or ""), without_image(str(state.get("message") or ""), image)
    if reason in _NEVER_PULLS or (reason in _PULL and any(word in words.lower() for word in _HOPELESS)):
        return ImageError(f"image '{_image(pod)}' cannot be pulled: {_words(state)}")
    if reason in _CANNOT_RUN:
        return SandboxStartError(f"pod {pod['metadata']['name']} cannot run: {_words(state)}")
    return None


def _image(pod: Json) -> str:
    named = (pod["metadata"].get("annotations") or {}).get(IMAGE)
    return str(named or pod["spec"]["containers"][0].get("image"))


def _state(pod: Json, name: str) -> Json:
    """Return the ``state`` of a container; empty before it has one."""
    for container in pod.get("status", {}).get("containerStatuses") or []:
        if container.get("name") == name:
            state: Json = container.get("state") or {}
            return state
    return {}


def _waiting_states(status: Json) -> Iterator[Json]:
    for field in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(field) or []:
            if waiting_state := (container.get("state") or {}).get("waiting"):
                yield waiting_state


def _pulling(pod: Json) -> bool:
    """Return whether only the image pull is left to do on the node, according to the status."""
    status = pod.get("status", {})
    ready = _condition(status, "PodReadyToStartContainers")
    return ready is not None and ready.get("status") == "True" and "running" not in _state(pod, SANDBOX)


def _condition(status: Json, kind: str) -> Json | None:
    return next((item for item in status.get("conditions") or [] if item.get("type") == kind), None)


def _words(state: Json) -> str:
    return f"{state.get('reason')}: {state.get('message') or ''}".rstrip(": ")


def _time(text: object) -> datetime.datetime | None:
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")) if isinstance(text, str) else None
