"""A real server and a real browser: uvicorn on the test database, Chromium without downloads."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from django.conf import settings
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.db import connection, connections
from django.test import Client
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.builders.web.web_builders import PASSWORD, make_user
from tests.ports import reserved_port
from webapp.core.permissions import Role

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
ARGUMENTS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
ROOT = Path(__file__).resolve().parents[2]
Result = TypeVar("Result")


def aside(function: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
    """Call a service or builder in a thread without Playwright's loop, where it may notify browsers."""

    def call() -> Result:
        try:
            return function(*args, **kwargs)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(call).result()


@pytest.fixture(scope="package")
def server(
    django_db_setup: None, redis_server: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Address of a uvicorn that serves the test database."""
    port = reserved_port()
    database = settings.DATABASES["default"]
    address = f"{database['HOST']}:{database['PORT']}/{database['NAME']}"
    environment = os.environ | {
        "DATABASE_URL": f"postgresql://{database['USER']}:{database['PASSWORD']}@{address}",
        "REDIS_URL": redis_server,
        "TRAINYARD_DEBUG": "1",
    }
    log = (tmp_path_factory.mktemp("server") / "uvicorn.log").open("w")
    command = [
        sys.executable,
        "-m",
        "uvicorn",
        "webapp.asgi:application",
        "--port",
        str(port),
        "--log-level",
        "warning",
    ]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(url, process, Path(log.name))
        yield url
    finally:
        process.terminate()
        process.wait(timeout=120)
        log.close()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(600):
        assert process.poll() is None, log.read_text()
        try:
            if httpx.get(f"{url}/login/", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.1)
    raise AssertionError(log.read_text())


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Chromium, closed after this folder because Playwright's loop blocks asynchronous tests."""
    if not Path(CHROMIUM).exists():
        pytest.skip(f"no browser at {CHROMIUM}: install chromium or set CHROMIUM")
    # pytest-django empties the tables in the test's thread, in which the loop runs.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield started
        started.close()
    del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


@pytest.fixture
def context(browser: Browser, server: str, transactional_db: None) -> Iterator[BrowserContext]:
    """A fresh browser profile."""
    opened = browser.new_context(
        base_url=server, viewport={"width": 1440, "height": 900}, reduced_motion="reduce"
    )
    yield opened
    opened.close()
    aside(_wait_for_idle_sessions)


_BUSY = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle'
"""


def _wait_for_idle_sessions() -> None:
    """Wait for the last responses to closed tabs, which could deadlock with emptying the tables."""
    quiet = 0
    for _ in range(600):
        with connection.cursor() as cursor:
            cursor.execute(_BUSY)
            quiet = quiet + 1 if cursor.fetchone() == (0,) else 0
        if quiet == 3:
            return
        time.sleep(0.05)
    raise AssertionError("the server is still busy 30 s after its last tab was closed")


def _signed_in() -> str:
    """Return the session key of an operator, whose password is hashed in few rounds."""
    user = make_user("ada", Role.OPERATOR)
    user.password = PBKDF2PasswordHasher().encode(PASSWORD, "salt", iterations=1000)
    user.save()
    client = Client()
    client.force_login(user)
    return client.cookies[settings.SESSION_COOKIE_NAME].value


@pytest.fixture
def page(context: BrowserContext, server: str) -> Iterator[Page]:
    """A tab of a signed-in operator; errors in its console fail the test."""
    session = aside(_signed_in)
    context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": session, "url": server}])
    opened = context.new_page()
    opened.set_default_timeout(60_000)
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    yield opened
    assert errors == []


@pytest.fixture
def screenshots(tmp_path: Path) -> Path:
    """Folder of screenshots: TRAINYARD_SCREENSHOTS, or a temporary folder."""
    folder = Path(os.environ.get("TRAINYARD_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder
