"""The whole yard on one machine: databases, web server, worker and beat, as one context manager.

    PostgreSQL ─ Redis ─ migrations ─ web server ─ Celery worker ─ Celery beat

Engines are started by the worker in sessions of their own, so that they survive it; on the way out
they are ended here, without a last word: the next start resumes their runs from the last checkpoint.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from engine.errors import PreflightError
from webapp.supervisor.embedded import EmbeddedPostgres, EmbeddedRedis
from webapp.supervisor.home import (
    PROJECT,
    Ports,
    exclusive,
    free_port,
    load_ports,
    load_secrets,
    note_address,
    port_is_free,
    save_ports,
)
from webapp.supervisor.processes import ProcessSpec, ProcessTable

MIN_FREE_BYTES = 1_000_000_000
"""Below this much free disk the yard does not start."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Yard:
    """A running yard."""

    url: str
    home: Path
    environment: dict[str, str]
    processes: ProcessTable

    def manage(self, *arguments: str) -> str:
        """Run a management command against this yard and return what it printed.

        Raises:
            PreflightError: the command failed; carries its last lines.
        """
        done = subprocess.run(
            [sys.executable, str(PROJECT / "manage.py"), *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            tail = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
            raise PreflightError(f"`manage.py {' '.join(arguments)}` failed:\n{tail}")
        return done.stdout


@contextmanager
def running_yard(home: Path, *, web_port: int | None, say: Say) -> Iterator[Yard]:
    """Start everything, yield the yard, stop everything.

    Args:
        home: the data folder; only one yard serves it at a time.
        web_port: port of the web server; None is the last one, or 8000.
        say: prints one line of progress.

    Raises:
        AlreadyRunningError: another yard serves this folder.
        PreflightError: a port is in use, the disk is full, or a server does not start.
    """
    with ExitStack() as stack:
        stack.enter_context(exclusive(home))
        _check_disk(home)
        ports = _choose_ports(home, web_port)
        environment = dict(os.environ) | {
            "TRAINYARD_HOME": str(home),
            "TRAINYARD_WEB_URL": f"http://127.0.0.1:{ports.web}",
            "PYTHONPATH": str(PROJECT),
            "PYTHONUNBUFFERED": "1",
        }
        _start_servers(stack, home, ports, environment, say)
        save_ports(home, ports)
        processes = ProcessTable()
        url = f"http://127.0.0.1:{ports.web}/"
        yard = Yard(url=url, home=home, environment=environment, processes=processes)
        say("Bringing the database up to date …")
        with ThreadPoolExecutor() as threads:
            commands = ("migrate", "collectstatic")
            list(threads.map(lambda command: yard.manage(command, "--noinput", "-v", "0"), commands))
        stack.callback(_end_engines, home)
        stack.callback(processes.stop)
        say("Starting the web server, a worker and the scheduler …")
        web, *others = _specs(home, ports, environment)
        processes.start(web)
        say(yard.manage("ensure_admin").strip())
        _wait_for_web(url, processes, home)
        note_address(home, url)
        say(f"Trainyard is at {url} - Ctrl-C stops it.")
        for spec in others:
            processes.start(spec)
        yield yard
        say("Stopping …")


def _check_disk(home: Path) -> None:
    status = os.statvfs(home)
    free = status.f_bavail * status.f_frsize
    if free < MIN_FREE_BYTES:
        raise PreflightError(
            f"only {free // 1_000_000} MB are free on the disk of {home}, Trainyard wants at least "
            f"{MIN_FREE_BYTES // 1_000_000} MB; free some, or set TRAINYARD_HOME to another disk"
        )


def _choose_ports(home: Path, web_port: int | None) -> Ports:
    last = load_ports(home)
    web = web_port or (last.web if last else 8000)
    if not port_is_free(web):
        raise PreflightError(
            f"port {web} on 127.0.0.1 is in use by another program; choose another one: "
            f"`make demo PORT={web + 1}` or `manage.py up --port {web + 1}`"
        )
    return Ports(
        postgres=free_port(last.postgres if last else 15432),
        redis=free_port(last.redis if last else 16379),
        web=web,
    )


def _start_servers(stack: ExitStack, home: Path, ports: Ports, environment: dict[str, str], say: Say) -> None:
    """Start the embedded servers that no address in the environment replaces."""
    secrets = load_secrets(home)
    if "DATABASE_URL" not in os.environ:
        say("Starting PostgreSQL …")
        postgres = EmbeddedPostgres(
            home / "postgres", port=ports.postgres, password=secrets.postgres_password
        )
        stack.callback(postgres.stop)
        postgres.start()
        environment["DATABASE_URL"] = postgres.url
    if "REDIS_URL" not in os.environ:
        say("Starting Redis …")
        redis = EmbeddedRedis(home / "redis", port=ports.redis, password=secrets.redis_password)
        stack.callback(redis.stop)
        redis.start()
        environment["REDIS_URL"] = redis.url


def _specs(home: Path, ports: Ports, environment: dict[str, str]) -> list[ProcessSpec]:
    logs = home / "logs"
    logs.mkdir(exist_ok=True)
    python = sys.executable
    celery = [python, "-m", "celery", "-A", "workers.app"]
    commands = {
        "web": [
            *(python, "-m", "uvicorn", "webapp.asgi:application"),
            *("--host", "127.0.0.1", "--port", str(ports.web), "--log-level", "warning"),
            *("--timeout-graceful-shutdown", "3", "--ws-max-size", "1048576"),
        ],
        "worker": [*celery, "worker", "--concurrency", "2", "--loglevel", "WARNING"],
        "beat": [
            *(*celery, "beat", "--loglevel", "WARNING"),
            *("--schedule", str(home / "celerybeat-schedule"), "--pidfile", ""),
        ],
    }
    return [
        ProcessSpec(name=name, command=command, environment=environment, log=logs / f"{name}.log")
        for name, command in commands.items()
    ]


def _wait_for_web(url: str, processes: ProcessTable, home: Path, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}login/", timeout=2):  # noqa: S310 (a loopback address)
                return
        except urllib.error.HTTPError as error:
            raise PreflightError(
                f"the web server answers with {error.code}; see {home}/logs/web.log"
            ) from None
        except OSError:
            processes.check()
            time.sleep(0.1)
    raise PreflightError(f"the web server did not answer within {seconds:.0f} s; see {home}/logs/web.log")


def _end_engines(home: Path) -> None:
    """End engines of this data folder; their sandboxes die with them and what is left is reaped."""
    for run in sorted((home / "runs").glob("*/engine.pid")):
        _end_engine(run)
    subprocess.run(
        [sys.executable, "-m", "engine.sandbox", "reap", "--home", str(home)],
        cwd=PROJECT,
        capture_output=True,
        check=False,
        timeout=60,
    )


def _end_engine(pid_file: Path) -> None:
    """Kill the process group an engine leads, if the recorded process is still that engine."""
    try:
        record = json.loads(pid_file.read_text())
        pid, started = int(record["pid"]), str(record["started"])
    except (OSError, ValueError, KeyError):
        return
    if process_start(pid) == started:
        os.killpg(pid, signal.SIGKILL)


def process_start(pid: int) -> str | None:
    """Start time of a process in clock ticks since boot, as the kernel prints it; None when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]
