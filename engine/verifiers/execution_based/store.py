"""Stores of test reports, by a key that hashes everything a report depends on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol

import structlog
from pydantic import TypeAdapter, ValidationError

from engine.files import atomic_write
from engine.verifiers.execution_based.reports import TestReport

_log = structlog.get_logger(__name__)
_REPORT: TypeAdapter[TestReport] = TypeAdapter(TestReport)


class ReportStore(Protocol):
    """Store of the reports of finished runs."""

    async def load(self, key: str) -> TestReport | None:
        """Return a report; None if there is none."""

    async def save(self, key: str, report: TestReport) -> None:
        """Keep a report."""


class MemoryReports:
    """Reports in memory, for this process."""

    def __init__(self) -> None:
        self._reports: dict[str, TestReport] = {}

    async def load(self, key: str) -> TestReport | None:
        """Return a report; None if there is none."""
        return self._reports.get(key)

    async def save(self, key: str, report: TestReport) -> None:
        """Keep a report."""
        self._reports[key] = report


class FolderReports:
    """Reports as JSON files in a folder, so that an interrupted verifier can be resumed.

    Args:
        folder: created when the first report is saved.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def load(self, key: str) -> TestReport | None:
        """Return a report; None if there is none or its file is damaged."""
        return await asyncio.to_thread(self._load, key)

    async def save(self, key: str, report: TestReport) -> None:
        """Write a report. Raises OSError."""
        await asyncio.to_thread(self._save, key, report)

    def _load(self, key: str) -> TestReport | None:
        try:
            return _REPORT.validate_json(self._path(key).read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            _log.warning("a test report cannot be read; its tests run again", key=key, error=str(error)[:200])
            return None

    def _save(self, key: str, report: TestReport) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        atomic_write(self._path(key), _REPORT.dump_json(report).decode())

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"
