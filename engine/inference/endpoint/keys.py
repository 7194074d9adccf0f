"""Addresses and keys of endpoints, taken out of this process's environment before it starts others.

A launcher names the endpoints of a run's configuration in ``TRAINYARD_ENDPOINTS``, JSON:
``{"NAME": {"address": "https://HOST/v1", "key": "..."}}``. Without a server, a configuration names an
address and ``TRAINYARD_ENDPOINT_KEY`` holds its key. Both variables are removed once read, so that no
sandbox, rank or engine inherits them, and overwritten where the kernel shows the environment of a process.
Keys are in no configuration, event or log: the process's redactor knows them.
"""

from __future__ import annotations

import ctypes
import os

from pydantic import BaseModel, ConfigDict, Field, SecretStr, TypeAdapter, ValidationError

from engine.errors import ConfigError
from engine.redaction import know, passwords_in

ENDPOINTS, KEY = "TRAINYARD_ENDPOINTS", "TRAINYARD_ENDPOINT_KEY"


class Endpoint(BaseModel):
    """Address and key of an OpenAI-compatible endpoint."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    address: str = Field(pattern=r"^https?://[^\s/@]+(/[^\s@]*)?$")
    """Base address, e.g. ``https://HOST/v1``."""
    key: SecretStr = SecretStr("")
    """Empty for an endpoint that wants none."""


_READER = TypeAdapter(dict[str, Endpoint])
_named: dict[str, Endpoint] = {}
_key = SecretStr("")


def take_keys() -> None:
    """Move the endpoints and keys of the environment into this process's memory and its redactor.

    Raises:
        ConfigError: ``TRAINYARD_ENDPOINTS`` is malformed.
    """
    global _key
    if key := _take(KEY):
        know([key])
        _key = SecretStr(key)
    if text := _take(ENDPOINTS):
        try:
            found = _READER.validate_json(text)
        except ValidationError as error:
            places = ", ".join(
                sorted({".".join(map(str, item["loc"])) or "its JSON" for item in error.errors()})
            )
            raise ConfigError(
                f"{ENDPOINTS} is malformed at {places}: expected "
                '{"NAME": {"address": "https://HOST/v1", "key": "..."}}'
            ) from None
        know(one.key.get_secret_value() for one in found.values())
        _named.update(found)


def find_endpoint(name: str) -> Endpoint:
    """Return the address and key of an endpoint, given by name or by address.

    Raises:
        ConfigError: there is none of that name, or the address holds a password.
    """
    take_keys()
    if name in _named:
        return _named[name]
    if not name.startswith(("http://", "https://")):
        known = ", ".join(_named) or "none"
        raise ConfigError(
            f"endpoint '{name}' is unknown to this process (known: {known}): expected one of those, or an "
            f"address such as http://HOST:PORT/v1 with its key in {KEY}"
        )
    know(passwords_in(name))
    try:
        return Endpoint(address=name, key=_key)
    except ValidationError:
        raise ConfigError(
            "the endpoint's address is malformed: expected http://HOST:PORT/v1 or https://HOST/v1 without "
            f"user and password; a key belongs into {KEY}"
        ) from None


def _take(name: str) -> str:
    """Return a variable's value; remove it, also where ``/proc/PID/environ`` shows it."""
    library = ctypes.CDLL(None)
    library.getenv.restype = ctypes.c_void_p
    if address := library.getenv(name.encode()):
        ctypes.memset(address, 0, len(ctypes.string_at(address)))
    return os.environ.pop(name, "")
