"""Workloads and preemption on the fake cluster; the cluster in a process of its own; kubectl."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from kubernetes.client import CoreV1Api

from engine.sandbox.conformance import reference_tree
from engine.sandbox.local.images import build_image
from tests.builders.cluster_builders import api_client, do, fails, pod
from tests.fakes.cluster import ClusterProcess, FakeCluster, Fault, FaultKind, NodeSpec

_REPO = Path(__file__).parents[3]
_PAUSE = "registry.k8s.io/pause:3.10"
_IMAGE = "registry.test/demo:1"
_PATIENCE_S = 120.0

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="pods are bubblewrap sandboxes")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    tree = folder / "tree"
    tree.mkdir()
    reference_tree(tree)
    build_image(folder, "demo", tree)
    return folder


@pytest.fixture
async def cluster(home: Path) -> AsyncIterator[FakeCluster]:
    nodes = [NodeSpec(name=name, cpu="4") for name in ("one", "two")]
    async with FakeCluster(home, nodes=nodes) as cluster:
        cluster.registry.add(_IMAGE, "demo")
        yield cluster


@pytest.fixture
def api(cluster: FakeCluster) -> Iterator[client.ApiClient]:
    with api_client(cluster.kubeconfig) as api:
        yield api


async def _until(condition: Any) -> Any:
    async with asyncio.timeout(_PATIENCE_S):
        while not (found := await condition()):
            await asyncio.sleep(0.05)
        return found


def _workload(name: str, spec: dict[str, Any], **more: Any) -> dict[str, Any]:
    template = {"metadata": {"labels": {"of": name}}, "spec": spec}
    return {
        "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": {"of": name}}, "template": template, **more},
    }


def _names(pods: Any) -> set[str]:
    return {one.spec.node_name for one in pods.items if one.status.phase == "Running"}


async def test_a_daemonset_brings_its_images_to_every_node(
    cluster: FakeCluster, api: client.ApiClient
) -> None:
    core, apps = CoreV1Api(api), client.AppsV1Api(api)
    spec = {
        "initContainers": [{"name": "image-0", "image": _IMAGE, "command": ["/bin/sh", "-c", ":"]}],
        "containers": [{"name": "pause", "image": _PAUSE}],
    }
    cluster.nodes.add(NodeSpec(name="tainted", taints=[{"key": "gpu", "effect": "NoSchedule"}]))
    await do(apps.create_namespaced_daemon_set, "default", _workload("preload", spec))

    async def status() -> Any:
        found = (await do(apps.read_namespaced_daemon_set, "preload", "default")).status
        return found if found and found.number_ready == 2 else None

    found = await _until(status)
    assert found.desired_number_scheduled == 2
    assert all(_IMAGE in cluster.kubelet.node_images(node).present for node in ("one", "two"))
    assert cluster.counters.pods_live == 0
    cluster.nodes.add(NodeSpec(name="late"))

    async def late() -> bool:
        return "late" in _names(await do(core.list_namespaced_pod, "default", label_selector="of=preload"))

    await _until(late)
    await do(apps.delete_namespaced_daemon_set, "preload", "default")

    async def gone() -> bool:
        return not (await do(core.list_namespaced_pod, "default")).items

    await _until(gone)


async def test_a_deployments_placeholders_yield_to_higher_pods(
    cluster: FakeCluster, api: client.ApiClient
) -> None:
    core, apps = CoreV1Api(api), client.AppsV1Api(api)
    scheduling = client.SchedulingV1Api(api)
    for name, value in (("headroom", -9), ("sandbox", -1)):
        await do(scheduling.create_priority_class, {"metadata": {"name": name}, "value": value})
    room = {"requests": {"cpu": "3"}}
    spec = {
        "priorityClassName": "headroom",
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "pause", "image": _PAUSE, "resources": room}],
    }
    await do(apps.create_namespaced_deployment, "default", _workload("headroom", spec, replicas=2))

    async def ready() -> bool:
        found = (await do(apps.read_namespaced_deployment, "headroom", "default")).status
        return bool(found and found.ready_replicas == 2)

    await _until(ready)
    small = pod("box", image=_PAUSE, priorityClassName="sandbox", resources={"requests": {"cpu": "2"}})
    await do(core.create_namespaced_pod, "default", small)

    async def running() -> Any:
        found = await do(core.read_namespaced_pod, "box", "default")
        return found if found.status.phase == "Running" else None

    placed = await _until(running)
    events = await do(core.list_namespaced_event, "default", field_selector="reason=Preempted")
    assert len(events.items) == 1

    async def replaced() -> Any:  # the deployment sees a moment later that a holder is gone
        holders = await do(core.list_namespaced_pod, "default", label_selector="of=headroom")
        return holders if {one.status.phase for one in holders.items} == {"Running", "Pending"} else None

    assert placed.spec.node_name not in _names(await _until(replaced))


async def test_jobs_run_to_their_completions(api: client.ApiClient) -> None:
    batch = client.BatchV1Api(api)
    for name, command in (("good", "exit 0"), ("bad", "exit 3")):
        spec = {
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": _IMAGE, "command": ["sh", "-c", command]}],
        }
        body = {
            "metadata": {"name": name},
            "spec": {"template": {"spec": spec}, "completions": 2, "backoffLimit": 1},
        }
        await do(batch.create_namespaced_job, "default", body)

    async def over(name: str) -> Any:
        status = (await do(batch.read_namespaced_job, name, "default")).status
        return status if status and status.conditions else None

    good, bad = await _until(lambda: over("good")), await _until(lambda: over("bad"))
    assert (good.succeeded, good.conditions[0].type) == (2, "Complete")
    assert (bad.failed, bad.conditions[0].reason) == (2, "BackoffLimitExceeded")


async def test_a_cluster_in_its_own_process_is_switched_from_here(home: Path) -> None:
    async with ClusterProcess(home, images={_IMAGE: "demo"}, options=("--nodes", "2")) as cluster:
        with api_client(cluster.kubeconfig) as api:
            core = CoreV1Api(api)
            assert len((await do(core.list_node)).items) == 2
            number = await cluster.add_fault(Fault(FaultKind.SERVER_ERROR, verbs={"create"}, count=1))
            await fails(500, core.create_namespaced_pod, "default", pod("a", command=["true"]))
            await do(core.create_namespaced_pod, "default", pod("a", command=["sleep", "60"]))

            async def running() -> bool:
                return bool((await do(core.read_namespaced_pod, "a", "default")).status.phase == "Running")

            await _until(running)
            state = await cluster.state()
            assert state["fault_hits"] == {str(number): 1}
            assert (state["pods_created"], state["pods_live"], state["sandboxes"]) == (1, 1, 1)
            with pytest.raises(RuntimeError, match="1 pods are live"):
                await cluster.settled(0.1)
            await cluster.switch("evict", namespace="default", name="a")
            await cluster.settled()
            with pytest.raises(RuntimeError, match="no kubelet runs"):
                await cluster.switch("evict", namespace="default", name="a")
            with pytest.raises(RuntimeError, match="there is no switch"):
                await cluster.switch("nonsense")
    assert not cluster.kubeconfig.exists()


async def test_a_cluster_that_cannot_listen_leaves_nothing_behind(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        before = asyncio.all_tasks()
        with pytest.raises(OSError, match="in use"):
            async with FakeCluster(home, port=port):
                pass
        assert asyncio.all_tasks() == before
        process = ClusterProcess(home, options=("--port", str(port)))
        with pytest.raises(RuntimeError, match="did not start: status 1"):
            await process.__aenter__()


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
async def test_kubectl_finds_itself_at_home(cluster: FakeCluster, tmp_path: Path) -> None:
    async def kubectl(*arguments: str, status: int = 0, stdin: bytes = b"", websockets: bool = True) -> str:
        process = await asyncio.create_subprocess_exec(
            "kubectl",
            "--kubeconfig",
            str(cluster.kubeconfig),
            "--cache-dir",
            str(tmp_path),
            *arguments,
            env={**os.environ, "KUBECTL_REMOTE_COMMAND_WEBSOCKETS": str(websockets).lower()},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate(stdin)
        assert process.returncode == status, (out, err)
        # Before 1.34 kubectl complains on stderr when the empty message with which API servers open an exec
        # arrives before it has made its own streams.
        return (out if status == 0 else out + err).decode()

    assert "v1.33.0" in await kubectl("version")
    assert "pods" in await kubectl("api-resources", "--namespaced=true", "-o", "name")
    manifests = _REPO / "deploy" / "kubernetes" / "sandbox"
    applied = await kubectl("apply", "-k", str(manifests))
    assert "namespace/trainyard-sandboxes created" in applied
    again = await kubectl("apply", "-k", str(manifests))
    assert "created" not in again
    assert "configured" not in again
    body = pod("box", command=["sleep", "600"], metadata={"labels": {"app": "x"}})
    path = tmp_path / "pod.json"
    path.write_text(json.dumps(body))
    await kubectl("apply", "-f", str(path))
    await kubectl("wait", "--for=condition=Ready", "pod/box", "--timeout=60s")
    table = await kubectl("get", "pods", "-o", "wide")
    assert table.split()[:5] == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert "1/1" in table
    assert "Running" in table
    for websockets in (True, False):  # without them it speaks SPDY, as the versions before 1.30 do
        run = partial(kubectl, "exec", websockets=websockets)
        assert await run("box", "--", "cat", "a.txt") == "first\nsecond\nthird\n"
        assert await run("-i", "box", "--", "sh", "-c", "wc -c", stdin=b"x" * 300_000) == "300000\n"
        assert "exit code 4" in await run("box", "--", "sh", "-c", "exit 4", status=4)
        assert "to stderr" in await run("box", "--", "sh", "-c", "echo to stderr >&2; exit 5", status=5)
        verb = "get" if websockets else "create"
        assert cluster.counters.requests[verb, "pods/exec"] == 4
    assert "Successfully assigned default/box" in await kubectl("describe", "pod", "box")
    await kubectl("label", "pod", "box", "more=yes")
    await kubectl("annotate", "pod", "-l", "app=x", "note=1")
    assert await kubectl("get", "pod", "box", "-o", "jsonpath={.metadata.labels.more}") == "yes"
    broken = {**body, "metadata": {"name": "broken"}, "spec": {**body["spec"], "hostUser": False}}
    path.write_text(json.dumps(broken))
    assert 'unknown field "spec.hostUser"' in await kubectl("apply", "-f", str(path), status=1)
    await kubectl("delete", "pod", "box", "--timeout=60s")
    await kubectl("delete", "-k", str(manifests), "--timeout=60s", "--ignore-not-found")
    assert "NotFound" in await kubectl("get", "namespace", "trainyard-sandboxes", status=1)
