"""ResourceQuota and LimitRange: what a namespace may use, and what its containers get when they ask for
nothing."""

from __future__ import annotations

from collections import Counter

from tests.fakes.cluster.errors import forbidden
from tests.fakes.cluster.quantities import Amounts, amount, amounts, of_pod, render
from tests.fakes.cluster.resources import LIMITRANGES, PODS, QUOTAS, RESOURCES, Object, Resource
from tests.fakes.cluster.store import Store

_COMPUTE = ("cpu", "memory", "ephemeral-storage")
_COUNTED = {one.plural: one for one in RESOURCES if not one.group and one.namespaced}


def check(store: Store, resource: Resource, obj: Object) -> None:
    """Count a new object against the namespace's quotas. Raises ApiError 403 naming the exceeded one."""
    if not resource.namespaced:
        return
    namespace, name = obj["metadata"]["namespace"], obj["metadata"]["name"]
    for record in store.all(QUOTAS, namespace):
        hard = amounts(record.obj["spec"].get("hard"))
        wanted = Counter({key: count for key, count in _uses(resource, obj).items() if key in hard})
        if resource is PODS:
            _check_given(record.obj["metadata"]["name"], obj, hard)
        if not wanted:
            continue
        used = usage(store, namespace, hard)
        over = [key for key in sorted(wanted) if used[key] + wanted[key] > hard[key]]
        if over:
            shown = [
                ",".join(f"{key}={render(key, table[key])}" for key in over) for table in (wanted, used, hard)
            ]
            raise forbidden(
                resource,
                name,
                f"exceeded quota: {record.obj['metadata']['name']}, requested: {shown[0]}, used: {shown[1]}, "
                f"limited: {shown[2]}",
            )


def usage(store: Store, namespace: str, hard: Amounts) -> Amounts:
    """What the namespace's living objects use of the constrained resources."""
    used: Amounts = Counter()
    for key in hard:
        if key.startswith("count/"):
            plural = key.removeprefix("count/")
            found = next((one for one in RESOURCES if one.qualified == plural), None)
            used[key] = sum(1 for _ in store.all(found, namespace)) if found else 0
        elif key in _COUNTED and key != "pods":
            used[key] = sum(1 for _ in store.all(_COUNTED[key], namespace))
    for record in store.all(PODS, namespace):
        if record.obj["status"].get("phase") not in ("Succeeded", "Failed"):
            used.update(
                {
                    key: count
                    for key, count in _uses(PODS, record.obj).items()
                    if key in hard and "/" not in key
                }
            )
    return used


def _uses(resource: Resource, obj: Object) -> Amounts:
    uses: Amounts = Counter({f"count/{resource.qualified}": 1})
    if resource.plural in _COUNTED:
        uses[resource.plural] = 1
    if resource is PODS:
        requests, limits = of_pod(obj["spec"], "requests"), of_pod(obj["spec"], "limits")
        for name in _COMPUTE:
            uses[name] = uses[f"requests.{name}"] = requests[name]
            uses[f"limits.{name}"] = limits[name]
    return uses


def _check_given(quota: str, pod: Object, hard: Amounts) -> None:
    missing = []
    for key in sorted(hard):
        which, _, name = key.rpartition(".")
        if name not in ("cpu", "memory"):
            continue
        for container in pod["spec"].get("containers") or []:
            given = (container.get("resources") or {}).get(which or "requests") or {}
            if name not in given:
                missing.append(f"{key} for: {container.get('name')}")
    if missing:
        raise forbidden(
            PODS, pod["metadata"]["name"], f"failed quota: {quota}: must specify {'; '.join(missing)}"
        )


def apply_limit_ranges(store: Store, pod: Object) -> None:
    """Give containers the namespace's default requests and limits. Raises ApiError 403 beyond its bounds."""
    for record in store.all(LIMITRANGES, pod["metadata"]["namespace"]):
        for item in record.obj["spec"].get("limits") or []:
            if item.get("type") != "Container":
                continue
            for field in ("initContainers", "containers"):
                for container in (pod.get("spec") or {}).get(field) or []:
                    _apply(item, container, pod["metadata"]["name"])


def _apply(item: Object, container: Object, pod: str) -> None:
    resources: Object = container.setdefault("resources", {})
    given = dict(resources.get("limits") or {})
    limits = {**(item.get("default") or {}), **given}
    defaults = {**(item.get("default") or {}), **(item.get("defaultRequest") or {}), **given}
    requests = {**defaults, **(resources.get("requests") or {})}
    if limits:
        resources["limits"] = limits
    if requests:
        resources["requests"] = requests
    for bound, table, above in (("max", limits, True), ("min", requests, False)):
        for name, text in (item.get(bound) or {}).items():
            if name not in table:
                continue
            value, edge = amount(name, str(table[name])), amount(name, str(text))
            if value > edge if above else value < edge:
                word, what = ("maximum", "limit") if above else ("minimum", "request")
                raise forbidden(
                    PODS, pod, f"{word} {name} usage per Container is {text}, but {what} is {table[name]}"
                )
