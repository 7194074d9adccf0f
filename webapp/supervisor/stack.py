"""Context manager of the supervised services of one machine: databases, web server, worker and beat.

    PostgreSQL ─ Redis ─ migrations ─ web server ─ Celery worker ─ Celery beat

Services that die are restarted (``processes``); outages are shown on the terminal and, through ``stack.json``
(``status``), on every page. Engines are started by the worker in their own sessions, so that they survive it;
at exit they are killed (``stopping``).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from engine.errors import PreflightError
from engine.processes import process_start
from webapp.supervisor import interrupts
from webapp.supervisor.embedded import EmbeddedPostgres, EmbeddedRedis, die_with_parent, end_leftovers
from webapp.supervisor.home import (
    PROJECT,
    Ports,
    choose_port,
    exclusive,
    load_ports,
    load_secrets,
    note_address,
    port_is_free,
    save_ports,
)
from webapp.supervisor.probes import Probe, postgres_probe, redis_probe, web_probe
from webapp.supervisor.processes import ServiceSpec, ServiceTable, end_group, spawn_logged
from webapp.supervisor.status import ServiceStatus, clear_status, load_status, save_status
from webapp.supervisor.stopping import stop_everything

MIN_FREE_BYTES = 1_000_000_000
"""Free disk space required to start the services."""

Say = Callable[[str], None]


class Stack:
    """Running services of one data folder.

    Args:
        home: the data folder.
        ports: ports of the servers.
        environment: environment variables of every process.
    """

    def __init__(self, *, home: Path, ports: Ports, environment: dict[str, str]) -> None:
        self.home = home
        self.url = f"http://127.0.0.1:{ports.web}/"
        self.environment = environment
        self.processes = ServiceTable()
        self._saved: list[ServiceStatus] = []

    def command(self, *arguments: str) -> str:
        """Run a ``trainyard`` command against these services and return its output.

        Raises:
            PreflightError: the command failed; the message contains the last lines of its output.
        """
        return self._run_all("webapp", arguments)[0]

    def django_commands(self, *commands: Sequence[str]) -> list[str]:
        """Run Django's own commands concurrently and return the output of each.

        Raises:
            PreflightError: a command failed; the message contains the last lines of its output.
        """
        return self._run_all("django", *commands)

    def _run_all(self, module: str, *commands: Sequence[str]) -> list[str]:
        with interrupts.starting_a_process():
            started = [
                subprocess.Popen(
                    [sys.executable, "-m", module, *command],
                    env=self.environment,
                    cwd=PROJECT,  # the caller's folder would come first among the places of modules
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    preexec_fn=die_with_parent(signal.SIGTERM),
                )
                for command in commands
            ]
        try:
            interrupts.check()
            return [_output(command, process) for command, process in zip(commands, started, strict=True)]
        finally:
            for process in started:
                process.kill()
                process.wait()

    def check(self) -> list[str]:
        """Restart services that died; return the changes as sentences. Call often, from the main thread."""
        interrupts.check()
        notes = self.processes.check()
        statuses = self.processes.statuses()
        if statuses != self._saved:
            save_status(self.home, statuses)
            self._saved = statuses
        return notes


def _output(command: Sequence[str], process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate()
    if process.returncode:
        tail = "\n".join((errors or output).strip().splitlines()[-5:])
        raise PreflightError(f"`{' '.join(command)}` failed:\n{tail}")
    return output


@contextmanager
def running_stack(home: Path, *, web_port: int | None, say: Say) -> Iterator[Stack]:
    """Start the services, yield the stack, and stop them at exit.

    Args:
        home: the data folder; only one supervisor may use it at a time.
        web_port: port of the web server; None selects the port of the last start, or 8000.
        say: function that prints one line of progress.

    Raises:
        AlreadyRunningError: another supervisor uses this folder.
        PreflightError: a port is in use, the disk is full, or a server does not start.
    """
    with exclusive(home):
        check_disk(home)
        _end_leftovers(home)
        ports = _choose_ports(home, web_port)
        environment = dict(os.environ) | {
            "TRAINYARD_HOME": str(home),
            "TRAINYARD_WEB_URL": f"http://127.0.0.1:{ports.web}",
            "PYTHONPATH": str(PROJECT),
            "DJANGO_SETTINGS_MODULE": "webapp.settings",
            "PYTHONUNBUFFERED": "1",
        }
        stack = Stack(home=home, ports=ports, environment=environment)
        with _stopped_at_the_end(stack, say):
            with ExitStack() as unready:
                _start_servers(stack, unready, ports, say)
                unready.pop_all()
            _start_processes(stack, ports, say)
            yield stack


@contextmanager
def _stopped_at_the_end(stack: Stack, say: Say) -> Iterator[None]:
    try:
        yield
    finally:
        with interrupts.ignored():
            say("Stopping …")
            stop_everything(stack.processes, stack.home)
            clear_status(stack.home)


def _end_leftovers(home: Path) -> None:
    """End services left by a killed supervisor; engines continue and connect to the new web server."""
    for status in load_status(home, of_the_dead=True):
        if status.name in ("web", "worker", "beat") and process_start(status.pid) == status.started:
            end_group(status.pid)
    end_leftovers(home / "postgres" / "data", "postgres", first=signal.SIGINT, seconds=10.0)
    end_leftovers(home / "redis", "redis-server", first=signal.SIGTERM, seconds=5.0)


def check_disk(home: Path) -> None:
    """Raise PreflightError if the disk of the data folder is almost full."""
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
            f"`make demo PORT={web + 1}` or `trainyard up --port {web + 1}`"
        )
    return Ports(
        postgres=choose_port(last.postgres if last else 15432),
        redis=choose_port(last.redis if last else 16379),
        web=web,
    )


def _start_servers(stack: Stack, unready: ExitStack, ports: Ports, say: Say) -> None:
    """Start the embedded servers; a server with a URL in the environment is only probed."""
    secrets = load_secrets(stack.home)
    postgres = EmbeddedPostgres(
        stack.home / "postgres", port=ports.postgres, password=secrets.postgres_password
    )
    redis = EmbeddedRedis(stack.home / "redis", port=ports.redis, password=secrets.redis_password)
    if url := os.environ.get("DATABASE_URL"):
        _watch(stack, "postgresql", "PostgreSQL", postgres_probe(url), "DATABASE_URL")
    else:
        say("Starting PostgreSQL …")
        unready.callback(postgres.stop)
        postgres.start()
        stack.environment["DATABASE_URL"] = postgres.url
        _supervise(stack, "postgresql", "PostgreSQL", postgres, signal.SIGINT)
    if url := os.environ.get("REDIS_URL"):
        _watch(stack, "redis", "Redis", redis_probe(url), "REDIS_URL")
    else:
        say("Starting Redis …")
        unready.callback(redis.stop)
        redis.start()
        stack.environment["REDIS_URL"] = redis.url
        _supervise(stack, "redis", "Redis", redis, signal.SIGTERM)
    save_ports(stack.home, ports)


def _watch(stack: Stack, name: str, title: str, probe: Probe, variable: str) -> None:
    """Add an external server to the probes. Raises PreflightError if it does not answer now."""
    if trouble := probe():
        raise PreflightError(f"the server that {variable} names does not answer: {trouble}")
    stack.processes.start(ServiceSpec(name=name, title=title, probe=probe))


def _supervise(
    stack: Stack, name: str, title: str, server: EmbeddedPostgres | EmbeddedRedis, stop_signal: signal.Signals
) -> None:
    spec = ServiceSpec(
        name=name,
        title=title,
        spawn=server.spawn,
        probe=server.probe,
        stop_signal=stop_signal,
        log=server.log,
    )
    stack.processes.start(spec, server.process)


def _start_processes(stack: Stack, ports: Ports, say: Say) -> None:
    say("Bringing the database up to date …")
    stack.django_commands(*((command, "--noinput", "-v", "0") for command in ("migrate", "collectstatic")))
    say("Starting the web server, a worker and the scheduler …")
    web, *remaining = _specs(stack, ports)
    stack.processes.start(web)
    say(stack.command("account", "ensure-admin").strip())
    _wait_for_web(stack)
    note_address(stack.home, stack.url)
    say(f"Trainyard is at {stack.url} - Ctrl-C stops it.")
    for spec in remaining:
        stack.processes.start(spec)


def _specs(stack: Stack, ports: Ports) -> list[ServiceSpec]:
    logs = stack.home / "logs"
    logs.mkdir(exist_ok=True)
    python = sys.executable
    celery = [python, "-m", "celery", "-A", "workers.app"]
    web = [
        *(python, "-m", "uvicorn", "webapp.asgi:application"),
        *("--host", "127.0.0.1", "--port", str(ports.web), "--log-level", "warning"),
        *("--timeout-graceful-shutdown", "2", "--ws-max-size", "16384"),
        # Without a known proxy, local clients could forge their address by these headers.
        *(() if "FORWARDED_ALLOW_IPS" in os.environ else ("--no-proxy-headers",)),
    ]
    # One process may scan and one wait for a model: the third one launches and stops runs.
    worker = [*celery, "worker", "--concurrency", "3", "--loglevel", "WARNING"]
    # The schedule is kept in memory: a schedule file would not survive a kill.
    beat = [*celery, "beat", "--loglevel", "WARNING", "--scheduler", "celery.beat:Scheduler", "--pidfile", ""]
    commands = {
        "web": ("The web server", web, web_probe(stack.url)),
        "worker": ("The worker", worker, None),
        "beat": ("The scheduler", beat, None),
    }
    return [
        ServiceSpec(
            name=name,
            title=title,
            spawn=partial(spawn_logged, command, environment=stack.environment, log=logs / f"{name}.log"),
            probe=probe,
            log=logs / f"{name}.log",
        )
        for name, (title, command, probe) in commands.items()
    ]


def _wait_for_web(stack: Stack, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    log = stack.processes["web"].spec.log
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{stack.url}login/", timeout=2):  # noqa: S310 (a loopback address)
                return
        except urllib.error.HTTPError as error:
            raise PreflightError(f"the web server answers with {error.code}; see {log}") from None
        except OSError:
            stack.check()
            time.sleep(0.1)
    raise PreflightError(f"the web server did not answer within {seconds:.0f} s; see {log}")
