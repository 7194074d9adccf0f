"""Diagnosis of pod statuses as real clusters write them."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import (
    ImageError,
    SandboxDiedError,
    SandboxError,
    SandboxEvictedError,
    SandboxMemoryError,
    SandboxStartError,
)
from engine.sandbox.kubernetes import diagnosis
from engine.sandbox.kubernetes.manifests.labels import IMAGE

Json = dict[str, Any]


def pod(
    *, state: Json | None = None, node: str = "n1", conditions: list[Json] | None = None, **status: Any
) -> Json:
    containers = [{"name": "pristine", "state": {"running": {}}}, {"name": "sandbox", "state": state or {}}]
    return {
        "metadata": {"name": "sb-1", "annotations": {IMAGE: "demo:1"}},
        "spec": {"nodeName": node, "containers": [{"image": "registry.example/demo:1"}]},
        "status": {"containerStatuses": containers, "conditions": conditions or [], **status},
    }


def waits(reason: str, message: str = "") -> Json:
    return {"waiting": {"reason": reason, "message": message}}


def ended(code: int, reason: str, message: str = "") -> Json:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


@pytest.mark.parametrize(
    ("found", "kind", "mention"),
    [
        (pod(state=ended(137, "OOMKilled")), SandboxMemoryError, "memory"),
        (
            pod(state=ended(97, "Error", "no Python 3.7 or newer in the image")),
            ImageError,
            "'demo:1' has no Python",
        ),
        (pod(state=ended(128, "StartError", "exec: sh")), SandboxStartError, "exec: sh"),
        (pod(state=ended(1, "Error", "Traceback")), SandboxDiedError, "Traceback"),
        (pod(state=ended(0, "Completed")), SandboxDiedError, "status 0"),
        (
            pod(phase="Failed", reason="Evicted", message="low on memory"),
            SandboxEvictedError,
            "low on memory",
        ),
        (pod(phase="Failed", reason="NodeLost"), SandboxEvictedError, "NodeLost"),
        (pod(phase="Failed", reason="DeadlineExceeded"), SandboxDiedError, "lifetime"),
        (
            pod(
                state=ended(137, "Error"),
                conditions=[
                    {
                        "type": "DisruptionTarget",
                        "status": "True",
                        "reason": "PreemptionByScheduler",
                        "message": "made room",
                    }
                ],
            ),
            SandboxEvictedError,
            "PreemptionByScheduler: made room",
        ),
        (pod(state=waits("InvalidImageName", "bad")), ImageError, "InvalidImageName: bad"),
        (pod(state=waits("ErrImagePull", "manifest unknown")), ImageError, "manifest unknown"),
        (pod(state=waits("ImagePullBackOff", "401 Unauthorized")), ImageError, "Unauthorized"),
        (pod(state=waits("CreateContainerConfigError", "no configmap")), SandboxStartError, "no configmap"),
        (None, SandboxEvictedError, "deleted by another client"),
    ],
)
def test_failed_pods_map_to_typed_errors(found: Json | None, kind: type[SandboxError], mention: str) -> None:
    error = diagnosis.failure(found)
    assert type(error) is kind
    assert mention in str(error)


@pytest.mark.parametrize(
    "found",
    [
        pod(),
        pod(state=waits("ContainerCreating")),
        pod(state=waits("ImagePullBackOff", "toomanyrequests: rate limit")),
        pod(state=waits("ErrImagePull", "dial tcp: i/o timeout")),
        pod(state={"running": {}}, podIP="10.0.0.1", phase="Running"),
    ],
)
def test_pending_and_running_pods_are_no_failures(found: Json) -> None:
    assert diagnosis.failure(found) is None


def test_words_in_an_image_name_are_not_taken_for_a_registry_error() -> None:
    image = "registry.example/forbidden/unauthorized:1"
    observed = pod(state=waits("ErrImagePull", f'failed to pull "{image}": i/o timeout'))
    observed["spec"]["containers"][0]["image"] = image
    assert diagnosis.failure(observed) is None


def test_pod_being_deleted_is_evicted() -> None:
    observed = pod(state={"running": {}}, podIP="10.0.0.1")
    observed["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert isinstance(diagnosis.failure(observed), SandboxEvictedError)


def test_waiting_reports_the_stage_and_the_blocking_reason() -> None:
    unschedulable = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/3 nodes are available",
    }
    assert diagnosis.waiting(pod(node="")) == diagnosis.Waiting("schedule", "")
    blocked = diagnosis.waiting(pod(node="", conditions=[unschedulable]))
    assert blocked == diagnosis.Waiting("schedule", "Unschedulable: 0/3 nodes are available")
    assert diagnosis.waiting(pod()).stage == "start"
    network = [{"type": "PodReadyToStartContainers", "status": "True"}]
    assert diagnosis.waiting(pod(state=waits("ContainerCreating"), conditions=network)).stage == "pull"
    pull = diagnosis.waiting(pod(state=waits("ErrImagePull", "toomanyrequests")))
    assert pull == diagnosis.Waiting("pull", "ErrImagePull: toomanyrequests")


def test_end_of_the_pristine_container_is_a_death_not_a_memory_error() -> None:
    observed = pod(state={"running": {}}, podIP="10.0.0.1")
    observed["status"]["containerStatuses"][0]["state"] = ended(137, "OOMKilled")
    assert type(diagnosis.failure(observed)) is SandboxDiedError
    assert not diagnosis.running(observed)


def test_running_pod_needs_running_containers_and_an_address() -> None:
    assert diagnosis.running(pod(state={"running": {}}, podIP="10.0.0.1"))
    assert not diagnosis.running(pod(state={"running": {}}))
    assert not diagnosis.running(pod(state=waits("ContainerCreating"), podIP="10.0.0.1"))


def test_pull_time_is_measured_from_network_to_container_start() -> None:
    def after(seconds: int) -> Json:
        ready = {
            "type": "PodReadyToStartContainers",
            "status": "True",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        started = {"running": {"startedAt": f"2026-01-01T00:00:{seconds:02}Z"}}
        return pod(state=started, conditions=[ready])

    assert diagnosis.pull_seconds(after(42)) == 42
    assert diagnosis.pull_seconds(after(1)) == 0
    assert diagnosis.pull_seconds(pod()) == 0
