"""State of the services, as probed by this process and as reported by the supervisor."""

from __future__ import annotations

from dataclasses import replace

import psycopg
from django.conf import settings
from django.db import InterfaceError, OperationalError

from webapp.supervisor.probes import Answer, Watch, postgres_probe, redis_probe
from webapp.supervisor.status import ServiceState, ServiceStatus, load_status

DATABASE = "postgresql"


class Monitor:
    """Periodic check of the servers that the web server needs, for the life of the process."""

    def __init__(self) -> None:
        self._watches: dict[str, Watch] = {}

    def start(self) -> None:
        """Start the checks; called once, when the web server starts."""
        probes = {DATABASE: postgres_probe(settings.DATABASE_URL), "redis": redis_probe(settings.REDIS_URL)}
        self._watches = {name: Watch(probe) for name, probe in probes.items()}

    def stop(self) -> None:
        """Stop the checks."""
        for watch in self._watches.values():
            watch.close()
        self._watches = {}

    def ask_now(self) -> None:
        """Check again immediately, after a failed request."""
        for watch in self._watches.values():
            watch.ask_now()

    def answers(self) -> dict[str, Answer]:
        """Return the result of the latest check of each server."""
        return {name: watch.answer for name, watch in self._watches.items() if watch.answer is not None}


monitor = Monitor()


def service_statuses() -> list[ServiceStatus]:
    """Return the state of every known service; reads one small file and runs no query."""
    known = {status.name: status for status in load_status(settings.TRAINYARD_HOME)}
    for name, answer in monitor.answers().items():
        reported = known.get(name)
        if reported is None:
            state = ServiceState.DOWN if answer.confirmed else ServiceState.UP
            known[name] = ServiceStatus(name=name, state=state, since=answer.since, reason=answer.trouble)
        elif answer.confirmed and reported.state is not ServiceState.DOWN:
            known[name] = replace(
                reported,
                state=ServiceState.DOWN,
                since=answer.since,
                reason=f"it does not answer: {answer.trouble}",
            )
    return list(known.values())


def is_connection_lost(error: BaseException) -> bool:
    """Return whether a database error means that the server cannot be reached or ends its sessions."""
    if isinstance(error, InterfaceError):
        return True
    if not isinstance(error, OperationalError):
        return False
    # SQLSTATE 08…: connection exception, 57P…: shutdown of the server, 53300: too many connections.
    state = error.__cause__.sqlstate if isinstance(error.__cause__, psycopg.Error) else None
    return state is None or state[:2] == "08" or state[:3] == "57P" or state == "53300"
