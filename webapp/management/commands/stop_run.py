"""``manage.py stop_run RUN``."""

from __future__ import annotations

from webapp.management.commands._runs import RunCommand


class Command(RunCommand):
    """Ask a run to stop."""

    help = "Ask a run to stop."
    action = "stop"
