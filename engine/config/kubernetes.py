"""Settings of the Kubernetes sandbox backend; names follow the pod specification where it has them.

Settings of the cluster, its credentials and the privileges of pods are granted by the administrator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from engine.config.access.places import Granted
from engine.config.base import Section


class Toleration(Section):
    """A tolerated node taint, as in a pod's ``tolerations``."""

    key: str = ""
    """Taint key; empty with operator ``Exists`` tolerates every taint."""
    operator: Literal["Equal", "Exists"] = "Equal"
    """Match condition: ``Equal`` compares the value, ``Exists`` needs the key only."""
    value: str = ""
    """Taint value."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """Tolerated taint effect; empty matches all effects."""


class KubernetesConfig(Section):
    """Settings of the Kubernetes backend."""

    namespace: Annotated[str, Granted()] = Field(
        default="trainyard-sandboxes", pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
    )
    """Namespace of the sandbox pods; created by ``deploy/kubernetes/sandbox``."""
    kubeconfig: Annotated[str, Granted()] = ""
    """Path of a kubeconfig file; empty uses the service account inside a cluster, else ``$KUBECONFIG`` or
    ``~/.kube/config``."""
    context: Annotated[str, Granted()] = ""
    """Context of the kubeconfig; empty uses its current context."""
    connect: Literal["network", "exec"] = "network"
    """Connection to the agent: directly to the pod's address, or through the API server's ``pods/exec``
    where the pod network is not routed."""
    agent_port: int = Field(default=17017, ge=1024, le=65534)
    """TCP port of the agent in the pod; the pristine container uses the next higher port."""
    agent_image: Annotated[str, Granted()] = ""
    """Image of an init container that copies ``/trainyard`` (the agent, and optionally a Python for images
    without one) into the pod; empty mounts the agent from a ConfigMap, which needs no image."""
    allow_local_images: bool = False
    """Pass ``local:`` images on to the cluster; supported only by the fake cluster of the tests."""
    mirrors: Annotated[Mapping[str, str], Granted()] = {}
    """Image prefixes and their replacements, e.g. ``docker.io/`` by a registry near the nodes; the longest
    matching prefix wins."""
    require_digest: bool = False
    """Reject images without a digest (``@sha256:…``), because a tag may change between attempts."""
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    """Image pull policy of the pods."""
    image_pull_secrets: Annotated[tuple[str, ...], Granted()] = ()
    """Secrets with registry credentials, in the same namespace."""
    runtime_class: Annotated[str, Granted()] = ""
    """Runtime class of the pods, e.g. ``gvisor`` or ``kata``; empty uses the cluster's default."""
    priority_class: Annotated[str, Granted()] = ""
    """Priority class of the pods, e.g. ``trainyard-sandbox`` from the manifests."""
    node_selector: Annotated[Mapping[str, str], Granted()] = {}
    """Required node labels."""
    tolerations: Annotated[tuple[Toleration, ...], Granted()] = ()
    """Tolerated node taints."""
    host_users: Annotated[bool | None, Granted()] = None
    """False runs pods in a user namespace, where root inside is an unprivileged user outside; None uses
    the cluster's default."""
    run_as_user: Annotated[int | None, Granted()] = Field(default=None, ge=0)
    """User ID inside the containers; None uses the image's user, root in most task images."""
    run_as_non_root: Annotated[bool, Granted()] = False
    """Refuse to run containers as root, as the pod security level "restricted" requires; images whose user
    is root or has only a name then need ``run_as_user``."""
    seccomp: Annotated[str, Granted()] = Field(
        default="RuntimeDefault", pattern=r"^(RuntimeDefault|Unconfined|Localhost/.+)$"
    )
    """Seccomp profile; ``Localhost/PATH`` names a file on the nodes."""
    added_capabilities: Annotated[tuple[str, ...], Granted()] = ()
    """Linux capabilities added back after all are dropped."""
    cpu_request: float = Field(default=0.25, gt=0)
    """CPU cores requested per sandbox; the CPU limit is a setting of the sandbox itself."""
    pristine_memory_mb: int = Field(default=128, ge=32)
    """Memory limit of the container that holds the image's original files, MiB."""
    labels: Annotated[Mapping[str, str], Granted()] = {}
    """Additional labels of every pod, e.g. ``kueue.x-k8s.io/queue-name``."""
    annotations: Annotated[Mapping[str, str], Granted()] = {}
    """Additional annotations of every pod."""
    writes_per_second: float = Field(default=50.0, gt=0)
    """Average rate limit of write requests to the API server, requests per second."""
    write_burst: int = Field(default=128, ge=1)
    """Number of write requests allowed in a burst."""
    request_timeout_s: float = Field(default=30.0, gt=0)
    """Timeout of a request to the API server, seconds."""
    schedule_timeout_s: float = Field(default=900.0, gt=0)
    """Maximum time a pod waits for quota and for a node, including a new node of the autoscaler, seconds."""
    pull_timeout_s: float = Field(default=1200.0, gt=0)
    """Maximum time of the image pull, retries included, seconds."""
    start_timeout_s: float = Field(default=120.0, gt=0)
    """Maximum time of the remaining start, seconds."""
    warm_per_image: int = Field(default=8, ge=0)
    """Number of sandboxes per image started ahead of demand; 0 starts none."""
    warm_idle_s: float = Field(default=600.0, gt=0)
    """Time after which an unused warm sandbox is removed, seconds."""
    heartbeat_s: float = Field(default=15.0, gt=0)
    """Interval at which a process renews the ownership of its pods, seconds."""
    owner_timeout_s: float = Field(default=60.0, gt=0)
    """Time without a renewal after which the pods count as orphans, seconds."""
    watch_silence_s: float = Field(default=75.0, gt=0)
    """Silence after which a watch counts as broken, seconds; servers send a bookmark every minute."""
    resync_s: float = Field(default=300.0, gt=0)
    """Interval between full listings, in case a watch missed an event, seconds."""
    delete_grace_s: int = Field(default=5, ge=0)
    """Grace period of a pod's deletion, seconds; rarely used, because the agent ends with its connection."""
    stuck_terminating_s: float = Field(default=120.0, gt=0)
    """Time after which a pod stuck in termination is deleted by force, with an alert, seconds."""
    require_network_policy: Annotated[bool, Granted()] = True
    """Refuse to start on a cluster whose pods can open network connections; False only warns."""
    preflight_image: Annotated[str, Granted()] = ""
    """Image with Python for the preflight's trial sandbox, which tries to reach the network; empty uses an
    image left in the namespace by earlier sandboxes or ``preload``, else only scheduling is tested."""
    preflight_timeout_s: float = Field(default=60.0, gt=0)
    """Maximum time preflight waits for a node to accept its pod, seconds; raise it where nodes are created
    on demand."""

    @model_validator(mode="after")
    def _root_is_somebody_else(self) -> KubernetesConfig:
        if self.run_as_non_root and self.run_as_user == 0:
            raise ValueError(
                "run_as_non_root contradicts run_as_user=0: set another user id, or leave it out"
            )
        return self

    @model_validator(mode="after")
    def _owners_outlive_their_heartbeats(self) -> KubernetesConfig:
        if self.owner_timeout_s < 2 * self.heartbeat_s:
            raise ValueError("owner_timeout_s must be at least two heartbeats")
        return self
