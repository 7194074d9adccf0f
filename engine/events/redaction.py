"""Redaction of secrets in events, as lines of the spool and of ingested batches."""

from __future__ import annotations

import base64
import binascii
import json
import re
import zlib
from dataclasses import dataclass
from typing import Any

from engine.events.token_block import MAGIC
from engine.redaction import Redactor

_MAX_LOG_BYTES = 64 << 20
_PACKED = "whole_test_log"
_HAS_PACKED = re.compile(rb'"%b"\s*:\s*"[^"]|\\u00[2-7]' % _PACKED.encode())
"""A packed log, or an escaped ASCII character, which is rare and may hide the field."""
_PACKED_MARKS = (_PACKED.encode(), rb"\u00")
"""Texts without which ``_HAS_PACKED`` does not match; it begins without fixed letters, so it is slow."""
_TOKENS = re.compile(
    rb'"tokens":(?:"%b[A-Za-z0-9+/]*=*"|\{"ids":\[[-0-9,]*\](?:,"[a-z]+":\[[-+.0-9eE,]*\])*\})'
    % base64.b64encode(MAGIC[:3])
)
_NO_TOKENS = b'"tokens":[]'
_EXACT = frozenset(
    {"patch", "test_id", "flaky_tests", "task_id", "task_ids", "image", "name", "dataset", "path"}
)
"""Fields that are identifiers or are parsed again by programs."""


class LogTooLargeError(ValueError):
    """A complete test log exceeds the remaining bytes when decompressed."""


@dataclass(slots=True)
class LogBudget:
    """Remaining size of the complete test logs of further lines, decompressed, bytes."""

    remaining: int


def redact_line(line: bytes, redactor: Redactor, *, logs: LogBudget | None = None) -> bytes:
    """Return one event as JSON without secrets; token ids and other numbers are never touched.

    Args:
        line: the event.
        redactor: replaces the secrets.
        logs: remaining size for the event's test log; None allows one log of maximum size.

    Raises:
        LogTooLargeError: the test log exceeds the remaining size.
        ValueError: a suspicious line is not JSON, or nested too deeply.
    """
    texts, tokens = _without_tokens(line)
    may_be_packed = any(mark in texts for mark in _PACKED_MARKS) and _HAS_PACKED.search(texts)
    if not may_be_packed and not redactor.is_suspect(texts.decode(errors="replace")):
        return line
    try:
        event = _redacted(json.loads(texts), redactor, logs)
    except RecursionError:
        raise ValueError("the event is nested too deeply") from None
    clean = json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()
    return clean.replace(_NO_TOKENS, tokens, 1) if tokens else clean


def _without_tokens(line: bytes) -> tuple[bytes, bytes]:
    """Cut the tokens out of a line: they are numbers, most of its size, and slow to search.

    No text can imitate the placeholder, because quotes within texts are escaped.
    """
    match = _TOKENS.search(line)
    if match is None or _NO_TOKENS in line:
        return line, b""
    return line[: match.start()] + _NO_TOKENS + line[match.end() :], match.group()


def _redacted(event: Any, redactor: Redactor, logs: LogBudget | None) -> Any:
    if not isinstance(event, dict):
        return redactor.tree(event)
    kept = {name: event[name] for name in (_PACKED, "tokens") if name in event}
    rest = {name: () if name in kept else value for name, value in event.items()}
    result: dict[str, Any] = redactor.tree(rest, exact=_EXACT) | kept
    if isinstance(kept.get(_PACKED), str):
        result[_PACKED] = _repacked(kept[_PACKED], redactor, logs)
    return result


def _repacked(packed: str, redactor: Redactor, logs: LogBudget | None) -> str:
    """Return a compressed whole test log without secrets; without ``logs`` an unreadable one unchanged.

    Raises:
        LogTooLargeError: the log exceeds the remaining size.
        ValueError: the log is unreadable, with ``logs``.
    """
    remaining = logs.remaining if logs else _MAX_LOG_BYTES
    try:
        data = zlib.decompressobj().decompress(base64.b64decode(packed, validate=True), remaining + 1)
    except (zlib.error, binascii.Error) as error:
        if logs:  # an unreadable log may hide secrets
            raise ValueError(f"the whole test log is damaged: {error}") from error
        return packed
    if len(data) > remaining:
        raise LogTooLargeError(
            f"a whole test log decompresses to more than the remaining {remaining:,} bytes"
        )
    if logs:
        logs.remaining -= len(data)
    text = data.decode("utf-8", "replace")
    clean = redactor.text(text)
    return packed if clean == text else base64.b64encode(zlib.compress(clean.encode())).decode()
