"""Tasks from the commits of repositories."""

from __future__ import annotations

from engine.config.curation import CommitCuration
from engine.config.run import CommitCurateRun


def dataset() -> CommitCurateRun:
    """Make tasks of the newest 300 commits of a repository, proven by their own tests (SWE-GEN)."""
    return CommitCurateRun(
        name="tasks from commits",
        curation=CommitCuration(repositories=("https://github.com/mahmoud/boltons",), output="commits"),
    )
