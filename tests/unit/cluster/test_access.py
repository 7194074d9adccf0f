"""Tokens and roles."""

from __future__ import annotations

import base64
import json
import ssl
from pathlib import Path

import httpx
import yaml
from kubernetes import client
from kubernetes.client import CoreV1Api

from tests.builders.cluster_builders import api_client, configmap, do, fails, pod
from tests.fakes.cluster import FakeCluster

_RBAC = "rbac.authorization.k8s.io"


async def _allow(api: client.ApiClient, subject: dict[str, str], *rules: dict[str, list[str]]) -> None:
    rbac = client.RbacAuthorizationV1Api(api)
    await do(rbac.create_namespaced_role, "default", {"metadata": {"name": "some"}, "rules": list(rules)})
    binding = {
        "metadata": {"name": "some"},
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": "some"},
        "subjects": [subject],
    }
    await do(rbac.create_namespaced_role_binding, "default", binding)


async def test_wrong_and_missing_tokens(cluster: FakeCluster, tmp_path: Path) -> None:
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    authority = tmp_path / "ca.pem"
    authority.write_bytes(base64.b64decode(config["clusters"][0]["cluster"]["certificate-authority-data"]))

    async with httpx.AsyncClient(
        base_url=cluster.url, verify=ssl.create_default_context(cafile=authority)
    ) as http:
        wrong = await http.get("/api/v1/pods", headers={"Authorization": "Bearer nonsense"})
        assert (wrong.status_code, wrong.json()["reason"]) == (401, "Unauthorized")
        missing = await http.get("/api/v1/pods")
        assert missing.status_code == 403
        assert 'User "system:anonymous" cannot list resource "pods"' in missing.json()["message"]
        assert (await http.get("/version")).json()["minor"] == "33"
        assert (await http.get("/readyz")).text == "ok"


async def test_a_service_account_may_do_what_its_roles_say(
    cluster: FakeCluster, api: client.ApiClient
) -> None:
    core = CoreV1Api(api)
    await do(core.create_namespaced_service_account, "default", {"metadata": {"name": "robot"}})
    subject = {"kind": "ServiceAccount", "name": "robot", "namespace": "default"}
    await _allow(
        api,
        subject,
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "list"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"], "resourceNames": ["mine"]},
        {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get"]},
    )
    for name in ("mine", "other"):
        await do(core.create_namespaced_config_map, "default", configmap(name))
    with api_client(cluster.kubeconfig_of_account("default", "robot")) as own:
        robot = CoreV1Api(own)
        await do(robot.create_namespaced_pod, "default", pod("a"))
        assert len((await do(robot.list_namespaced_pod, "default")).items) == 1
        error = await fails(403, robot.delete_namespaced_pod, "a", "default")
        account = "system:serviceaccount:default:robot"
        assert json.loads(error.body)["message"] == (
            f'pods "a" is forbidden: User "{account}" cannot delete resource "pods" in API group "" '
            'in the namespace "default"'
        )
        await fails(403, robot.list_namespaced_pod, "default", watch=True)
        await fails(403, robot.list_pod_for_all_namespaces)
        await fails(403, robot.create_namespaced_pod, "kube-system", pod("a"))
        await fails(403, robot.read_namespaced_pod_log, "a", "default")
        await do(robot.read_namespaced_config_map, "mine", "default")
        await fails(403, robot.read_namespaced_config_map, "other", "default")
        await do(robot.read_namespace, "default")
        await fails(403, robot.read_namespace, "kube-system")
        for verb, expected in (("create", True), ("delete", False)):
            asked = {"resource": "pods", "verb": verb, "namespace": "default"}
            review = await do(
                client.AuthorizationV1Api(own).create_self_subject_access_review,
                {"spec": {"resourceAttributes": asked}},
            )
            assert review.status.allowed is expected
        review = await do(client.AuthenticationV1Api(own).create_self_subject_review, {})
        assert review.status.user_info.username == "system:serviceaccount:default:robot"


async def test_tokens_can_be_asked_for_through_the_api(cluster: FakeCluster, api: client.ApiClient) -> None:
    core = CoreV1Api(api)
    await _allow(
        api,
        {"kind": "Group", "name": "system:serviceaccounts:default"},
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["list"]},
    )
    made = await do(
        core.create_namespaced_service_account_token, "default", "default", {"spec": {"audiences": []}}
    )
    with api_client(cluster.kubeconfig_for(made.status.token, "asked")) as own:
        assert (await do(CoreV1Api(own).list_namespaced_pod, "default")).items == []
        await fails(403, CoreV1Api(own).delete_collection_namespaced_pod, "default")
