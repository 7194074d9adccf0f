"""``manage.py resume_run RUN``."""

from __future__ import annotations

from webapp.management.commands._runs import RunCommand


class Command(RunCommand):
    """Let a paused run go on, or continue a failed or stopped one from its last checkpoint."""

    help = "Let a paused run go on, or continue a failed or stopped one from its last checkpoint."
    action = "resume"
