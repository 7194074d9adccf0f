"""HTTP API under ``/api/v1``: ingest for engines, everything else for people and their scripts.

``api.urls`` is mounted by ``webapp.urls``. To add a resource: a router module, one line in ``app``.
"""

from __future__ import annotations

from webapp.api.app import api

__all__ = ["api"]
