"""The resource types that the fake cluster serves. To add one, add a row to ``RESOURCES``.

A plain row is stored, listed, watched and patched like any other; only kinds with a life of their own have
code elsewhere (``admission``, ``scheduler``, ``kubelet``, ``controllers``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]
"""An API object as JSON holds it."""


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource type."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    subresource: str = ""
    """The one subresource that is served."""

    @property
    def api_version(self) -> str:
        """``apiVersion`` of its objects: ``v1``, ``apps/v1``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """Its name in messages: ``pods``, ``jobs.batch``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


_RBAC = "rbac.authorization.k8s.io"
_REVIEWS = "authorization.k8s.io"

NAMESPACES = Resource("", "v1", "namespaces", "Namespace", False)
NODES = Resource("", "v1", "nodes", "Node", False)
PODS = Resource("", "v1", "pods", "Pod", True, "exec")
CONFIGMAPS = Resource("", "v1", "configmaps", "ConfigMap")
SERVICEACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount", True, "token")
QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
DAEMONSETS = Resource("apps", "v1", "daemonsets", "DaemonSet")
RUNTIMECLASSES = Resource("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", False)
PRIORITYCLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False)
ROLES = Resource(_RBAC, "v1", "roles", "Role")
ROLEBINDINGS = Resource(_RBAC, "v1", "rolebindings", "RoleBinding")
CLUSTERROLES = Resource(_RBAC, "v1", "clusterroles", "ClusterRole", False)
CLUSTERROLEBINDINGS = Resource(_RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", False)
ACCESSREVIEWS = Resource(_REVIEWS, "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", False)

RESOURCES = (
    NAMESPACES,
    NODES,
    PODS,
    CONFIGMAPS,
    SERVICEACCOUNTS,
    QUOTAS,
    DAEMONSETS,
    RUNTIMECLASSES,
    PRIORITYCLASSES,
    ROLES,
    ROLEBINDINGS,
    CLUSTERROLES,
    CLUSTERROLEBINDINGS,
    ACCESSREVIEWS,
    Resource("", "v1", "limitranges", "LimitRange"),
    Resource("coordination.k8s.io", "v1", "leases", "Lease"),
    Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy"),
)

_BY_PATH = {(resource.group, resource.version, resource.plural): resource for resource in RESOURCES}


def find(group: str, version: str, plural: str) -> Resource | None:
    """Return the resource at an API path."""
    return _BY_PATH.get((group, version, plural))
