"""Classification of an endpoint's failures: retried, ending the rollout, or ending the run."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import anyio
import httpx2
from openai import APIConnectionError, APIStatusError, APITimeoutError

from engine.errors import ContextLengthError, EndpointRefusedError, ModelError, TrainyardError
from engine.inference.endpoint.answers import GarbledAnswerError, OversizedAnswerError, ReportedError
from engine.inference.endpoint.lengths import LengthRefusal, RequestLength, read_refusal
from engine.inference.endpoint.provider_state import ProviderStateError
from engine.redaction import redact
from engine.tools.base import printable

MAX_PAUSE_S = 120.0
"""Longest pause that an endpoint may ask for, seconds."""
_SHOWN = 300
_SEARCHED = 4000
"""Characters of a refusal that are searched for its cause."""
_OVERLOADED = (429, 503, 529)
_AGAIN = (408, 409, 425)
_QUOTA = re.compile(
    r"insufficient_quota|insufficient[ _]balance|billing|quota[ _]exceeded|credit"
    r"|exceeded_current_quota|\b1113\b|arrearage",
    re.IGNORECASE,
)
"""Pattern of error codes for accounts without credit; the last are Moonshot's, Zhipu's and DashScope's."""
_LENGTH_PARAMETERS = ("", "messages", "prompt", "input", "contents")
"""Values of ``param`` in refusals for length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failed request."""

    error: TrainyardError
    """Error of the rollout if the request is not retried."""
    retry: bool = False
    overloaded: bool = False
    """True where the endpoint asks for fewer requests."""
    pause_s: float | None = None
    """Pause that the endpoint asks for, seconds, capped; None where it names none."""
    is_billed: bool = False
    """True where the endpoint may have generated a response that did not arrive whole."""
    length: LengthRefusal | None = None
    """Refusal for the request's length; None for other failures."""
    is_unexplained: bool = False
    """True where the request was refused for an unclear reason, possibly its length."""


def classify(error: Exception, *, endpoint: str, request: RequestLength) -> Failure:
    """Classify the failure of a request.

    Args:
        error: as raised by the client or by the reading of the answer.
        endpoint: host of the endpoint, for messages.
        request: lengths of the request.

    Raises:
        Exception: the error itself, where it is no failure of an endpoint.
    """
    match error:
        case APIStatusError():
            headers = error.response.headers
            return _of_status(error.status_code, error.body, headers, endpoint, request)
        case ReportedError():
            status = error.body.get("code") if isinstance(error.body, dict) else None
            return _of_status(status if isinstance(status, int) else 500, error.body, {}, endpoint, request)
        case OversizedAnswerError() | ProviderStateError():
            return Failure(error=ModelError(f"{endpoint}: {error}"), is_billed=True)
        case APITimeoutError() | TimeoutError() | httpx2.TimeoutException():
            return Failure(
                error=ModelError(f"{endpoint} did not answer in time"),
                retry=True,
                is_billed=_was_sent(error),
            )
        case APIConnectionError() | httpx2.RequestError() | OSError() | anyio.EndOfStream():
            cause = error.__cause__ or error
            return Failure(
                error=ModelError(f"the connection to {endpoint} failed: {_said(cause)}"),
                retry=True,
                is_billed=_was_sent(error),
            )
        case GarbledAnswerError():
            message = f"{endpoint} returned an invalid answer: {_said(error)}"
            return Failure(error=ModelError(message), retry=True, is_billed=True)
    raise error


def _was_sent(error: Exception) -> bool:
    """Return whether a request may have reached its endpoint before it failed."""
    unsent = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
    return not isinstance(error, unsent) and not isinstance(error.__cause__, unsent)


def _of_status(
    status: int, body: object, headers: Mapping[str, str], endpoint: str, request: RequestLength
) -> Failure:
    reported = _reported(body)
    reason, codes = _message(reported), _codes(reported)
    if status == 401:
        # Endpoints quote a part of the key here.
        return _refused(f"{endpoint} refuses the key (401): check the key of this endpoint")
    if status == 402 or (status in (400, 403, 429) and _QUOTA.search(" ".join(codes))):
        return _refused(f"the account at {endpoint} is out of quota ({status}): {reason}")
    if status == 404:
        return _refused(f"{endpoint} has no such model or path (404): {reason}")
    if 300 <= status < 400:
        return _refused(
            f"{endpoint} redirects to {_host(headers)} ({status}), where the key is not sent: "
            "set the endpoint to its final address"
        )
    if status != 403 and (
        length := read_refusal(status, codes=codes, message=_text(reported), request=request)
    ):
        return Failure(error=ContextLengthError(f"{endpoint} answered {status}: {reason}"), length=length)
    retry = status in (*_OVERLOADED, *_AGAIN) or status >= 500
    return Failure(
        error=ModelError(f"{endpoint} answered {status}: {reason}"),
        retry=retry,
        overloaded=status in _OVERLOADED,
        pause_s=asked_pause(headers) if retry else None,
        is_unexplained=status in (400, 422) and _parameter(reported) in _LENGTH_PARAMETERS,
    )


def _refused(message: str) -> Failure:
    return Failure(error=EndpointRefusedError(message))


def asked_pause(headers: Mapping[str, str]) -> float | None:
    """Return the pause that response headers ask for, seconds, at most ``MAX_PAUSE_S``; None without one."""
    try:
        if milliseconds := headers.get("retry-after-ms"):
            return _capped(float(milliseconds) / 1000)
        if after := headers.get("retry-after"):
            return _capped(float(after))
    except ValueError:
        pass
    try:
        until = parsedate_to_datetime(headers.get("retry-after", ""))
    except (ValueError, OverflowError):
        return None
    until = until if until.tzinfo else until.replace(tzinfo=UTC)
    return _capped((until - datetime.now(UTC)).total_seconds())


def _capped(seconds: float) -> float | None:
    return min(max(seconds, 0.0), MAX_PAUSE_S) if math.isfinite(seconds) else None


def _reported(body: object) -> object:
    """Return the error of a body: Gemini sends a list of one, gateways wrap the error of a provider."""
    if isinstance(body, list) and body:
        body = body[0]
    if isinstance(body, dict) and isinstance(body.get("error"), dict):
        body = body["error"]
    return body


def _codes(reported: object) -> tuple[str, ...]:
    """Return the machine-readable kinds of a reported error."""
    if not isinstance(reported, dict):
        return ()
    return tuple(str(reported[name])[:_SHOWN] for name in ("code", "type") if reported.get(name))


def _parameter(reported: object) -> str:
    return str(reported.get("param") or "") if isinstance(reported, dict) else ""


def _text(reported: object) -> str:
    """Return the text of a reported error, wrapped errors included, to search for a cause."""
    return printable(str(reported)[:_SEARCHED]) if reported else ""


def _message(reported: object) -> str:
    """Return the message of a reported error for display."""
    if isinstance(reported, dict):
        reported = reported.get("message") or reported.get("detail") or reported.get("error") or reported
    return _said(reported) if reported else "no reason given"


def _said(what: object) -> str:
    text = redact(printable(str(what)[: 4 * _SHOWN])) or type(what).__name__
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _host(headers: Mapping[str, str]) -> str:
    try:
        return httpx2.URL(headers.get("location", "")).host or "another address"
    except httpx2.InvalidURL:
        return "another address"
