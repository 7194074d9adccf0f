"""Logging without secrets, and without tracebacks of refused requests."""

from __future__ import annotations

import logging

from engine.redaction import redact
from engine.terminal import visible_text


class RedactingFormatter(logging.Formatter):
    """Formatter that redacts secrets from records and tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the redacted record as text that is safe on a terminal."""
        return visible_text(redact(super().format(record)))


class OneLineRefusals(logging.Filter):
    """Filter that removes the traceback from records of status 403, an expected refusal."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Remove the traceback of a 403; keep every record."""
        if getattr(record, "status_code", None) == 403:
            record.exc_info = None
        return True
