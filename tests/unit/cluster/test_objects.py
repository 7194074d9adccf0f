"""Creating, reading, changing and deleting, as the official client sees it on a real cluster."""

from __future__ import annotations

import datetime
import json
import uuid

import pytest
from kubernetes import client
from kubernetes.client import CoreV1Api

from tests.builders.cluster_builders import configmap, do, fails, pod
from tests.fakes.cluster import FakeCluster


async def test_a_new_object_gets_what_the_server_gives(core: CoreV1Api) -> None:
    made = await do(core.create_namespaced_config_map, "default", configmap("one"))
    assert uuid.UUID(made.metadata.uid)
    assert int(made.metadata.resource_version) > 0
    assert abs(made.metadata.creation_timestamp - datetime.datetime.now(datetime.UTC)) < datetime.timedelta(
        minutes=1
    )
    read = await do(core.read_namespaced_config_map, "one", "default")
    assert read.to_dict() == made.to_dict()


async def test_names_are_unique_and_can_be_generated(core: CoreV1Api) -> None:
    await do(core.create_namespaced_config_map, "default", configmap("one"))
    error = await fails(409, core.create_namespaced_config_map, "default", configmap("one"))
    assert json.loads(error.body)["reason"] == "AlreadyExists"
    assert json.loads(error.body)["message"] == 'configmaps "one" already exists'
    names = {(await do(core.create_namespaced_pod, "default", pod())).metadata.name for _ in range(5)}
    assert len(names) == 5
    assert all(name.startswith("pod-") and len(name) == 9 for name in names)


async def test_what_is_not_there_is_404_with_a_status(core: CoreV1Api) -> None:
    error = await fails(404, core.read_namespaced_pod, "none", "default")
    status = json.loads(error.body)
    assert status["kind"] == "Status"
    assert status["reason"] == "NotFound"
    assert status["details"] == {"name": "none", "kind": "pods"}
    await fails(404, core.create_namespaced_pod, "no-such-namespace", pod("a"))
    await fails(404, core.delete_namespaced_pod, "none", "default")


@pytest.mark.parametrize(
    ("change", "mention"),
    [
        ({"metadata": {"name": "Upper_Case"}}, "RFC 1123"),
        ({"metadata": {"name": "a", "labels": {"x": "v" * 64}}}, "label"),
        ({"spec": {"containers": []}}, "spec.containers: Required value"),
        ({"spec": {"containers": [{"name": "a", "image": "i"}], "restartPolicy": "Maybe"}}, "restartPolicy"),
        ({"spec": {"containers": [{"name": "a"}]}}, "spec.containers[0].image"),
        ({"spec": {"containers": [{"name": "a", "image": "i"}] * 2}}, "Duplicate value"),
        (
            {
                "spec": {
                    "containers": [
                        {"name": "a", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}
                    ]
                }
            },
            "volumeMounts[0].name",
        ),
        (
            {
                "spec": {
                    "containers": [
                        {
                            "name": "a",
                            "image": "i",
                            "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}},
                        }
                    ]
                }
            },
            "must be less than or equal to cpu limit",
        ),
        (
            {"spec": {"containers": [{"name": "a", "image": "i", "resources": {"limits": {"cpu": "much"}}}]}},
            "quantities",
        ),
    ],
)
async def test_invalid_objects_are_422_with_causes(
    core: CoreV1Api, change: dict[str, object], mention: str
) -> None:
    error = await fails(422, core.create_namespaced_pod, "default", {**pod("a"), **change})
    status = json.loads(error.body)
    assert status["reason"] == "Invalid"
    assert mention in status["message"]
    assert status["details"]["causes"]


async def test_misspelt_fields_are_dropped_with_a_warning_or_refused(core: CoreV1Api) -> None:
    wrong = pod("a", hostUser=False)
    made, _, headers = await do(core.create_namespaced_pod_with_http_info, "default", wrong)
    assert made.spec.host_users is None
    assert headers["Warning"] == '299 - "unknown field \\"spec.hostUser\\""'
    error = await fails(
        400, core.create_namespaced_pod, "default", pod("b", hostUser=False), field_validation="Strict"
    )
    assert 'unknown field \\"spec.hostUser\\"' in error.body
    await fails(400, core.create_namespaced_pod, "default", pod("c", activeDeadlineSeconds="soon"))


async def test_pods_are_completed_with_defaults(core: CoreV1Api) -> None:
    resources = {"limits": {"cpu": "1", "memory": "64Mi"}}
    made = await do(core.create_namespaced_pod, "default", pod("a", resources=resources))
    assert made.status.phase == "Pending"
    assert made.status.qos_class == "Guaranteed"
    assert made.spec.service_account_name == "default"
    assert made.spec.termination_grace_period_seconds == 30
    assert made.spec.containers[0].image_pull_policy == "IfNotPresent"
    assert made.spec.containers[0].resources.requests == {"cpu": "1", "memory": "64Mi"}
    assert {one.key for one in made.spec.tolerations} == {
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    }


async def test_references_of_a_pod_must_exist(api: client.ApiClient, core: CoreV1Api) -> None:
    for field, value, mention in (
        ("serviceAccountName", "nobody", "service account"),
        ("priorityClassName", "urgent", "no PriorityClass with name urgent was found"),
        ("runtimeClassName", "gvisor", 'RuntimeClass "gvisor" not found'),
    ):
        error = await fails(403, core.create_namespaced_pod, "default", pod("a", **{field: value}))
        assert mention in json.loads(error.body)["message"]
    scheduling = client.SchedulingV1Api(api)
    await do(scheduling.create_priority_class, {"metadata": {"name": "urgent"}, "value": 7})
    made = await do(core.create_namespaced_pod, "default", pod("a", priorityClassName="urgent"))
    assert made.spec.priority == 7


async def test_updates_need_the_latest_version(core: CoreV1Api) -> None:
    made = await do(core.create_namespaced_config_map, "default", configmap("one"))
    made.data = {"key": "second"}
    second = await do(core.replace_namespaced_config_map, "one", "default", made)
    assert int(second.metadata.resource_version) > int(made.metadata.resource_version)
    error = await fails(409, core.replace_namespaced_config_map, "one", "default", made)
    assert json.loads(error.body)["reason"] == "Conflict"
    assert "the object has been modified" in json.loads(error.body)["message"]
    same = await do(core.replace_namespaced_config_map, "one", "default", second)
    assert same.metadata.resource_version == second.metadata.resource_version


async def test_a_pods_spec_is_fixed_but_for_a_few_fields(core: CoreV1Api) -> None:
    await do(core.create_namespaced_pod, "default", pod("a"))
    changed = await do(core.patch_namespaced_pod, "a", "default", {"spec": {"activeDeadlineSeconds": 60}})
    assert changed.spec.active_deadline_seconds == 60
    assert changed.metadata.generation == 2
    error = await fails(422, core.patch_namespaced_pod, "a", "default", {"spec": {"hostNetwork": True}})
    assert "pod updates may not change fields" in json.loads(error.body)["message"]


async def test_status_and_spec_are_written_apart(core: CoreV1Api) -> None:
    await do(core.create_namespaced_pod, "default", pod("a"))
    body = {"status": {"phase": "Failed"}, "metadata": {"labels": {"new": "1"}}}
    plain = await do(core.patch_namespaced_pod, "a", "default", body)
    assert plain.status.phase == "Pending"
    assert plain.metadata.labels == {"new": "1"}
    status = await do(
        core.patch_namespaced_pod_status, "a", "default", {**body, "spec": {"hostNetwork": True}}
    )
    assert status.status.phase == "Failed"
    assert status.spec.host_network is None


async def test_immutable_configmaps_stay(core: CoreV1Api) -> None:
    await do(core.create_namespaced_config_map, "default", {**configmap("one"), "immutable": True})
    await fails(422, core.patch_namespaced_config_map, "one", "default", {"data": {"key": "other"}})
    await do(core.patch_namespaced_config_map, "one", "default", {"metadata": {"labels": {"a": "b"}}})


async def test_dry_runs_check_everything_and_store_nothing(core: CoreV1Api) -> None:
    made = await do(core.create_namespaced_config_map, "default", configmap("one"), dry_run="All")
    assert made.metadata.uid
    await fails(404, core.read_namespaced_config_map, "one", "default")
    await do(core.create_namespaced_config_map, "default", configmap("one"))
    await fails(409, core.create_namespaced_config_map, "default", configmap("one"), dry_run="All")
    await do(core.patch_namespaced_config_map, "one", "default", {"data": {"key": "other"}}, dry_run="All")
    await do(core.delete_namespaced_config_map, "one", "default", dry_run="All")
    assert (await do(core.read_namespaced_config_map, "one", "default")).data == {"key": "value"}


async def test_preconditions_of_deletions(core: CoreV1Api) -> None:
    made = await do(core.create_namespaced_config_map, "default", configmap("one"))
    other = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid=str(uuid.uuid4())))
    await fails(409, core.delete_namespaced_config_map, "one", "default", body=other)
    right = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid=made.metadata.uid))
    status = await do(core.delete_namespaced_config_map, "one", "default", body=right)
    assert status.status == "Success"


async def test_finalizers_hold_an_object(core: CoreV1Api) -> None:
    await do(core.create_namespaced_config_map, "default", configmap("one", finalizers=["test/hold"]))
    await do(core.delete_namespaced_config_map, "one", "default")
    held = await do(core.read_namespaced_config_map, "one", "default")
    assert held.metadata.deletion_timestamp is not None
    await do(core.patch_namespaced_config_map, "one", "default", {"metadata": {"finalizers": None}})
    await fails(404, core.read_namespaced_config_map, "one", "default")


async def test_other_clusters_paths_are_404(cluster: FakeCluster, api: client.ApiClient) -> None:
    await fails(404, client.AppsV1Api(api).list_namespaced_stateful_set, "default")
    await fails(404, client.CustomObjectsApi(api).list_cluster_custom_object, "example.org", "v1", "things")
