"""Live updates without their pauses, which would delay each test by seconds."""

from __future__ import annotations

import pytest

from webapp.live import hub, watch


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "CHECK_S", 0.05)
    monkeypatch.setattr(hub, "INTERVAL_S", 0.02)
    for share in ("PAGE_SHARE", "SHARE", "BUSY_SHARE"):
        monkeypatch.setattr(hub, share, 1000.0)
