"""A pod's status, computed from its containers as the kubelet computes it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from tests.fakes.cluster.containers import Container
from tests.fakes.cluster.objects import condition
from tests.fakes.cluster.resources import Object

HOST_IP = "127.0.0.1"


def container_status(container: Container) -> Object:
    """One entry of ``containerStatuses``."""
    image = container.spec["image"]
    running = container.exit is None and container.started_at is not None
    status: Object = {
        "name": container.name,
        "image": image,
        "imageID": "",
        "ready": running,
        "started": running,
        "restartCount": container.restarts,
        "state": _state(container),
        "lastState": {"terminated": container.last} if container.last else {},
    }
    if container.started_at is not None:
        digest = hashlib.sha256(image.encode()).hexdigest()
        status["imageID"] = image if "@" in image else f"{image}@sha256:{digest}"
        status["containerID"] = f"containerd://{container.id}"
    return status


def _state(container: Container) -> Object:
    if container.exit is not None and not container.waiting:
        return {"terminated": terminated(container)}
    if container.started_at is not None and not container.waiting:
        return {"running": {"startedAt": container.started_at}}
    waiting = {"reason": container.waiting}
    if container.message:
        waiting["message"] = container.message
    return {"waiting": waiting}


def terminated(container: Container) -> Object:
    """The record of a container's end."""
    assert container.exit is not None
    ended: Object = {
        "exitCode": container.exit.code,
        "reason": container.exit.word,
        "startedAt": container.started_at,
        "finishedAt": container.finished_at,
        "containerID": f"containerd://{container.id}",
    }
    if container.exit.message:
        ended["message"] = container.exit.message
    return ended


def write(status: Object, inits: Sequence[Container], containers: Sequence[Container], *, over: bool) -> None:
    """Bring a status up to date with the containers.

    Args:
        over: no container will start any more.
    """
    if inits:
        status["initContainerStatuses"] = [container_status(one) for one in inits]
    status["containerStatuses"] = [container_status(one) for one in containers]
    status["phase"] = phase(containers, over=over)
    initialized = all(one.sidecar or (one.exit is not None and one.exit.code == 0) for one in inits)
    ready = not over and all(one["ready"] for one in status["containerStatuses"])
    pod: Object = {"status": status}
    why = "" if ready else ("PodCompleted" if status["phase"] == "Succeeded" else "ContainersNotReady")
    condition(pod, "PodReadyToStartContainers", true=True)
    condition(pod, "Initialized", true=initialized, reason="" if initialized else "ContainersNotInitialized")
    condition(pod, "ContainersReady", true=ready, reason=why)
    condition(pod, "Ready", true=ready, reason=why)


def phase(containers: Sequence[Container], *, over: bool) -> str:
    """Pending, Running, Succeeded or Failed."""
    if over:
        return (
            "Succeeded"
            if all(one.exit is not None and one.exit.code == 0 for one in containers)
            else "Failed"
        )
    return "Running" if all(one.ever_started for one in containers) else "Pending"
