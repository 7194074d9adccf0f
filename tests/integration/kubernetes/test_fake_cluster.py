"""Pods of the fake cluster: scheduled, pulled, run as local sandboxes, reached, evicted, lost, collected."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from kubernetes import client, stream
from kubernetes.client import CoreV1Api

from engine.errors import SandboxDiedError
from engine.sandbox.agent.wire import frame
from engine.sandbox.base import ExecResult
from engine.sandbox.client import AgentClient
from engine.sandbox.conformance import reference_tree
from engine.sandbox.local.images import build_image
from engine.sandbox.responses import executed
from tests.builders.cluster_builders import api_client, do, eventually, fails, pod
from tests.fakes.cluster import FakeCluster, Fault, FaultKind, NodeSpec

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="pods are bubblewrap sandboxes")
_TOKEN = b"a token of sixteen"
_PATIENCE_S = 120.0


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
    nodes = [NodeSpec(name=name, cpu="4", memory="2Gi", pods=8) for name in ("one", "two")]
    async with FakeCluster(home, nodes=nodes, bookmark_every_s=0.5) as cluster:
        cluster.registry.add("registry.test/demo:1", "demo")
        cluster.kubelet.pull_backoff_s = 0.1
        yield cluster


@pytest.fixture
def api(cluster: FakeCluster) -> Iterator[client.ApiClient]:
    with api_client(cluster.kubeconfig) as api:
        yield api


@pytest.fixture
def core(api: client.ApiClient) -> CoreV1Api:
    return CoreV1Api(api)


async def _until(core: CoreV1Api, name: str, condition: Any, namespace: str = "default") -> Any:
    """The pod once ``condition`` holds for it."""
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            found = await do(core.read_namespaced_pod, name, namespace)
            if condition(found):
                return found
            await asyncio.sleep(0.03)


async def _run(core: CoreV1Api, body: dict[str, Any]) -> Any:
    """Create a pod; it as it is when it no longer waits."""
    await do(core.create_namespaced_pod, "default", body)
    return await _until(core, body["metadata"]["name"], lambda one: one.status.phase != "Pending")


def _agent(name: str, **spec: Any) -> dict[str, Any]:
    variables = [{"name": "TRAINYARD_TOKEN", "value": _TOKEN.hex()}, {"name": "OWN", "value": "mine"}]
    ports = [{"containerPort": 17017}]
    return pod(name, env=variables, ports=ports, command=["sh", "-c", "starts the agent"], **spec)


async def _log(core: CoreV1Api, name: str, **query: Any) -> bytes:
    response = await do(core.read_namespaced_pod_log, name, "default", _preload_content=False, **query)
    data: bytes = response.data
    return data


async def _connect(address: str, token: bytes = _TOKEN) -> AgentClient:
    reader, writer = await asyncio.open_connection(address, 17017)
    writer.write(frame({"token": token}))
    agent = AgentClient(reader, writer)
    await agent.hello(10)
    return agent


async def _exec(agent: AgentClient, command: str) -> ExecResult:
    return await agent.call(
        "exec",
        executed(10_000),
        argv=["/bin/sh", "-c", command],
        cwd="/testbed",
        env={"PATH": "/usr/bin:/bin"},
        stdin=b"",
        timeout_ms=10_000,
        output_cap=10_000,
    )


async def test_a_pod_runs_its_command_and_tells_how_it_ended(cluster: FakeCluster, core: CoreV1Api) -> None:
    command = ["sh", "-c", "echo $GREETING from $(pwd); echo wrong >&2; exit 3"]
    made = await _run(core, pod("job", command=command, env=[{"name": "GREETING", "value": "hello"}]))
    assert made.spec.node_name in ("one", "two")
    assert made.status.pod_ip.startswith("127.")
    ended = await _until(core, "job", lambda one: one.status.phase == "Failed")
    state = ended.status.container_statuses[0].state.terminated
    assert (state.exit_code, state.reason) == (3, "Error")
    assert sorted((await _log(core, "job")).splitlines()) == [b"hello from /testbed", b"wrong"]
    assert len((await _log(core, "job", tail_lines=1)).splitlines()) == 1
    events = await do(core.list_namespaced_event, "default", field_selector="involvedObject.name=job")
    assert {"Scheduled", "Pulled", "Started"} <= {one.reason for one in events.items}
    await do(core.delete_namespaced_pod, "job", "default")
    await fails(404, core.read_namespaced_pod, "job", "default")
    await cluster.settled()


async def test_an_agents_client_talks_to_the_sandbox(cluster: FakeCluster, core: CoreV1Api) -> None:
    limits = {"limits": {"cpu": "1", "memory": "128Mi", "ephemeral-storage": "32Mi"}}
    made = await _run(core, _agent("box", resources=limits))
    assert made.status.phase == "Running"
    assert made.status.container_statuses[0].ready
    with pytest.raises(SandboxDiedError):
        await _connect(made.status.pod_ip, b"another token")
    agent = await _connect(made.status.pod_ip)
    result = await _exec(agent, "cat a.txt; id -u; df -m /tmp | tail -1 | awk '{print $2}'; exit 5")
    assert result.stdout == b"first\nsecond\nthird\n1000\n32\n"
    assert result.exit_code == 5
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(made.status.pod_ip, 17017)
    await agent.close()
    ended = await _until(core, "box", lambda one: one.status.phase == "Succeeded")
    assert ended.status.container_statuses[0].state.terminated.exit_code == 0
    await cluster.settled()


async def test_the_pods_own_agent_command_can_be_run_too(home: Path) -> None:
    code = "import sys; sys.path[:0] = ['/run/trainyard']; from agent.listen import main; main(17017, 30.0)"
    python = "$(command -v python3.11 || command -v python3)"
    start = f'exec {python} -I -S -B -c "{code}" <<END\n$TRAINYARD_TOKEN\nEND\n'
    body = _agent("own")
    body["spec"]["containers"][0]["command"] = ["sh", "-c", start]
    async with FakeCluster(home, own_agents=True) as cluster:
        cluster.registry.add("registry.test/demo:1", "demo")
        with api_client(cluster.kubeconfig) as api:
            core = CoreV1Api(api)
            made = await _run(core, body)
            assert made.status.phase == "Running", await _log(core, "own")
            agent = await _connect(made.status.pod_ip)
            result = await _exec(agent, "head -1 a.txt; ps -ef | grep -c listen")
            assert result.stdout.splitlines()[0] == b"first"
            await agent.close()
            await _until(core, "own", lambda one: one.status.phase == "Succeeded")


async def test_connections_to_agents_break_and_fall_silent(cluster: FakeCluster, core: CoreV1Api) -> None:
    cluster.faults.add(Fault(FaultKind.CUT, name="cut", delay_s=0.3))
    cluster.faults.add(Fault(FaultKind.MUTE, name="mute", delay_s=0.3))
    for name in ("cut", "mute"):
        made = await _run(core, _agent(name))
        agent = await _connect(made.status.pod_ip)
        waiting = asyncio.create_task(_exec(agent, "sleep 1"))
        done, _ = await asyncio.wait([waiting], timeout=_PATIENCE_S if name == "cut" else 2.5)
        if name == "cut":
            assert isinstance(waiting.exception(), SandboxDiedError)
            await _until(core, name, lambda one: one.status.phase == "Succeeded")
        else:
            assert not done
            assert (await do(core.read_namespaced_pod, name, "default")).status.phase == "Running"
            waiting.cancel()
            await agent.close()


async def test_deletion_is_graceful_and_frees_everything(cluster: FakeCluster, core: CoreV1Api) -> None:
    made = await _run(core, _agent("box"))
    agent = await _connect(made.status.pod_ip)
    cluster.kubelet.termination_s = 2.0
    answer = await do(core.delete_namespaced_pod, "box", "default", grace_period_seconds=20)
    assert answer.metadata.deletion_grace_period_seconds == 20
    assert answer.metadata.deletion_timestamp is not None
    assert (await do(core.read_namespaced_pod, "box", "default")).metadata.uid == made.metadata.uid
    await cluster.settled()
    await fails(404, core.read_namespaced_pod, "box", "default")
    with pytest.raises(SandboxDiedError):
        await _exec(agent, "true")
    assert list(cluster.kubelet.backend.ledger.entries()) == []


async def test_force_deletion_removes_the_object_at_once(cluster: FakeCluster, core: CoreV1Api) -> None:
    await _run(core, _agent("box"))
    cluster.kubelet.termination_s = 5.0
    await do(core.delete_namespaced_pod, "box", "default", grace_period_seconds=0)
    await fails(404, core.read_namespaced_pod, "box", "default")
    await cluster.settled()


def _socket(core: CoreV1Api, command: list[str], **options: Any) -> stream.ws_client.WSClient:
    return stream.stream(
        core.connect_get_namespaced_pod_exec,
        "box",
        "default",
        command=command,
        stderr=True,
        stdin=options.pop("stdin", False),
        stdout=True,
        tty=False,
        _preload_content=False,
        **options,
    )


async def test_exec_keeps_the_streams_apart_and_tells_the_status(
    cluster: FakeCluster, core: CoreV1Api
) -> None:
    await _run(core, _agent("box"))

    def run(command: list[str]) -> tuple[str, str, dict[str, Any]]:
        with api_client(cluster.kubeconfig) as own:  # ``stream`` changes the client it is given
            socket = _socket(CoreV1Api(own), command)
            socket.run_forever(timeout=_PATIENCE_S)
            socket.sock.shutdown()  # its own close does nothing once the server has closed
            return socket.read_stdout(), socket.read_stderr(), json.loads(socket.read_channel(3))

    out, err, status = await do(run, ["sh", "-c", "echo out; echo err >&2; echo $OWN; pwd; exit 7"])
    assert (out, err) == ("out\nmine\n/testbed\n", "err\n")
    assert status["reason"] == "NonZeroExitCode"
    assert status["details"]["causes"] == [{"reason": "ExitCode", "message": "7"}]
    out, err, status = await do(run, ["seq", "1", "50000"])
    assert out.split() == [str(number) for number in range(1, 50_001)]
    assert status == {"metadata": {}, "status": "Success"}
    _, _, status = await do(run, ["no-such-program"])
    assert status["reason"] == "InternalError"
    assert "executable file not found in $PATH" in status["message"]


async def test_exec_is_live_and_its_stdin_ends_with_v5(cluster: FakeCluster, core: CoreV1Api) -> None:
    await _run(core, _agent("box"))
    url = f"{cluster.url}/api/v1/namespaces/default/pods/box/exec"
    query = [("command", "cat"), ("stdin", "true"), ("stdout", "true"), ("stderr", "true")]
    headers = {"Authorization": f"Bearer {cluster.auth.admin_token}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        protocols = ("v5.channel.k8s.io", "v4.channel.k8s.io")
        async with session.ws_connect(url, params=query, protocols=protocols, ssl=False) as socket:
            assert socket.protocol == "v5.channel.k8s.io"
            assert (await socket.receive_bytes()) == b"\x01"
            for text in (b"first", b"second"):
                await socket.send_bytes(b"\x00" + text)
                assert await socket.receive_bytes(timeout=_PATIENCE_S) == b"\x01" + text
            await socket.send_bytes(b"\xff\x00")
            ended = await socket.receive_bytes(timeout=_PATIENCE_S)
            assert ended[0] == 3
            assert json.loads(ended[1:])["status"] == "Success"
        async with session.ws_connect(url, params=query, protocols=protocols[1:], ssl=False) as socket:
            assert socket.protocol == "v4.channel.k8s.io"
            await socket.receive_bytes()
            await socket.send_bytes(b"\xff\x00")
            with pytest.raises(TimeoutError):
                await socket.receive_bytes(timeout=0.3)
        async with session.get(url, params=query, ssl=False) as response:
            assert response.status == 400
            assert "Upgrade request required" in await response.text()


async def test_exec_accepts_every_kind_of_answer_or_none(cluster: FakeCluster, core: CoreV1Api) -> None:
    await _run(core, _agent("box"))
    url = f"{cluster.url}/api/v1/namespaces/default/pods/box/exec?command=true&stdout=true"
    headers = {"Authorization": f"Bearer {cluster.auth.admin_token}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        for accept in ("application/json", "application/json, text/*"):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await session.ws_connect(url, headers={"Accept": accept}, ssl=False)
            assert refused.value.status == 406
        accept = "application/json, */*;q=0.5"
        protocols = ("v5.channel.k8s.io",)
        async with session.ws_connect(
            url, headers={"Accept": accept}, protocols=protocols, ssl=False
        ) as socket:
            assert (await socket.receive_bytes()) == b"\x01"


async def test_stdin_ends_with_the_first_output_stream_that_the_process_closes(
    cluster: FakeCluster, core: CoreV1Api
) -> None:
    await _run(core, _agent("box"))
    headers = {"Authorization": f"Bearer {cluster.auth.admin_token}"}
    url = f"{cluster.url}/api/v1/namespaces/default/pods/box/exec"
    for closed, says in (
        ("2>/dev/null", b"\x01ended\n"),
        (">/dev/null", b"\x02ended\n"),
        ("3>&2 2>/dev/null", b""),
    ):
        script = f"exec {closed}; cat; echo ended; echo ended >&2"
        query = [("command", word) for word in ("sh", "-c", script)]
        query += [(name, "true") for name in ("stdin", "stdout", "stderr")]
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.ws_connect(url, params=query, protocols=("v5.channel.k8s.io",), ssl=False) as socket,
        ):
            assert (await socket.receive_bytes()) == b"\x01"
            if says:
                assert await socket.receive_bytes(timeout=_PATIENCE_S) == says
                continue
            await socket.send_bytes(b"\x00alive")
            assert await socket.receive_bytes(timeout=_PATIENCE_S) == b"\x01alive"


async def test_exec_into_what_does_not_run(cluster: FakeCluster, core: CoreV1Api) -> None:
    await _run(core, pod("done", command=["true"]))
    await _until(core, "done", lambda one: one.status.phase == "Succeeded")
    headers = {"Authorization": f"Bearer {cluster.auth.admin_token}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        for name, code in (("done", 400), ("none", 404)):
            url = f"{cluster.url}/api/v1/namespaces/default/pods/{name}/exec?command=id&stdout=true"
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await session.ws_connect(url, protocols=("v5.channel.k8s.io",), ssl=False)
            assert refused.value.status == code


async def test_no_room_is_told_and_mended_by_a_new_node(cluster: FakeCluster, core: CoreV1Api) -> None:
    big = {"requests": {"cpu": "8"}}
    await do(core.create_namespaced_pod, "default", _agent("big", resources=big))

    def unschedulable(one: Any) -> bool:
        return any(
            (part.type, part.status, part.reason) == ("PodScheduled", "False", "Unschedulable")
            for part in one.status.conditions or []
        )

    waiting = await _until(core, "big", unschedulable)
    assert waiting.status.phase == "Pending"
    assert waiting.status.conditions[0].message == "0/2 nodes are available: 2 Insufficient cpu."
    cluster.nodes.add(NodeSpec(name="large", cpu="16", taints=[{"key": "only", "effect": "NoSchedule"}]))
    await _until(core, "big", lambda one: "untolerated taint {only: }" in one.status.conditions[0].message)
    cluster.nodes.add(NodeSpec(name="larger", cpu="16"))
    placed = await _until(core, "big", lambda one: one.status.phase == "Running")
    assert placed.spec.node_name == "larger"
    await do(core.create_namespaced_pod, "default", _agent("picky", nodeSelector={"disk": "fast"}))
    await _until(core, "picky", unschedulable)
    tolerations = [{"key": "only", "operator": "Exists"}]
    selector = {"kubernetes.io/hostname": "large"}
    made = await _run(core, _agent("tolerant", tolerations=tolerations, nodeSelector=selector))
    assert made.spec.node_name == "large"


async def test_unknown_images_are_tried_again_and_again(cluster: FakeCluster, core: CoreV1Api) -> None:
    await do(core.create_namespaced_pod, "default", pod("a", image="registry.test/none:1", command=["true"]))

    def waits_for(reason: str) -> Any:
        def check(one: Any) -> bool:
            statuses = one.status.container_statuses or []
            return any(part.state.waiting and part.state.waiting.reason == reason for part in statuses)

        return check

    found = await _until(core, "a", waits_for("ImagePullBackOff"))
    assert "registry.test/none:1: not found" in found.status.container_statuses[0].state.waiting.message
    await _until(core, "a", waits_for("ErrImagePull"))
    cluster.registry.add("registry.test/none:1", "demo")
    await _until(core, "a", lambda one: one.status.phase == "Succeeded")
    never = pod("b", image="registry.test/other:1", command=["true"])
    never["spec"]["containers"][0]["imagePullPolicy"] = "Never"
    await do(core.create_namespaced_pod, "default", never)
    await _until(core, "b", waits_for("ErrImageNeverPull"))


async def test_evictions_crashes_and_memory_kills(cluster: FakeCluster, core: CoreV1Api) -> None:
    for name in ("evicted", "killed", "crashed"):
        await _run(core, _agent(name))
    cluster.evict("default", "evicted")
    cluster.kill_for_memory("default", "killed")
    cluster.crash("default", "crashed", code=9)
    ended = {
        name: await _until(core, name, lambda one: one.status.phase == "Failed")
        for name in ("evicted", "killed", "crashed")
    }
    assert ended["evicted"].status.reason == "Evicted"
    assert "low on resource" in ended["evicted"].status.message
    assert any(one.type == "DisruptionTarget" for one in ended["evicted"].status.conditions)
    killed = ended["killed"].status.container_statuses[0].state.terminated
    assert (killed.exit_code, killed.reason) == (137, "OOMKilled")
    assert ended["crashed"].status.container_statuses[0].state.terminated.exit_code == 9
    await cluster.settled()


async def test_a_real_breach_of_memory_is_oom_killed(cluster: FakeCluster, core: CoreV1Api) -> None:
    if cluster.kubelet.backend.groups is None:
        pytest.skip("no writable control groups on this machine")
    command = ["sh", "-c", "exec head -c 900m /dev/zero | tail"]
    limits = {"limits": {"memory": "64Mi", "ephemeral-storage": "16Mi"}}
    ended = await _run(core, pod("greedy", command=command, resources=limits))
    ended = await _until(core, "greedy", lambda one: one.status.phase in ("Failed", "Succeeded"))
    state = ended.status.container_statuses[0].state.terminated
    assert (state.exit_code, state.reason) == (137, "OOMKilled")


async def test_the_deadline_ends_a_pod(cluster: FakeCluster, core: CoreV1Api) -> None:
    await _run(core, _agent("late", activeDeadlineSeconds=1))
    ended = await _until(core, "late", lambda one: one.status.phase == "Failed")
    assert ended.status.reason == "DeadlineExceeded"
    await cluster.settled()


async def test_a_lost_node_falls_silent_and_takes_its_pods_along(
    cluster: FakeCluster, core: CoreV1Api
) -> None:
    made = await _run(core, _agent("box"))
    agent = await _connect(made.status.pod_ip)
    cluster.nodes.eviction_after_s = 0.3
    cluster.nodes.lose(made.spec.node_name)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await _exec(agent, "true")
    node = await do(core.read_node, made.spec.node_name)
    assert {one.status for one in node.status.conditions} == {"Unknown"}
    assert {one.effect for one in node.spec.taints} == {"NoSchedule", "NoExecute"}
    stuck = await _until(core, "box", lambda one: one.metadata.deletion_timestamp is not None)
    assert stuck.status.phase == "Running"
    cluster.nodes.remove(made.spec.node_name)
    await fails(404, core.read_namespaced_pod, "box", "default")
    await agent.close()
    await cluster.settled()


async def test_a_node_that_comes_back_has_lost_its_pods(cluster: FakeCluster, core: CoreV1Api) -> None:
    made = await _run(core, _agent("box", tolerations=[{"operator": "Exists"}]))
    cluster.nodes.lose(made.spec.node_name)
    await asyncio.sleep(0.1)
    cluster.nodes.recover(made.spec.node_name)
    ended = await _until(core, "box", lambda one: one.status.phase == "Failed")
    assert ended.status.container_statuses[0].state.terminated.reason == "ContainerStatusUnknown"
    again = await _run(core, _agent("again", nodeSelector={"kubernetes.io/hostname": made.spec.node_name}))
    assert again.status.phase == "Running"


async def test_init_containers_come_first_and_can_fail_a_pod(cluster: FakeCluster, core: CoreV1Api) -> None:
    cluster.registry.add("registry.test/tools:1")
    init = [{"name": "tools", "image": "registry.test/tools:1", "command": ["cp", "-r", "/tools", "/shared"]}]
    made = await _run(core, _agent("good", initContainers=init))
    assert made.status.phase == "Running"
    assert made.status.init_container_statuses[0].state.terminated.exit_code == 0
    bad = [{"name": "check", "image": "registry.test/demo:1", "command": ["sh", "-c", "exit 4"]}]
    ended = await _run(core, _agent("bad", initContainers=bad))
    assert ended.status.phase == "Failed"
    assert ended.status.init_container_statuses[0].state.terminated.exit_code == 4
    assert ended.status.container_statuses[0].state.waiting.reason == "PodInitializing"


async def test_missing_configuration_keeps_a_pod_waiting(cluster: FakeCluster, core: CoreV1Api) -> None:
    volume = [{"name": "files", "configMap": {"name": "files"}}]
    variable = {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "one"}}}
    body = pod("a", volumes=volume, env=[variable], command=["sh", "-c", "echo $SECRET"])
    await do(core.create_namespaced_pod, "default", body)

    async def complaints() -> bool:
        events = await do(core.list_namespaced_event, "default", field_selector="reason=FailedMount")
        return any('configmap "files" not found' in one.message for one in events.items)

    await eventually(complaints, True)
    assert (await do(core.read_namespaced_pod, "a", "default")).status.phase == "Pending"
    await do(core.create_namespaced_config_map, "default", {"metadata": {"name": "files"}})
    await _until(
        core,
        "a",
        lambda one: one.status.container_statuses[0].state.waiting.reason == "CreateContainerConfigError",
    )
    await do(
        core.create_namespaced_secret, "default", {"metadata": {"name": "keys"}, "data": {"one": "b3BlbiE="}}
    )
    await _until(core, "a", lambda one: one.status.phase == "Succeeded")
    assert await _log(core, "a") == b"open!\n"


async def test_faults_of_pods_strike_as_often_as_told(cluster: FakeCluster, core: CoreV1Api) -> None:
    pull = cluster.faults.add(Fault(FaultKind.PULL_FAILURE, name="demo:1", count=2))
    made = await _run(core, _agent("a"))
    assert (made.status.phase, pull.hits) == ("Running", 2)
    start = cluster.faults.add(Fault(FaultKind.START_FAILURE, count=1))
    ended = await _run(core, _agent("b"))
    ended = await _until(core, "b", lambda one: one.status.phase == "Failed")
    assert ended.status.container_statuses[0].state.terminated.reason == "StartError"
    assert start.hits == 1
    cluster.faults.add(Fault(FaultKind.EVICT, name="^c$", delay_s=0.1))
    await _run(core, _agent("c"))
    ended = await _until(core, "c", lambda one: one.status.phase == "Failed")
    assert ended.status.reason == "Evicted"
    cluster.faults.add(Fault(FaultKind.STUCK_TERMINATING, delay_s=2.0))
    await do(core.delete_namespaced_pod, "a", "default")
    await asyncio.sleep(0.2)
    assert (await do(core.read_namespaced_pod, "a", "default")).metadata.deletion_timestamp is not None
    await cluster.settled()
