"""Log lines without secrets."""

from __future__ import annotations

import logging

from engine.redaction import redact


class RedactingFormatter(logging.Formatter):
    """Formats records and leaves out what this process's redactor finds, tracebacks included."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one text."""
        return redact(super().format(record))
