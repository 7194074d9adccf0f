"""A container's environment and volumes, out of its spec and the objects that it refers to."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping

from tests.fakes.cluster.resources import CONFIGMAPS, SECRETS, Object, Resource
from tests.fakes.cluster.store import Store

_REFERENCE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['(.*)'\]")


class ConfigError(Exception):
    """The container refers to something that is not there: ``CreateContainerConfigError``."""


def environment(store: Store, pod: Object, container: Object) -> dict[str, str]:
    """Every variable of a container. Raises ConfigError."""
    env: dict[str, str] = {}
    namespace = pod["metadata"]["namespace"]
    for source in container.get("envFrom") or []:
        for field, resource in (("configMapRef", CONFIGMAPS), ("secretRef", SECRETS)):
            if reference := source.get(field):
                data = _data(store, resource, namespace, reference)
                env.update({source.get("prefix", "") + key: value for key, value in data.items()})
    for variable in container.get("env") or []:
        if (source := variable.get("valueFrom")) is not None:
            value = _value_from(store, pod, source)
        else:
            value = _expand(variable.get("value") or "", env)
        if value is not None:
            env[variable["name"]] = value
    return env


def _expand(text: str, env: Mapping[str, str]) -> str:
    return _REFERENCE.sub(lambda found: env.get(found[1], found[0]), text)


def _value_from(store: Store, pod: Object, source: Object) -> str | None:
    if reference := source.get("fieldRef"):
        return _field(pod, reference["fieldPath"])
    for field, resource in (("configMapKeyRef", CONFIGMAPS), ("secretKeyRef", SECRETS)):
        if reference := source.get(field):
            data = _data(store, resource, pod["metadata"]["namespace"], reference)
            if reference["key"] not in data and not reference.get("optional"):
                kind = resource.kind
                raise ConfigError(f"couldn't find key {reference['key']} in {kind} {reference.get('name')}")
            return data.get(reference["key"])
    raise ConfigError(f"this source of a variable is not served here: {', '.join(source)}")


def _field(pod: Object, path: str) -> str:
    if found := _SUBSCRIPT.fullmatch(path):
        return str((pod["metadata"].get(found[1]) or {}).get(found[2], ""))
    value: object = pod
    for step in path.split("."):
        value = value.get(step, "") if isinstance(value, dict) else ""
    return str(value)


def _data(store: Store, resource: Resource, namespace: str, reference: Object) -> dict[str, str]:
    record = store.get(resource, namespace, reference.get("name", ""))
    if record is None:
        if reference.get("optional"):
            return {}
        raise ConfigError(f'{resource.kind.lower()} "{reference.get("name")}" not found')
    data: dict[str, str] = record.obj.get("data") or {}
    if resource is SECRETS:
        return {key: base64.b64decode(value).decode(errors="replace") for key, value in data.items()}
    return data


def missing_volume(store: Store, pod: Object) -> str | None:
    """Why the pod's volumes cannot be mounted; None when they can."""
    namespace = pod["metadata"]["namespace"]
    for volume in pod["spec"].get("volumes") or []:
        for field, key, resource in (("configMap", "name", CONFIGMAPS), ("secret", "secretName", SECRETS)):
            source = volume.get(field)
            if source is None or source.get("optional"):
                continue
            if store.get(resource, namespace, source.get(key, "")) is None:
                return (
                    f'MountVolume.SetUp failed for volume "{volume["name"]}" : '
                    f'{resource.kind.lower()} "{source.get(key)}" not found'
                )
    return None
