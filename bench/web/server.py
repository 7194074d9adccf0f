"""Databases and web server of a benchmark, runs to post events to, and CPU times."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil

from engine.processes.ports import free_port
from webapp.supervisor.embedded import EmbeddedPostgres, EmbeddedRedis, die_with_parent, stop_process

PROJECT = Path(__file__).resolve().parent.parent.parent


@contextlib.contextmanager
def web_server(
    home: Path, application: str = "webapp.asgi:application"
) -> Iterator[tuple[str, dict[str, str], dict[str, int]]]:
    """Start the databases and one uvicorn; yield its address, its environment and the process ids.

    The databases of an earlier benchmark in ``home`` are kept. PostgreSQL is durable, as shipped.
    """
    postgres = EmbeddedPostgres(home / "postgres", port=free_port(), password="bench")
    redis = EmbeddedRedis(home / "redis", port=free_port(), password="bench")
    port = free_port()
    (home / "static").mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        stack.callback(postgres.stop)
        postgres.start()
        stack.callback(redis.stop)
        redis.start()
        environment = dict(os.environ) | {
            "TRAINYARD_HOME": str(home),
            "DATABASE_URL": postgres.url,
            "REDIS_URL": redis.url,
            "PYTHONPATH": str(PROJECT),
        }
        for arguments in (["migrate"], ["collectstatic", "--no-input"]):
            manage = [sys.executable, str(PROJECT / "manage.py"), *arguments, "-v", "0"]
            subprocess.run(manage, env=environment, check=True)
        command = [sys.executable, "-m", "uvicorn", application, "--port", str(port)]
        with (home / "web.log").open("wb") as log:
            server = subprocess.Popen(
                [*command, "--log-level", "warning"],
                env=environment, cwd=PROJECT, stdout=log, stderr=log, start_new_session=True,
                preexec_fn=die_with_parent(signal.SIGTERM),
            )  # fmt: skip
        stack.callback(lambda: stop_process(server, first=signal.SIGTERM, seconds=10))
        url = f"http://127.0.0.1:{port}"
        _wait(url)
        assert postgres.process is not None
        assert redis.process is not None
        pids = {"web": server.pid, "postgres": postgres.process.pid, "redis": redis.process.pid}
        yield url, environment, pids


def _wait(url: str) -> None:
    for _ in range(600):
        with contextlib.suppress(httpx.TransportError):
            httpx.get(f"{url}/api/v1/openapi.json")
            return
        time.sleep(0.1)
    raise SystemExit("the web server did not start")


@contextlib.contextmanager
def worker(environment: dict[str, str]) -> Iterator[None]:
    """Run a Celery worker of three processes, without beat, that is ready for tasks."""
    from workers.app import app

    celery = [sys.executable, "-m", "celery", "-A", "workers.app", "worker", "--concurrency", "3"]
    process = subprocess.Popen(
        [*celery, "--loglevel", "ERROR"], env=environment, cwd=PROJECT, start_new_session=True
    )
    try:
        while not app.control.ping(timeout=0.5):
            assert process.poll() is None, "the worker did not start"
        yield
    finally:
        process.terminate()
        process.wait()


def use_database(environment: dict[str, str]) -> None:
    """Set Django up in this process, with the databases of a server."""
    settings = {"DJANGO_SETTINGS_MODULE": "webapp.settings", "DJANGO_ALLOW_ASYNC_UNSAFE": "1"}
    os.environ |= environment | settings
    import django

    django.setup()


def claim_runs(count: int, **overrides: object) -> list[tuple[int, str]]:
    """Create runs of the quickstart recipe and claim their launch; return them with their tokens."""
    from webapp.models import Dataset
    from webapp.runs.services import attempts, runs

    Dataset.objects.get_or_create(name="quickstart")
    claimed = []
    for _ in range(count):
        run = runs.create(recipe="quickstart", overrides=overrides)
        runs.start(run=run)
        claim = attempts.claim_launch(run_id=run.pk)
        assert claim is not None
        claimed.append((run.pk, claim.token))
    return claimed


def session_of(name: str, role: str = "operator") -> str:
    """Return a session cookie of a user, who is created if missing."""
    from django.conf import settings
    from django.contrib.auth.models import User
    from django.test import Client

    from webapp.accounts.services import accounts
    from webapp.core.permissions import Role

    client = Client()
    known = User.objects.filter(username=name).first()
    client.force_login(
        known or accounts.create_user(username=name, password=os.urandom(16).hex(), role=Role(role))
    )
    return f"{settings.SESSION_COOKIE_NAME}={client.cookies[settings.SESSION_COOKIE_NAME].value}"


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and its current children."""
    root = psutil.Process(pid)
    times = [process.cpu_times() for process in [root, *root.children(recursive=True)]]
    return float(sum(time.user + time.system for time in times))
