"""DaemonSet that makes every node, new ones included, pull a set of images in advance."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from engine.config.kubernetes import KubernetesConfig
from engine.sandbox.kubernetes.manifests.images import resolve_image
from engine.sandbox.kubernetes.manifests.spec import placement, pod_security, security

Json = dict[str, Any]
NAME = "trainyard-preload"
PAUSE = "registry.k8s.io/pause:3.10"
_SMALL = {"cpu": "10m", "memory": "32Mi", "ephemeral-storage": "16Mi"}


def daemon_set(config: KubernetesConfig, images: Iterable[str]) -> Json:
    """Return a DaemonSet with one init container per image, which ends at once, then a pause container.

    Applying it with other images makes the nodes pull those; the kubelet removes unused images.

    Raises:
        ImageError: an image is not allowed on this cluster.
    """
    labels = {"app.kubernetes.io/name": NAME, "app.kubernetes.io/part-of": "trainyard"}
    references = sorted({resolve_image(config, image) for image in images})
    pull = [
        {
            **_container(f"image-{number}", image),
            "imagePullPolicy": config.image_pull_policy,
            "command": ["/bin/sh", "-c", ":"],
        }
        for number, image in enumerate(references)
    ]
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": NAME, "namespace": config.namespace, "labels": labels},
        "spec": {
            "selector": {"matchLabels": {"app.kubernetes.io/name": NAME}},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%"}},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    **placement(config),
                    "automountServiceAccountToken": False,
                    "enableServiceLinks": False,
                    "terminationGracePeriodSeconds": 0,
                    "securityContext": pod_security(config),
                    "initContainers": pull,
                    "containers": [_container("pause", PAUSE)],
                },
            },
        },
    }


def _container(name: str, image: str) -> Json:
    return {
        "name": name,
        "image": image,
        "resources": {"requests": dict(_SMALL), "limits": dict(_SMALL)},
        "securityContext": security(()),
    }
