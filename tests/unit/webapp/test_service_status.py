"""Health endpoint, error pages and banners while a service is down."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection
from django.test import Client, RequestFactory

from tests.builders.web.web_builders import make_user
from tests.ports import reserved_port
from webapp.core.permissions import Role
from webapp.supervisor.middleware import OutageMiddleware
from webapp.supervisor.selectors import is_connection_lost, monitor, service_statuses
from webapp.supervisor.status import ServiceState, ServiceStatus, save_status

pytestmark = pytest.mark.django_db
SECRET = "hunter2"


@pytest.fixture
def home(settings: Any, tmp_path: Path) -> Path:
    """Private data folder of the test."""
    settings.TRAINYARD_HOME = tmp_path
    return tmp_path


@pytest.fixture
def unreachable(settings: Any, home: Path) -> Iterator[None]:
    """Monitor a database and a Redis at ports without a listener."""
    settings.DATABASE_URL = f"postgresql://somebody:{SECRET}@127.0.0.1:{reserved_port()}/nothing"
    settings.REDIS_URL = f"redis://:{SECRET}@127.0.0.1:{reserved_port()}/0"
    monitor.start()
    deadline = time.monotonic() + 60
    while not all(answer.confirmed for answer in monitor.answers().values()) or len(monitor.answers()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    yield
    monitor.stop()


def write_status(home: Path, **states: ServiceState) -> None:
    """Write the status file of a supervisor."""
    save_status(
        home,
        [
            ServiceStatus(name=name, state=state, since=1_700_000_000.0, restarts=3, reason="it was ended")
            for name, state in states.items()
        ],
    )


def signed_in(role: Role | None = Role.VIEWER) -> Client:
    client = Client()
    client.force_login(make_user(f"user-{role}", role))
    return client


UP, DOWN = ServiceState.UP, ServiceState.DOWN


def test_healthz_shows_details_only_to_users_with_a_role(home: Path) -> None:
    write_status(home, postgresql=UP, redis=DOWN)
    answer = Client().get("/healthz")
    assert answer.status_code == 200
    since = "2023-11-14T22:13:20+00:00"
    assert answer.json() == {
        "status": "degraded",
        "services": [
            {"name": "postgresql", "state": "up", "since": since},
            {"name": "redis", "state": "down", "since": since},
        ],
    }
    assert signed_in(None).get("/healthz").json() == answer.json(), "an account without a role is a stranger"
    rows = signed_in().get("/healthz").json()["services"]
    assert rows[1] == {
        "name": "redis", "state": "down", "since": since, "restarts": 3, "last_reason": "it was ended",
    }  # fmt: skip
    assert "no-store" in answer["Cache-Control"]
    assert Client().post("/healthz").status_code == 405


def test_unreachable_database_returns_503_without_queries(
    unreachable: None, django_assert_num_queries: Any
) -> None:
    client = signed_in()
    with django_assert_num_queries(0):
        health = client.get("/healthz")
        page = client.get("/runs/")
        api = client.get("/api/v1/runs")
        banner = client.get("/healthz/banner")
    assert health.status_code == 503
    assert {row["name"]: row["state"] for row in health.json()["services"]} == {
        "postgresql": "down", "redis": "down",
    }  # fmt: skip
    assert page.status_code == api.status_code == 503
    text = page.content.decode()
    assert "The database does not answer" in text
    assert "PostgreSQL has been down since <time" in " ".join(text.split())
    assert "unavailable.js" in text
    assert 'http-equiv="refresh"' in text
    assert "Content-Security-Policy" in page.headers
    assert page["Retry-After"] == api["Retry-After"] == "2"
    assert "does not answer" in api.json()["detail"]
    assert banner.status_code == 200
    for answer in (health, page, api, banner):
        assert SECRET not in answer.content.decode()


def test_outage_reasons_contain_no_passwords(unreachable: None) -> None:
    reasons = {status.name: status.reason for status in service_statuses()}
    assert reasons.keys() == {"postgresql", "redis"}
    for name, reason in reasons.items():
        assert "127.0.0.1" in reason, name
        assert SECRET not in reason, name


def test_pages_work_without_redis_and_announce_paused_updates(home: Path) -> None:
    write_status(home, postgresql=UP, redis=DOWN)
    for client, address in ((signed_in(), "/runs/"), (Client(), "/login/")):
        page = client.get(address)
        assert page.status_code == 200
        text = " ".join(page.content.decode().split())
        assert 'role="status" data-url="/healthz/banner"' in text
        assert "<strong>Redis</strong> has been down since" in text
        assert "22:13:20 UTC" in text
        assert "Live updates pause" in text
    write_status(home, postgresql=UP, redis=UP)
    assert "has been down" not in signed_in(Role.OPERATOR).get("/runs/").content.decode()


def test_probes_of_the_web_server_override_a_stale_supervisor_status(unreachable: None, home: Path) -> None:
    write_status(home, postgresql=UP, redis=UP, worker=UP)
    by_name = {status.name: status for status in service_statuses()}
    assert [by_name[name].state for name in ("postgresql", "redis", "worker")] == [DOWN, DOWN, UP]
    assert by_name["postgresql"].restarts == 3
    assert by_name["postgresql"].since > 1_700_000_000.0


def lost_connection_error() -> OperationalError:
    """Return Django's error for a query on a lost connection."""
    error = OperationalError("server closed the connection unexpectedly")
    error.__cause__ = psycopg.OperationalError("server closed the connection unexpectedly")
    return error


def test_view_that_loses_the_database_returns_503(home: Path) -> None:
    client = signed_in()

    def lose_connection(*_args: Any) -> None:
        raise lost_connection_error()

    with connection.execute_wrapper(lose_connection):
        response = client.get("/runs/")
        assert client.get("/api/v1/runs").status_code == 503
    assert response.status_code == 503
    assert "The database does not answer" in response.content.decode()


def test_other_database_errors_are_not_treated_as_outages(home: Path) -> None:
    with pytest.raises(Exception) as deadlock, connection.cursor() as cursor:  # noqa: PT012
        cursor.execute("do $$ begin raise exception 'x' using errcode = '40P01'; end $$")
    assert not is_connection_lost(deadlock.value)
    request = RequestFactory().get("/runs/")
    middleware = OutageMiddleware(lambda _request: pytest.fail("not called"))
    assert middleware.process_exception(request, deadlock.value) is None
    assert middleware.process_exception(request, ValueError("x")) is None
