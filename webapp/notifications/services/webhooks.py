"""Requests to webhooks, signed as Standard Webhooks defines it.

People enter the URLs, so a request must not reach what only this server can reach: the address of the host is
resolved once, private addresses are refused unless the administrator lists the host, and the connection goes
to the address that was checked. Redirects are not followed; time and size of the response are limited.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import secrets
import socket
import ssl
import time
from dataclasses import dataclass
from functools import cache
from typing import Final
from urllib.parse import urlsplit

import httpx
from django.conf import settings

from engine.errors import TrainyardError

TIMEOUT_S = 10.0
"""Maximum time of one request, seconds."""
PREFIX = "whsec_"
MOST_DETAIL = 500
"""Characters of a response that are kept."""
_SECRET_BYTES = 32
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class RefusedAddressError(TrainyardError):
    """The host of a webhook must not be reached from here."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of one attempt to send a message."""

    delivered: bool
    status: int | None
    """HTTP status; None without a response."""
    detail: str
    final: bool = False
    """Whether further attempts are pointless: the receiver is gone."""


def new_secret() -> str:
    """Return a random signing secret."""
    return PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def signature(secret: str, *, message_id: str, timestamp: int, body: bytes) -> str:
    """Return the value of the header ``webhook-signature``."""
    key = base64.b64decode(secret.removeprefix(PREFIX))
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


async def post(url: str, *, secret: str, message_id: str, body: bytes) -> Answer:
    """Send a message to a webhook; every failure is an answer."""
    timestamp = int(time.time())
    headers = {
        "content-type": "application/json",
        "accept-encoding": "identity",
        "user-agent": "Trainyard",
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signature(secret, message_id=message_id, timestamp=timestamp, body=body),
    }
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await _post(url, headers, body)
    except TimeoutError:
        return Answer(False, None, f"no complete response within {TIMEOUT_S:g} s")
    except (RefusedAddressError, httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        return Answer(False, None, (str(error) or type(error).__name__)[:MOST_DETAIL])


async def checked_addresses(host: str, port: int) -> list[str]:
    """Resolve a host; return its addresses.

    Raises:
        RefusedAddressError: one of them is not public, and the administrator does not list the host.
        OSError: it cannot be resolved.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found))
    listed = {host.lower(), f"{host.lower()}:{port}", "*"}
    if listed.isdisjoint(settings.TRAINYARD_WEBHOOK_HOSTS) and not all(map(_is_public, addresses)):
        raise RefusedAddressError(
            f"{host} has an address that is not public: an administrator can list it in "
            "TRAINYARD_WEBHOOK_HOSTS"
        )
    return addresses


@cache
def tls_context() -> ssl.SSLContext:
    """Return the certificate authorities to trust; reading them takes 0.1 s, during which nothing is sent."""
    return httpx.create_ssl_context()


async def _post(url: str, headers: dict[str, str], body: bytes) -> Answer:
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    failure: httpx.ConnectError | None = None
    # A proxy of the environment would resolve the host again.
    async with httpx.AsyncClient(
        follow_redirects=False, timeout=TIMEOUT_S, trust_env=False, verify=tls_context()
    ) as client:
        for address in await checked_addresses(host, port):
            request = client.build_request(
                "POST",
                httpx.URL(url).copy_with(host=address, port=port),
                headers={**headers, "host": parts.netloc},
                content=body,
                extensions={"sni_hostname": host},
            )
            try:
                response = await client.send(request, stream=True)
            except httpx.ConnectError as error:
                failure = error
                continue
            try:
                return await _answer(response)
            finally:
                await response.aclose()
    raise failure or OSError(f"{host} has no address")


async def _answer(response: httpx.Response) -> Answer:
    status, text = response.status_code, b""
    async for part in response.aiter_raw():
        text += part[: 4 * MOST_DETAIL]
        if len(text) >= 4 * MOST_DETAIL:  # bytes of a character in UTF-8
            break
    if response.is_redirect:
        return Answer(False, status, "it redirects; redirects are not followed")
    return Answer(
        response.is_success, status, text.decode(errors="replace")[:MOST_DETAIL], final=status == 410
    )


def _is_public(text: str) -> bool:
    address: _Address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address):
        embedded = address.ipv4_mapped or address.sixtofour
        if address in _NAT64:
            embedded = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if embedded is not None:
            address = embedded
        elif address.teredo is not None:
            return False
    return address.is_global and not address.is_multicast
