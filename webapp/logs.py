"""Log lines without secrets, and without tracebacks where nothing broke."""

from __future__ import annotations

import logging

from engine.redaction import redact


class RedactingFormatter(logging.Formatter):
    """Formats records and leaves out what this process's redactor finds, tracebacks included."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one text."""
        return redact(super().format(record))


class OneLineRefusals(logging.Filter):
    """Leaves the traceback out of a 403: somebody lacked a role, the code did as it should."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep every record."""
        if getattr(record, "status_code", None) == 403:
            record.exc_info = None
        return True
