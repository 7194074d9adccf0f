"""A pod's status, computed from its containers as the kubelet computes it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from tests.fakes.cluster.containers import Container
from tests.fakes.cluster.objects import condition
from tests.fakes.cluster.resources import Object

HOST_IP = "127.0.0.1"


def _container_status(container: Container) -> Object:
    """One entry of ``containerStatuses``."""
    image = container.spec["image"]
    status: Object = {
        "name": container.name,
        "image": image,
        "imageID": "",
        "ready": container.running,
        "started": container.running,
        "restartCount": 0,
        "state": _state(container),
    }
    if container.started_at is not None:
        status["imageID"] = f"{image}@sha256:{hashlib.sha256(image.encode()).hexdigest()}"
        status["containerID"] = f"containerd://{container.id}"
    return status


def _state(container: Container) -> Object:
    if container.exit is not None:
        ended: Object = {
            "exitCode": container.exit.code,
            "reason": container.exit.word,
            "startedAt": container.started_at,
            "finishedAt": container.finished_at,
            "containerID": f"containerd://{container.id}",
        }
        return {"terminated": ended | ({"message": text} if (text := container.exit.message) else {})}
    if container.started_at is not None:
        return {"running": {"startedAt": container.started_at}}
    return {
        "waiting": {"reason": container.waiting} | ({"message": text} if (text := container.message) else {})
    }


def write(status: Object, inits: Sequence[Container], containers: Sequence[Container], *, over: bool) -> None:
    """Bring a status up to date with the containers.

    Args:
        over: no container will start any more.
    """
    if inits:
        status["initContainerStatuses"] = [_container_status(one) for one in inits]
    status["containerStatuses"] = [_container_status(one) for one in containers]
    status["phase"] = _phase(containers, over=over)
    initialized = all(one.exit is not None and one.exit.code == 0 for one in inits)
    ready = not over and all(one["ready"] for one in status["containerStatuses"])
    pod: Object = {"status": status}
    condition(pod, "PodReadyToStartContainers", true=True)
    condition(pod, "Initialized", true=initialized, reason="" if initialized else "ContainersNotInitialized")
    condition(pod, "Ready", true=ready, reason="" if ready else "ContainersNotReady")


def _phase(containers: Sequence[Container], *, over: bool) -> str:
    """Pending, Running, Succeeded or Failed."""
    if over:
        succeeded = all(one.exit is not None and one.exit.code == 0 for one in containers)
        return "Succeeded" if succeeded else "Failed"
    return "Running" if all(one.started_at is not None for one in containers) else "Pending"
