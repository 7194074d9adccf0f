"""Advisory locks of the database for work that one process does at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection


@contextmanager
def alone(key: int) -> Iterator[bool]:
    """Hold the lock of a kind of work; yield False if another process holds it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [key])
        is_held = bool(cursor.fetchone()[0])
        try:
            yield is_held
        finally:
            if is_held:
                cursor.execute("SELECT pg_advisory_unlock(%s)", [key])
