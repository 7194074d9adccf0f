"""Launcher of runs that another program executes, which posts their events itself."""

from __future__ import annotations

from engine.config.run import AnyRun
from workers.launchers.base import LaunchOrder, ProcessReport, ProcessState, Recorder


class ExternalLauncher:
    """Launcher that starts nothing: the program reports with the run's token (``attempts.issue_token``)."""

    def check(self, run: AnyRun) -> None:
        """Require nothing."""

    def launch(self, order: LaunchOrder, record: Recorder) -> None:  # noqa: ARG002
        """Record an attempt without a process."""
        record("", "external")

    def poll(self, *, host: str, handle: str) -> ProcessReport:  # noqa: ARG002
        """Return that nobody here knows the process."""
        return ProcessReport(ProcessState.EXTERNAL, "Another program runs it and posts its events")

    def ask_to_stop(self, *, host: str, handle: str) -> None:
        """Do nothing: the answer to its next heartbeat asks the program to stop."""

    def kill(self, *, host: str, handle: str) -> None:
        """Do nothing: once the run has ended, its events are refused."""
