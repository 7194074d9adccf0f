"""Pod Security Admission: the ``baseline`` and ``restricted`` levels that a namespace enforces by its label.

Controls and wording follow the Pod Security Standards; AppArmor, SELinux, sysctls and Windows are left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.fakes.cluster.api.resources import Object

_LABEL = "pod-security.kubernetes.io/enforce"
_BASELINE_CAPABILITIES = frozenset(
    [
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    ]
)
_RESTRICTED_VOLUMES = frozenset(
    [
        "name",
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    ]
)


def containers(spec: Object) -> Iterator[tuple[str, Object]]:
    """Yield every container of a pod with the path of its field."""
    for field in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(field) or []):
            yield f"spec.{field}[{index}]", container


def violations(namespace: Object, spec: Object) -> str | None:
    """What the namespace's enforced level has against a pod; None for nothing."""
    level = (namespace["metadata"].get("labels") or {}).get(_LABEL, "privileged")
    if level == "privileged":
        return None
    found = list(_baseline(spec))
    if level == "restricted":
        found += _restricted(spec)
    return f'violates PodSecurity "{level}:latest": {", ".join(found)}' if found else None


def _baseline(spec: Object) -> Iterator[str]:
    namespaces = [name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    if namespaces:
        yield f"host namespaces ({', '.join(f'{name}=true' for name in namespaces)})"
    paths = [volume["name"] for volume in spec.get("volumes") or [] if "hostPath" in volume]
    if paths:
        yield f"hostPath volumes (volumes {_quoted(paths)})"
    for name, security, container in _securities(spec):
        if security.get("privileged"):
            yield f'privileged (container "{name}" must not set securityContext.privileged=true)'
        added = set((security.get("capabilities") or {}).get("add") or ()) - _BASELINE_CAPABILITIES
        if added:
            yield f'non-default capabilities (container "{name}" must not include {_quoted(sorted(added))})'
        if any(port.get("hostPort") for port in container.get("ports") or []):
            yield f'hostPort (container "{name}" uses hostPorts)'
        if _seccomp(spec, security) == "Unconfined":
            yield f'seccompProfile (container "{name}" must not set it to "Unconfined")'


def _restricted(spec: Object) -> Iterator[str]:
    kinds = {kind for volume in spec.get("volumes") or [] for kind in volume} - _RESTRICTED_VOLUMES
    if kinds:
        yield f"restricted volume types ({_quoted(sorted(kinds))})"
    pod = spec.get("securityContext") or {}
    for name, security, _ in _securities(spec):
        whose = f'container "{name}" must set securityContext'
        if security.get("allowPrivilegeEscalation") is not False:
            yield f"allowPrivilegeEscalation != false ({whose}.allowPrivilegeEscalation=false)"
        capabilities = security.get("capabilities") or {}
        added = set(capabilities.get("add") or ()) - {"NET_BIND_SERVICE"}
        if added or "ALL" not in (capabilities.get("drop") or ()):
            yield f'unrestricted capabilities ({whose}.capabilities.drop=["ALL"])'
        if not security.get("runAsNonRoot", pod.get("runAsNonRoot")):
            yield f"runAsNonRoot != true (pod or {whose}.runAsNonRoot=true)"
        if _seccomp(spec, security) not in ("RuntimeDefault", "Localhost"):
            yield f'seccompProfile (pod or {whose}.seccompProfile.type to "RuntimeDefault" or "Localhost")'


def _securities(spec: Object) -> Iterator[tuple[str, Object, Object]]:
    for _, container in containers(spec):
        yield container.get("name", ""), container.get("securityContext") or {}, container


def _seccomp(spec: Object, security: Object) -> str:
    profile = (
        security.get("seccompProfile") or (spec.get("securityContext") or {}).get("seccompProfile") or {}
    )
    return str(profile.get("type", ""))


def _quoted(names: list[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)
