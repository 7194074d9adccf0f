"""Redaction of secrets in events, as lines of the spool and of ingested batches."""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from typing import Any

from engine.redaction import Redactor

_MAX_LOG_BYTES = 64 << 20
_PACKED = "whole_test_log"
_COLUMNS, _NO_COLUMNS = b'"tokens":{"ids":[', b'"tokens":[]'
_EXACT = frozenset(
    {"patch", "test_id", "flaky_tests", "task_id", "task_ids", "image", "name", "dataset", "path"}
)
"""Fields that are identifiers or are parsed again by programs."""


def redact_line(line: bytes, redactor: Redactor) -> bytes:
    """Return one event as JSON without secrets; token ids and other numbers are never touched.

    Raises:
        ValueError: a suspicious line is not JSON, or nested too deeply.
    """
    texts, columns = _without_columns(line)
    packed = b'"whole_test_log":"' in texts and b'"whole_test_log":""' not in texts
    if not packed and not redactor.is_suspect(texts.decode(errors="replace")):
        return line
    try:
        event = _redacted(json.loads(texts), redactor)
    except RecursionError:
        raise ValueError("the event is nested too deeply") from None
    clean = json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()
    return clean.replace(_NO_COLUMNS, columns, 1) if columns else clean


def _without_columns(line: bytes) -> tuple[bytes, bytes]:
    """Cut the token columns out of a line: they are numbers, most of its size, and slow to parse.

    No text can imitate the placeholder, because quotes within texts are escaped.
    """
    start = line.find(_COLUMNS)
    end = line.find(b"}", start) + 1
    if not 0 <= start < end or _NO_COLUMNS in line:
        return line, b""
    return line[:start] + _NO_COLUMNS + line[end:], line[start:end]


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
