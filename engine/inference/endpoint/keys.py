"""Addresses and keys of endpoints and attached vLLM servers, in this process's memory only.

A launcher sends those of a run's configuration on standard input (``LaunchSecrets``). An engine on a cluster
has no such pipe and requests them from the server with its run's token. Without a server, a configuration
contains addresses; ``TRAINYARD_ENDPOINT_KEY`` holds the key of endpoints and ``TRAINYARD_VLLM_KEY`` that of
vLLM servers. Both variables are removed once read, so that no child process inherits them, and overwritten
in ``/proc/PID/environ``. Configurations contain no keys; the redactor keeps them out of events and logs.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import httpx
import structlog
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from engine.errors import ConfigError, FencedError, PreflightError, describe_error
from engine.processes.environment import take_variable
from engine.redaction import add_secrets, passwords_in

KEY, VLLM_KEY = "TRAINYARD_ENDPOINT_KEY", "TRAINYARD_VLLM_KEY"
FETCH_WITHIN_S = 120.0
"""Maximum time of retries while the server is unreachable, seconds."""
_FETCH_PAUSE_S = 2.0

log = structlog.get_logger("keys")


class Endpoint(BaseModel):
    """Address and key of an OpenAI-compatible endpoint."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    address: str = Field(pattern=r"^https?://[^\s/@]+(/[^\s@]*)?$")
    """Base address, e.g. ``https://HOST/v1``."""
    key: SecretStr = SecretStr("")
    """Empty for an endpoint without a key."""


class LaunchSecrets(BaseModel):
    """Content of an engine's standard input, JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    redacted: tuple[str, ...] = ()
    """Texts that the engine keeps out of events and logs."""
    endpoints: Mapping[str, Endpoint] = {}
    """Endpoints that the run's configuration names."""


_named: dict[str, Endpoint] = {}
_keys: dict[str, SecretStr] = {}
"""Keys of the environment by the name of their variable."""


def read_secrets() -> None:
    """Move the secrets on standard input into this process's memory and its redactor.

    Child processes inherit an empty standard input.

    Raises:
        ConfigError: they are malformed.
    """
    text = sys.stdin.read()
    with Path(os.devnull).open() as null:
        os.dup2(null.fileno(), sys.stdin.fileno())
    _store(text, "on standard input")


def fetch_secrets(url: str, token: str, *, within_s: float = FETCH_WITHIN_S) -> None:
    """Fetch this attempt's secrets from the server into this process's memory and its redactor.

    Args:
        url: the run's ``secrets`` endpoint.
        token: the run's bearer token.
        within_s: maximum time of retries while the server does not answer, seconds.

    Raises:
        PreflightError: the server does not answer, or refuses.
        FencedError: a newer attempt exists, or the run has ended.
        ConfigError: they are malformed.
    """
    deadline = time.monotonic() + within_s
    while True:
        try:
            answer = httpx.post(url, headers={"Authorization": f"Bearer {token}"}, timeout=5.0)
            if not answer.is_server_error:
                break
            why = f"status {answer.status_code}"
        except httpx.HTTPError as error:
            why = describe_error(error)
        if time.monotonic() > deadline:
            raise PreflightError(
                f"this node cannot reach the web server at {url} ({why}): set TRAINYARD_WEB_URL to an "
                "address that the cluster's nodes reach"
            )
        log.warning("web_server_unreachable", url=url, why=why)
        time.sleep(_FETCH_PAUSE_S)
    if answer.status_code in (httpx.codes.CONFLICT, httpx.codes.GONE):
        raise FencedError(f"the server has no secrets for this attempt: {answer.text[:500]}")
    if not answer.is_success:
        raise PreflightError(f"the server refuses this attempt's secrets: {answer.text[:500]}")
    _store(answer.text, f"of {url}")


def _store(text: str, origin: str) -> None:
    try:
        secrets = LaunchSecrets.model_validate(json.loads(text))
    except ValueError as error:
        details = error.errors() if isinstance(error, ValidationError) else []
        places = ", ".join(sorted({".".join(map(str, item["loc"])) for item in details})) or "its JSON"
        raise ConfigError(
            f"the secrets {origin} are malformed at {places}: expected "
            '{"redacted": [...], "endpoints": {"NAME": {"address": "https://HOST/v1", "key": "..."}}}'
        ) from None
    add_secrets(
        [*secrets.redacted, *(endpoint.key.get_secret_value() for endpoint in secrets.endpoints.values())]
    )
    _named.update(secrets.endpoints)


def take_keys() -> None:
    """Move the keys of the environment into this process's memory and its redactor."""
    for name in (KEY, VLLM_KEY):
        if key := take_variable(name):
            add_secrets([key])
            _keys[name] = SecretStr(key)


def find_endpoint(name: str, *, variable: str = KEY) -> Endpoint:
    """Return the address and key of an endpoint, given by name or by address.

    Args:
        name: name or address of an endpoint.
        variable: environment variable with the key for addresses.

    Raises:
        ConfigError: no endpoint has that name, or the address holds a password.
    """
    take_keys()
    if name in _named:
        return _named[name]
    if not name.startswith(("http://", "https://")):
        known = ", ".join(_named) or "none"
        raise ConfigError(
            f"endpoint '{name}' is unknown to this process (known: {known}): expected one of those, or an "
            f"address such as http://HOST:PORT/v1 with its key in {variable}"
        )
    add_secrets(passwords_in(name))
    try:
        return Endpoint(address=name, key=_keys.get(variable, SecretStr("")))
    except ValidationError:
        raise ConfigError(
            "the endpoint's address is malformed: expected http://HOST:PORT/v1 or https://HOST/v1 without "
            f"user and password; a key belongs in {variable}"
        ) from None
