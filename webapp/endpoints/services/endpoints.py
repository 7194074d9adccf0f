"""Changes of endpoints by administrators; engines receive the keys at launch only.

A key is sealed together with its address. A user with write access to the row, but without the sealing keys,
can therefore not redirect the key to another address.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from engine.config.access.places import AttachedServers, EndpointPlace, places
from engine.config.base import Section
from engine.config.policies import EndpointPolicyConfig
from engine.config.run import AnyRun
from engine.errors import ConfigError, Problem
from engine.redaction import MIN_LENGTH
from webapp.core.services import audit, sealing
from webapp.endpoints.models import Endpoint
from webapp.notifications.models import Notification

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PRINTABLE = re.compile(r"[!-~]*")
_HINT = 4
_MIN_HINTED = 16
"""Minimum length of a key whose last characters are shown."""
_LENGTHS = {"address": 500, "note": 300, "allowed_models": 500, "key": 4096}


def save(
    *,
    name: str,
    address: str,
    note: str = "",
    models: str = "",
    attachable: bool = False,
    key: str | None = None,
    actor: User | None = None,
) -> Endpoint:
    """Create an endpoint, or change the one with this name.

    Args:
        name: letters, digits, dots, dashes and underscores.
        address: base URL of the API, ``https://HOST/v1``.
        note: text for people.
        models: patterns of the models that runs may use, separated by commas; empty allows all.
        attachable: true for a vLLM server that runs may attach to, replacing its weights.
        key: the key; empty for an address without one; None keeps the stored key.
        actor: user who changes it; None for a command.

    Raises:
        ConfigError: a value is not valid, or the address changes while the key is kept.
    """
    values = {"address": address.strip(), "note": note.strip(), "allowed_models": models.strip()}
    key = key.strip() if key is not None else None
    _check(name, values, key or "")
    with sealing.locked(), transaction.atomic():
        endpoint = Endpoint.objects.select_for_update().filter(name=name).first() or Endpoint(name=name)
        if key is None and endpoint.sealed_key and endpoint.address != values["address"]:
            raise ConfigError(
                Problem("the address changes: enter the key again, since it will be sent there", "key")
            )
        action = "endpoint.change" if endpoint.pk else "endpoint.create"
        changes: dict[str, object] = {}
        for field, value in {**values, "attachable": attachable}.items():
            if value != getattr(endpoint, field):
                changes[field] = {"old": getattr(endpoint, field), "new": value}
                setattr(endpoint, field, value)
        if key is not None:
            _set_key(endpoint, key)
            changes["key"] = "entered" if key else "none"
        endpoint.save()
        audit.record(actor=actor, action=action, target=f"endpoint {name}", changes=changes)
    return endpoint


@transaction.atomic
def remove(*, endpoint: Endpoint, actor: User | None = None) -> None:
    """Delete an endpoint with its key. Runs in progress keep the key until they end."""
    audit.record(actor=actor, action="endpoint.remove", target=f"endpoint {endpoint.name}")
    endpoint.delete()


def rotate(*, actor: User | None = None) -> int:
    """Encrypt the secrets of endpoints and webhooks under a new sealing key; return their number.

    The old sealing keys are removed.

    If the environment has the sealing keys, the first one encrypts; the others may be removed afterwards.

    Raises:
        ConfigError: a stored key cannot be decrypted; no stored key changes, no sealing key is removed.
    """
    with sealing.locked():
        sealing.rotate_key()
        with transaction.atomic():
            count = _reseal(Endpoint, "sealed_key") + _reseal(Notification, "sealed")
            audit.record(actor=actor, action="endpoint.rotate", changes={"keys": count})
        sealing.forget_old_keys()
    return count


def _reseal(model: type[Endpoint] | type[Notification], field: str) -> int:
    """Encrypt a column anew under the newest sealing key; return the number of secrets."""
    rows = list(model.objects.select_for_update().exclude(**{field: ""}).values_list("pk", field))
    for pk, sealed in rows:
        model.objects.filter(pk=pk).update(**{field: sealing.resealed(sealed)})
    return len(rows)


def key_of(endpoint: Endpoint) -> str:
    """Return the decrypted key; empty without one. Raises ConfigError if it cannot be decrypted."""
    if not endpoint.sealed_key:
        return ""
    try:
        return sealing.unseal(endpoint.sealed_key, purpose=_purpose(endpoint))
    except ConfigError as error:
        raise ConfigError(f"endpoint '{endpoint.name}': {error}") from None


def reveal(config: AnyRun, *, run_id: int, epoch: int) -> dict[str, dict[str, str]]:
    """Return address and decrypted key of each endpoint that a configuration uses, to start its engine.

    An audit entry records the names and the attempt that receives the keys. Programs other than our engine
    receive none.

    Raises:
        ConfigError: an endpoint was removed, may not serve the model, or has a key that cannot be decrypted.
    """
    if config.launcher.backend == "external":
        return {}
    chat = {s.value for s in places(config) if isinstance(s.place, EndpointPlace)}
    attached = {n for s in places(config) if isinstance(s.place, AttachedServers) for n in s.value}
    names = sorted(chat | {name for name in attached if _NAME.fullmatch(name)})
    known = {row.name: row for row in Endpoint.objects.filter(name__in=names)}
    for name in names:
        if name not in known:
            raise ConfigError(f"endpoint '{name}' was removed: have the administrator enter it again")
        if name in attached and not known[name].attachable:
            raise ConfigError(f"endpoint '{name}' may not be attached to: have the administrator allow it")
    check_models(config)
    if names:
        audit.record(
            actor=None,
            action="endpoint.reveal",
            run_id=run_id,
            target=f"attempt {epoch}",
            changes={"endpoints": names},
        )
    return {name: {"address": known[name].address, "key": key_of(known[name])} for name in names}


def check_models(config: AnyRun) -> None:
    """Raise ConfigError unless each endpoint of a configuration may serve the model that it names."""
    uses = list(_uses(config))
    known = {row.name: row for row in Endpoint.objects.filter(name__in=[use.endpoint for _, use in uses])}
    problems = [
        Problem(
            f"'{use.model}' is no model that runs may use from endpoint '{use.endpoint}'"
            f" ({', '.join(known[use.endpoint].patterns)})",
            f"{name}.model",
        )
        for name, use in uses
        if use.endpoint in known and not allows(known[use.endpoint], use.model)
    ]
    if problems:
        raise ConfigError(*problems)


def allows(endpoint: Endpoint, model: str) -> bool:
    """Return whether runs may use a model of an endpoint."""
    return not endpoint.patterns or any(fnmatchcase(model, pattern) for pattern in endpoint.patterns)


def _uses(section: Section, prefix: str = "") -> Iterator[tuple[str, EndpointPolicyConfig]]:
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, EndpointPolicyConfig):
            yield f"{prefix}{name}", value
        elif isinstance(value, Section):
            yield from _uses(value, f"{prefix}{name}.")


def _check(name: str, values: dict[str, str], key: str) -> None:
    problems = []
    if not _NAME.fullmatch(name):
        problems.append(
            Problem(f"'{name[:80]}' is no name: use letters, digits, '.', '-' and '_', at most 64", "name")
        )
    problems += [
        Problem(f"{len(value)} characters are too many: at most {_LENGTHS[field]}", field)
        for field, value in (*values.items(), ("key", key))
        if len(value) > _LENGTHS[field]
    ]
    if reason := _address_problem(values["address"]):
        problems.append(Problem(reason, "address"))
    if key and len(key) < MIN_LENGTH:
        problems.append(Problem(f"a key has at least {MIN_LENGTH} characters", "key"))
    if not _PRINTABLE.fullmatch(key):
        problems.append(Problem("a key has no spaces and only ASCII characters", "key"))
    if problems:
        raise ConfigError(*problems)


def _address_problem(address: str) -> str:
    try:
        parts = urlsplit(address)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        valid = False
    if not valid or not _PRINTABLE.fullmatch(address):
        return "this is no address: expected https://HOST/v1"
    if "@" in address:
        return "an address has no user or password: enter the key in its own field"
    if parts.query or parts.fragment:
        return "an address has no '?' or '#': expected https://HOST/v1"
    return ""


def _set_key(endpoint: Endpoint, key: str) -> None:
    endpoint.sealed_key = sealing.seal(key, purpose=_purpose(endpoint)) if key else ""
    endpoint.key_hint = key[-_HINT:] if len(key) >= _MIN_HINTED else ""
    endpoint.key_set_at = timezone.now() if key else None


def _purpose(endpoint: Endpoint) -> str:
    return f"endpoint {endpoint.name} {endpoint.address}"
