"""Sandbox records and pool snapshots, counted sandboxes, and the short conformance suite."""

from __future__ import annotations

from collections.abc import AsyncIterator, Container
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from engine.errors import SandboxStartError
from engine.events.sandboxes import CLOCK_BOUNDS_S
from engine.sandbox.base import Sandbox, SandboxSpec
from engine.sandbox.conformance import CHECKS
from engine.sandbox.local.backend import LocalBackend
from tests.builders.web.event_builders import T0

SHORT_CONFORMANCE = [
    check
    for check in CHECKS
    if check.__name__
    in (
        "reports_exit_codes_and_splits_the_streams",
        "a_deadline_kills_the_whole_tree_and_keeps_the_output",
        "a_flood_of_output_is_capped_and_counted",
        "closing_is_idempotent_and_ends_running_calls",
        "a_sandbox_ends_with_its_lifetime",
        "reads_and_writes_files_of_any_content_and_name",
        "the_diff_of_every_kind_of_edit_applies_to_a_fresh_sandbox",
        "hidden_paths_are_gone_and_the_diff_keeps_silent",
        "there_is_no_network",
        "nothing_of_the_host_is_visible",
        "there_are_no_privileges",
        "a_status_cannot_be_forged",
        "a_full_disk_stays_inside",
        "a_dead_sandbox_is_a_typed_error",
    )
]
"""The checks of the conformance suite that every backend passes in ``make test``; the drills run all."""


def lease(number: int, state: str = "started", **changes: Any) -> dict[str, Any]:
    """Return a record of lease ``number``, with the fields that its state implies."""
    begun, ended = state != "leased", state in ("closed", "failed")
    return {
        "lease": f"ls-{number:04d}", "state": state, "name": f"train/0/task/{number}", "lane": "train",
        "image": "local:boltons", "backend": "local", "sandbox_id": f"sb-{number}" if begun else "",
        "node": "node-a" if begun else "", "queue_seconds": 0.2, "pull_seconds": 0.0, "start_seconds": 0.03,
        "leased_at": T0 + number, "started_at": T0 + number + 1 if begun else None,
        "ended_at": T0 + number + 2 if ended else None, "failure": "died" if state == "failed" else "",
        "reason": "the node went away" if state == "failed" else "", **changes,
    }  # fmt: skip


def clock(*seconds: float) -> dict[str, Any]:
    """Return a histogram of durations."""
    counts = [0] * (len(CLOCK_BOUNDS_S) + 1)
    for value in seconds:
        counts[sum(bound < value for bound in CLOCK_BOUNDS_S)] += 1
    return {"counts": counts, "total": sum(seconds)}


def pool(**changes: Any) -> dict[str, Any]:
    """Return the fields of a ``pool_status`` event."""
    return {
        "backend": "local", "wanted": 7, "waiting": 2, "starting": 1, "live": 4, "idle": 3, "max_live": 8,
        "max_starting": 2, "opened": 20, "failures": {"died": 1, "image": 3},
        "images": [{"image": "local:bad", "failures": 3, "reason": "no such image", "refused": True}],
        "nodes": {"node-a": 3, "node-b": 1}, "orphans": 2, "paused_reason": "",
        "clocks": {"queue": clock(0.2, 3.0), "start": clock(*[0.03] * 19, 40.0), "exec": clock(0.004)},
        **changes,
    }  # fmt: skip


class CountingBackend(LocalBackend):
    """Local backend that counts its sandboxes; those numbered in ``failing``, from 1, do not start."""

    def __init__(self, home: Path, failing: Container[int] = ()) -> None:
        super().__init__(home)
        self.opened = 0
        self._failing = failing

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        self.opened += 1
        if self.opened in self._failing:
            raise SandboxStartError("no room")
        async with super().open(spec) as box:
            yield box
