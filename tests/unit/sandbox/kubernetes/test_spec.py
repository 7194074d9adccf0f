"""Manifests sent to a cluster, compared with golden files; ``REGENERATE=1`` rewrites them for review."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.config.kubernetes import KubernetesConfig, Toleration
from engine.errors import ImageError
from engine.sandbox.base import SandboxLimits, SandboxSpec
from engine.sandbox.kubernetes.manifests import labels, spec
from engine.sandbox.kubernetes.manifests.images import resolve_image
from engine.sandbox.kubernetes.manifests.preload import daemon_set
from tests.builders.kubernetes_builders import MANIFESTS
from tests.fakes.cluster.api.pod_security import violations

GOLDEN = Path(__file__).parent / "golden"
OWNER = spec.Owner(name="trainyard-0123", uid="b1c2")
SPEC = SandboxSpec(
    image="namanjain12/orange3:abc",
    run_id="run 7",
    name="train/12/orange3__1234/3",
    limits=SandboxLimits(memory_mb=2048, processes=256, disk_mb=4096, cpus=1.5, lifetime_s=1320.0),
)
EVERYTHING = KubernetesConfig(
    namespace="boxes",
    agent_image="registry.test/agent@sha256:00",
    agent_port=4000,
    mirrors={"docker.io/": "mirror.test/hub/", "docker.io/namanjain12/": "mirror.test/r2e/"},
    image_pull_policy="Always",
    image_pull_secrets=("pull",),
    runtime_class="gvisor",
    priority_class="trainyard-sandbox",
    node_selector={"pool": "sandboxes"},
    tolerations=(Toleration(key="sandboxes", operator="Exists", effect="NoSchedule"),),
    host_users=False,
    run_as_user=1000,
    seccomp="Localhost/profiles/audit.json",
    added_capabilities=("CHOWN",),
    cpu_request=0.5,
    pristine_memory_mb=64,
    labels={"kueue.x-k8s.io/queue-name": "agents"},
    annotations={"team": "yard"},
    delete_grace_s=2,
)


def check(name: str, actual: Any) -> None:
    path = GOLDEN / f"{name}.json"
    text = json.dumps(actual, indent=1) + "\n"
    if os.environ.get("REGENERATE"):
        path.write_text(text)
    assert json.loads(path.read_text()) == json.loads(text)


def pod(config: KubernetesConfig, wanted: SandboxSpec = SPEC, **more: Any) -> dict[str, Any]:
    return spec.pod(
        config, wanted, sandbox_id="sb-00ff", owner=OWNER, token=b"\x01\xff", deadline=1_800_000_000.4, **more
    )


def named_as_in_golden(pod: dict[str, Any]) -> dict[str, Any]:
    """Replace the ConfigMap's name, which changes with every change of the agent."""
    text = json.dumps(pod).replace(spec.agent_config_map()["metadata"]["name"], "trainyard-agent-DIGEST")
    renamed: dict[str, Any] = json.loads(text)
    return renamed


def test_default_pod_matches_its_golden_file() -> None:
    check("pod_default", named_as_in_golden(pod(KubernetesConfig())))


def test_fully_configured_pod_matches_its_golden_file() -> None:
    check("pod_everything", pod(EVERYTHING))


def test_claimed_warm_pod_has_the_metadata_of_a_cold_pod() -> None:
    warm = pod(KubernetesConfig(), SandboxSpec(image=SPEC.image, name="warm", limits=SPEC.limits), warm=True)
    claim = spec.claim(SPEC, deadline=1_800_000_000.4, running_s=100.2)
    cold = pod(KubernetesConfig())
    for field in ("labels", "annotations"):
        assert {**warm["metadata"][field], **claim["metadata"][field]} == cold["metadata"][field]
    assert warm["metadata"]["labels"][labels.POOL] == cold["metadata"]["labels"][labels.POOL]
    assert labels.RUN_ID not in warm["metadata"]["labels"]
    assert warm["metadata"]["annotations"][labels.SAFE_TO_EVICT] == "true"
    assert claim["metadata"]["annotations"][labels.SAFE_TO_EVICT] == "false"
    assert claim["spec"]["activeDeadlineSeconds"] == 101 + 1320 + spec.SLACK_S
    assert claim["spec"]["activeDeadlineSeconds"] < warm["spec"]["activeDeadlineSeconds"]


def test_pods_without_root_meet_the_restricted_standard() -> None:
    namespace = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    for more in ({}, {"agent_image": "registry.test/agent:1"}, {"connect": "exec"}):
        config = KubernetesConfig.model_validate({"run_as_non_root": True, "run_as_user": 1000, **more})
        assert violations(namespace, pod(config)["spec"]) is None
        template = daemon_set(config, ["python:3.12"])["spec"]["template"]
        assert violations(namespace, template["spec"]) is None
    assert "runAsNonRoot" in (violations(namespace, pod(KubernetesConfig())["spec"]) or "")
    with pytest.raises(ValueError, match="contradicts run_as_user=0"):
        KubernetesConfig(run_as_non_root=True, run_as_user=0)


@pytest.mark.parametrize(
    ("image", "resolved"),
    [
        ("python:3.12", "mirror.test/hub/library/python:3.12"),
        ("namanjain12/pandas:1", "mirror.test/r2e/pandas:1"),
        ("docker.io/other/x@sha256:1", "mirror.test/hub/other/x@sha256:1"),
        ("hub.example/a/b:1", "hub.example/a/b:1"),
        ("localhost:5000/a", "localhost:5000/a"),
    ],
)
def test_images_are_resolved_through_mirrors(image: str, resolved: str) -> None:
    assert resolve_image(EVERYTHING, image) == resolved


def test_local_images_and_missing_digests_are_refused() -> None:
    with pytest.raises(ImageError, match="push it to a registry"):
        resolve_image(KubernetesConfig(), "local:demo")
    pinned = KubernetesConfig(require_digest=True)
    with pytest.raises(ImageError, match="no digest"):
        resolve_image(pinned, "python:3.12")
    assert resolve_image(pinned, "python@sha256:ab") == "python@sha256:ab"


@pytest.mark.parametrize(
    "text",
    ["plain", "with spaces / and:colons", "x" * 200, "--dashes--", "ünïcode", "", "a" * 62 + "-" + "b" * 9],
)
def test_label_values_are_valid(text: str) -> None:
    value = labels.label_value(text)
    assert len(value) <= 63
    assert value == "" or (value[0].isalnum() and value[-1].isalnum())
    assert all(c.isascii() and (c.isalnum() or c in "-._") for c in value)


def test_preload_template_equals_the_generated_daemon_set() -> None:
    template = yaml.safe_load((MANIFESTS / "preload" / "daemonset.yaml").read_text())
    assert template == daemon_set(KubernetesConfig(), ["REGISTRY/IMAGE@sha256:DIGEST"])


def test_preload_pulls_each_image_once_on_the_nodes_of_sandboxes() -> None:
    preload = daemon_set(EVERYTHING, ["python:3.12", "python:3.12", "hub.example/a/b:1"])
    template = preload["spec"]["template"]["spec"]
    assert [container["image"] for container in template["initContainers"]] == [
        "hub.example/a/b:1",
        "mirror.test/hub/library/python:3.12",
    ]
    assert template["nodeSelector"] == {"pool": "sandboxes"}
    assert template["imagePullSecrets"] == [{"name": "pull"}]
    assert not labels.OURS.items() <= preload["metadata"]["labels"].items()
