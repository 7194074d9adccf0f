"""Settings of the Kubernetes sandbox backend; names follow the pod specification where it has them.

What decides about the cluster, its credentials and what pods may do is granted by the administrator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from engine.config.base import Section
from engine.config.places import Granted


class Toleration(Section):
    """A taint that sandboxes may live with, as in a pod's ``tolerations``."""

    key: str = ""
    """The taint's key; empty with operator ``Exists`` tolerates everything."""
    operator: Literal["Equal", "Exists"] = "Equal"
    """Whether the value must be equal or the key present."""
    value: str = ""
    """The taint's value."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """Which effect; empty is every one."""


class KubernetesConfig(Section):
    """The Kubernetes backend."""

    namespace: Annotated[str, Granted()] = Field(
        default="trainyard-sandboxes", pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
    )
    """Where the pods are; ``deploy/kubernetes/sandbox`` makes it."""
    kubeconfig: Annotated[str, Granted()] = ""
    """Path of a kubeconfig file; empty is the service account inside a cluster, else ``$KUBECONFIG`` or
    ``~/.kube/config``."""
    context: Annotated[str, Granted()] = ""
    """The kubeconfig's context; empty is its current one."""
    connect: Literal["network", "exec"] = "network"
    """How the agent is reached: at the pod's address, or through the API server's ``pods/exec`` from where
    pods have no route."""
    agent_port: int = Field(default=17017, ge=1024, le=65534)
    """TCP port of the agent in the pod; the pristine container's is one higher."""
    agent_image: Annotated[str, Granted()] = ""
    """Image of an init container that copies ``/trainyard`` (the agent, and optionally a Python for images
    without one) into the pod; empty mounts the agent from a ConfigMap, which needs no image."""
    allow_local_images: bool = False
    """Pass ``local:`` images on to the cluster; only the fake cluster of the tests knows them."""
    mirrors: Annotated[Mapping[str, str], Granted()] = {}
    """Image prefixes and what replaces them, e.g. ``docker.io/`` by a registry near the nodes; the longest
    that matches wins."""
    require_digest: bool = False
    """Refuse images without a digest (``@sha256:…``), because a tag may change between attempts."""
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    """When a node pulls an image."""
    image_pull_secrets: Annotated[tuple[str, ...], Granted()] = ()
    """Secrets of the namespace with registry credentials."""
    runtime_class: Annotated[str, Granted()] = ""
    """Container runtime, e.g. ``gvisor`` or ``kata``; empty is the cluster's default."""
    priority_class: Annotated[str, Granted()] = ""
    """Priority class of the pods, e.g. ``trainyard-sandbox`` of the manifests."""
    node_selector: Annotated[Mapping[str, str], Granted()] = {}
    """Labels that a node must have."""
    tolerations: Annotated[tuple[Toleration, ...], Granted()] = ()
    """Taints that a node may have."""
    host_users: Annotated[bool | None, Granted()] = None
    """False runs pods in a user namespace, where their root is nobody outside; None is the cluster's
    default."""
    run_as_user: Annotated[int | None, Granted()] = Field(default=None, ge=0)
    """User id inside; None is the image's, for most task images root."""
    run_as_non_root: Annotated[bool, Granted()] = False
    """Refuse to run as root inside, as the pod security level "restricted" asks; images whose user is root or
    has only a name then need ``run_as_user``."""
    seccomp: Annotated[str, Granted()] = Field(
        default="RuntimeDefault", pattern=r"^(RuntimeDefault|Unconfined|Localhost/.+)$"
    )
    """Seccomp profile; ``Localhost/PATH`` names a file on the nodes."""
    added_capabilities: Annotated[tuple[str, ...], Granted()] = ()
    """Linux capabilities given back after all are dropped."""
    cpu_request: float = Field(default=0.25, gt=0)
    """Cores reserved for a sandbox; its limit is the sandbox's own."""
    pristine_memory_mb: int = Field(default=128, ge=32)
    """Memory limit of the container that keeps the image's original files, MiB."""
    labels: Annotated[Mapping[str, str], Granted()] = {}
    """Further labels of every pod, e.g. ``kueue.x-k8s.io/queue-name``."""
    annotations: Annotated[Mapping[str, str], Granted()] = {}
    """Further annotations of every pod."""
    writes_per_second: float = Field(default=50.0, gt=0)
    """Requests per second that change something, on average."""
    write_burst: int = Field(default=128, ge=1)
    """How many of them may go at once after a pause."""
    request_timeout_s: float = Field(default=30.0, gt=0)
    """How long the API server may take to answer one request, seconds."""
    schedule_timeout_s: float = Field(default=900.0, gt=0)
    """How long a pod may wait for quota and for a node, a new one of the autoscaler included, seconds."""
    pull_timeout_s: float = Field(default=1200.0, gt=0)
    """How long pulling its image may take, retries included, seconds."""
    start_timeout_s: float = Field(default=120.0, gt=0)
    """How long the rest of a start may take, seconds."""
    warm_per_image: int = Field(default=8, ge=0)
    """Sandboxes of one image that may be started before they are asked for; 0 starts none."""
    warm_idle_s: float = Field(default=600.0, gt=0)
    """When a sandbox that nobody asked for is given back, seconds."""
    heartbeat_s: float = Field(default=15.0, gt=0)
    """How often a process says that it still owns its pods, seconds."""
    owner_timeout_s: float = Field(default=60.0, gt=0)
    """Silence after which its pods are orphans, seconds."""
    watch_silence_s: float = Field(default=75.0, gt=0)
    """Silence after which a watch counts as broken; servers send a bookmark every minute, seconds."""
    resync_s: float = Field(default=300.0, gt=0)
    """How often everything is listed again in case a watch lost something, seconds."""
    delete_grace_s: int = Field(default=5, ge=0)
    """Time a pod gets to end by itself; its agent ends with the connection, so that it rarely needs it."""
    stuck_terminating_s: float = Field(default=120.0, gt=0)
    """When a pod that does not go away is deleted by force, with an alarm, seconds."""
    require_network_policy: Annotated[bool, Granted()] = True
    """Refuse to start on a cluster whose pods can open connections; False only warns."""
    preflight_image: Annotated[str, Granted()] = ""
    """Image with a Python in which preflight starts a sandbox and tries to reach the network; empty takes one
    that earlier sandboxes or ``preload`` left in the namespace, else only scheduling is tried."""
    preflight_timeout_s: float = Field(default=60.0, gt=0)
    """How long preflight waits for a node to take its pod, seconds; raise it where nodes come on demand."""

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
