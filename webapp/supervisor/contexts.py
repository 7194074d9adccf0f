"""Banner about services that are down."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.http import HttpRequest

from webapp.supervisor.selectors import service_statuses
from webapp.supervisor.status import ServiceState

TITLES = {
    "postgresql": "PostgreSQL",
    "redis": "Redis",
    "web": "The web server",
    "worker": "The worker",
    "beat": "The scheduler",
}
_CONSEQUENCES = {
    "postgresql": "Pages cannot be shown. Runs go on and keep their events until it is back.",
    "redis": "Live updates pause and new runs start late. Pages still work: reload to see what is new.",
    "worker": "Runs are not started, stopped or resumed until it is back. Those that run go on.",
    "beat": "Runs that died are not resumed and sandboxes are not cleaned up until it is back.",
}


@dataclass(frozen=True, slots=True)
class Outage:
    """Outage of one service."""

    name: str
    title: str
    since: datetime
    consequence: str

    @property
    def key(self) -> str:
        """Return an identifier of the outage; the same service may go down again."""
        return f"{self.name}-{self.since.timestamp():.0f}"


def current_outages() -> tuple[Outage, ...]:
    """Return the services that are down, without reasons: the banner is public."""
    return tuple(
        Outage(
            status.name,
            TITLES.get(status.name, status.name),
            datetime.fromtimestamp(status.since, tz=UTC),
            _CONSEQUENCES.get(status.name, ""),
        )
        for status in service_statuses()
        if status.state is ServiceState.DOWN
    )


def outages(request: HttpRequest) -> dict[str, Any]:  # noqa: ARG001
    """Add the template variable ``outages`` to every page (context processor)."""
    return {"outages": current_outages()}
