"""Redaction of secrets in events, as lines of the spool and of ingested batches."""

from __future__ import annotations

import base64
import binascii
import json
import re
import zlib
from typing import Any

from engine.events.token_block import MAGIC
from engine.redaction import Redactor

_MAX_LOG_BYTES = 64 << 20
_PACKED = "whole_test_log"
_TOKENS = re.compile(
    rb'"tokens":(?:"%b[A-Za-z0-9+/]*=*"|\{"ids":\[[-0-9,]*\](?:,"[a-z]+":\[[-+.0-9eE,]*\])*\})'
    % base64.b64encode(MAGIC[:3])
)
_NO_TOKENS = b'"tokens":[]'
_EXACT = frozenset(
    {"patch", "test_id", "flaky_tests", "task_id", "task_ids", "image", "name", "dataset", "path"}
)
"""Fields that are identifiers or are parsed again by programs."""


def redact_line(line: bytes, redactor: Redactor) -> bytes:
    """Return one event as JSON without secrets; token ids and other numbers are never touched.

    Raises:
        ValueError: a suspicious line is not JSON, or nested too deeply.
    """
    texts, tokens = _without_tokens(line)
    packed = b'"whole_test_log":"' in texts and b'"whole_test_log":""' not in texts
    if not packed and not redactor.is_suspect(texts.decode(errors="replace")):
        return line
    try:
        event = _redacted(json.loads(texts), redactor)
    except RecursionError:
        raise ValueError("the event is nested too deeply") from None
    clean = json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()
    return clean.replace(_NO_TOKENS, tokens, 1) if tokens else clean


def _without_tokens(line: bytes) -> tuple[bytes, bytes]:
    """Cut the tokens out of a line: they are numbers, most of its size, and slow to search.

    No text can imitate the placeholder, because quotes within texts are escaped.
    """
    found = _TOKENS.search(line)
    if found is None or _NO_TOKENS in line:
        return line, b""
    return line[: found.start()] + _NO_TOKENS + line[found.end() :], found.group()


def _redacted(event: Any, redactor: Redactor) -> Any:
    if not isinstance(event, dict):
        return redactor.tree(event)
    kept = {name: event[name] for name in (_PACKED, "tokens") if name in event}
    rest = {name: () if name in kept else value for name, value in event.items()}
    result: dict[str, Any] = redactor.tree(rest, exact=_EXACT) | kept
    if isinstance(kept.get(_PACKED), str):
        result[_PACKED] = _repacked(kept[_PACKED], redactor)
    return result


def _repacked(packed: str, redactor: Redactor) -> str:
    """Return a compressed whole test log without secrets; an unreadable one is returned unchanged."""
    try:
        data = zlib.decompressobj().decompress(base64.b64decode(packed, validate=True), _MAX_LOG_BYTES)
    except (zlib.error, binascii.Error):
        return packed
    text = data.decode("utf-8", "replace")
    clean = redactor.text(text)
    return packed if clean == text else base64.b64encode(zlib.compress(clean.encode())).decode()
