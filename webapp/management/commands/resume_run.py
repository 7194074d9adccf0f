"""``manage.py resume_run RUN``."""

from __future__ import annotations

from webapp.management.commands._runs import RunCommand


class Command(RunCommand):
    """Resume a paused run, or continue a failed or stopped one from its last checkpoint."""

    help = (
        "Resume a paused run, or continue a failed or stopped one from its last checkpoint; a verifier's run "
        "that has succeeded without some of its scores tries these again."
    )
    action = "resume"
