"""Data folder with Trainyard's databases, datasets, images and runs.

``TRAINYARD_HOME`` is its path; the default is ``.trainyard`` in the checkout, or in the user's home folder
where Trainyard is an installed package. Only its owner may enter it (mode 0700). Its secrets are generated
once and stored in ``secrets.json`` (mode 0600);
``services.json`` contains the ports on which the embedded servers were last started.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from engine.errors import TrainyardError
from engine.files import atomic_write
from engine.processes.ports import free_port

PROJECT = Path(__file__).resolve().parent.parent.parent
"""Folder of the packages: a checkout, or where an installed wheel lies."""
INSTALLED = not (PROJECT / "pyproject.toml").is_file()
"""Whether this is an installed wheel, which has pages and static files below ``webapp/``."""


class AlreadyRunningError(TrainyardError):
    """Another supervisor serves this data folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """Secrets of a data folder, generated once."""

    django_key: str
    postgres_password: str
    redis_password: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Loopback ports of the embedded servers and of the web server."""

    postgres: int
    redis: int
    web: int


def data_folder() -> Path:
    """Return the data folder, created if missing and closed to other users of the machine."""
    default = (Path.home() if INSTALLED else PROJECT) / ".trainyard"
    home = Path(os.environ.get("TRAINYARD_HOME", "") or default).resolve()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = home.stat()
    # Folders of other owners and folders like /tmp (sticky) are shared on purpose: keep their mode.
    if status.st_mode & 0o077 and not status.st_mode & stat.S_ISVTX and status.st_uid == os.geteuid():
        home.chmod(0o700)
    return home


def load_secrets(home: Path) -> Secrets:
    """Return the folder's secrets, generated on first use; concurrent first calls return the same values."""
    path = home / "secrets.json"
    if not path.exists():
        fresh = {
            "django_key": secrets.token_urlsafe(48),
            "postgres_password": secrets.token_urlsafe(24),
            "redis_password": secrets.token_urlsafe(24),
        }
        temporary = home / f".secrets.{os.getpid()}.{secrets.token_hex(4)}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(fresh, file)
        try:
            os.link(temporary, path)  # atomic, and unlike a rename it never replaces another call's secrets
        except FileExistsError:
            pass
        finally:
            temporary.unlink()
    return Secrets(**json.loads(path.read_text()))


def load_ports(home: Path) -> Ports | None:
    """Return the ports of the last start; None before the first start."""
    try:
        return Ports(**json.loads((home / "services.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def save_ports(home: Path, ports: Ports) -> None:
    """Store the ports for commands in other terminals and for the next start."""
    text = json.dumps({"postgres": ports.postgres, "redis": ports.redis, "web": ports.web})
    atomic_write(home / "services.json", text)


def port_is_free(port: int) -> bool:
    """Return whether nothing listens on a loopback port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def choose_port(preferred: int) -> int:
    """Return the preferred loopback port if it is free, else one chosen by the kernel."""
    return preferred if port_is_free(preferred) else free_port()


@contextmanager
def exclusive(home: Path) -> Iterator[None]:
    """Hold the data folder's lock; the kernel frees it when the process dies.

    Raises:
        AlreadyRunningError: another process holds the lock; the message has its pid and address.
    """
    home.mkdir(parents=True, exist_ok=True)
    path = home / "supervisor.lock"
    try:
        held = FileLock(path, thread_local=False).acquire(blocking=False)
    except Timeout:
        holder = path.read_text().strip() or "another process"
        raise AlreadyRunningError(
            f"Trainyard already runs from {home} ({holder}). Stop it first (Ctrl-C in its "
            "terminal), or use another data folder: TRAINYARD_HOME=FOLDER."
        ) from None
    with held:
        ports = load_ports(home)
        address = f", http://127.0.0.1:{ports.web}/" if ports else ""
        path.write_text(f"process {os.getpid()}{address}")
        yield


def note_address(home: Path, url: str) -> None:
    """Write the address into the lock file, so that a second start can report it."""
    (home / "supervisor.lock").write_text(f"process {os.getpid()}, {url}")
