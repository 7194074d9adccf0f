"""Packages of JavaScript projects as of a date, one folder for all commits with the same versions.

npm resolves and downloads them on this machine: from the registry only, with install scripts, git, addresses
and folders disabled. It sees a ``package.json`` with nothing but filtered requirements, never the project's
own files. Sandboxes mount the result at ``MOUNT``, where Node.js looks last.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.datasets.sources import unpacking
from engine.errors import DatasetError, HostileInputError, PreflightError
from engine.files import create_folder_once
from engine.reading import read_bounded
from engine.sandbox.local.contained import check_tree

MOUNT = "/node_modules"
TOOLS = ".trainyard"
"""Folder with the driver below ``MOUNT``."""
RUNNERS = frozenset({"mocha", "jest", "ava", "tape"})
"""Packages that run tests."""
_DRIVERS = ("driver.cjs", "mocha_reporter.cjs", "node_reporter.cjs")
_NETWORK_S = 300.0
_MAX_PACKAGES = 2_000
_MAX_LOCK_BYTES = 4 << 20
_FILE_BYTES = 256 << 20
_UNAVAILABLE = re.compile(
    r"^npm (?:error|ERR!) code (?:ENOTFOUND|ECONN\w+|\w*TIMEDOUT|\w*TIMEOUT|EAI_\w+|E(?:401|407|429|5\d\d)"
    r"|E(?:HOST|NET)\w+|EPIPE|EPROTO|FETCH_ERROR|ERR_SSL_\w+|\w*CERT\w*|UNABLE_TO_\w+"
    r"|ENOSPC|EDQUOT|EROFS|EACCES|EPERM|EMFILE|ENFILE|ENOMEM|EIO)$",
    re.MULTILINE,
)
"""Errors of npm whose cause is the registry or this machine, not the requirements."""
_OPTIONS = (
    "--ignore-scripts", "--no-audit", "--no-fund", "--no-bin-links", "--legacy-peer-deps",
    "--no-update-notifier", "--omit-lockfile-registry-resolved", "--git=/bin/false", "--package-lock",
)  # fmt: skip
_ONLY_REGISTRY = {f"npm_config_allow_{source}": "none" for source in ("git", "remote", "file", "directory")}


@dataclass(frozen=True, slots=True)
class Resolution:
    """Exact versions of packages."""

    package: str
    """``package.json`` with the requirements."""
    lock: str
    """npm's lock file."""
    pins: tuple[str, ...]
    """``NAME@VERSION``."""

    @property
    def key(self) -> str:
        """Return a name that differs between different versions and drivers."""
        content = repr(self.pins).encode() + b"".join(drivers().values())
        return f"node-{hashlib.sha256(content).hexdigest()[:16]}"


@functools.cache
def drivers() -> Mapping[str, bytes]:
    """Return the programs that run tests: name → content."""
    return {name: (Path(__file__).parent / name).read_bytes() for name in _DRIVERS}


@functools.lru_cache(maxsize=1024)
def resolve(
    requirements: tuple[str, ...],
    optional: tuple[str, ...] = (),
    *,
    before: datetime.datetime | None,
    home: Path,
) -> Resolution:
    """Return exact versions, as they were available before a time; None: of today.

    Args:
        requirements: ``NAME@VERSIONS`` of packages of the registry; of one name the first counts.
        optional: requirements that are left out where they do not fit this machine.
        before: the time.
        home: the data folder, which has npm's cache.

    Raises:
        DatasetError: no versions fit, or a package is not of the registry.
        PreflightError: the registry cannot be reached.
    """
    if not requirements and not optional:
        return Resolution(package="", lock="", pins=())
    package_file = _package_file(requirements, optional)
    with tempfile.TemporaryDirectory(prefix=".npm-", dir=home) as name:
        folder = Path(name)
        (folder / "package.json").write_text(package_file)
        options = [] if before is None else [f"--before={before:%Y-%m-%dT%H:%M:%SZ}"]
        _npm(["install", "--package-lock-only", *options], folder, home)
        path = folder / "package-lock.json"
        if path.stat().st_size > _MAX_LOCK_BYTES:
            raise DatasetError(f"its packages need a lock file of more than {_MAX_LOCK_BYTES >> 20} MiB")
        lock = path.read_text()
    packages: dict[str, Any] = json.loads(lock)["packages"]
    packages.pop("", None)
    if len(packages) > _MAX_PACKAGES:
        raise DatasetError(f"it needs {len(packages)} packages, more than {_MAX_PACKAGES}")
    for place, package in packages.items():
        if "resolved" in package or "link" in package or not place.startswith("node_modules/"):
            raise DatasetError(f"the package {place[:200]!r} does not come from the registry")
    pins = (f"{place.removeprefix('node_modules/')}@{entry['version']}" for place, entry in packages.items())
    return Resolution(package=package_file, lock=lock, pins=tuple(sorted(pins)))


def ensure_packages(home: Path, resolution: Resolution) -> Path:
    """Return the folder with the packages of a resolution and the driver; downloaded on first use.

    Raises:
        DatasetError: a package has links or exceeds the limits.
        PreflightError: npm could not download a package.
    """

    def download(draft: Path) -> Path:
        if resolution.pins:
            (draft / "package.json").write_text(resolution.package)
            (draft / "package-lock.json").write_text(resolution.lock)
            _npm(["ci"], draft, home)
        folder = draft / "node_modules"
        folder.mkdir(exist_ok=True)
        try:
            check_tree(folder, max_entries=2 * unpacking.MAX_FILES, max_bytes=unpacking.MAX_BYTES)
        except HostileInputError as error:
            raise DatasetError(f"its packages are not usable: {error}") from None
        (folder / ".package-lock.json").unlink(missing_ok=True)
        shutil.rmtree(folder / TOOLS, ignore_errors=True)
        (folder / TOOLS).mkdir()
        for name, content in drivers().items():
            (folder / TOOLS / name).write_bytes(content)
        _write_commands(folder)
        return folder

    return create_folder_once(home / "toolchain" / resolution.key, download)


def _write_commands(folder: Path) -> None:
    """Write commands of the installed runners, which ``npm test`` and ``npx`` find."""
    (folder / ".bin").mkdir(exist_ok=True)
    for name in RUNNERS:
        try:
            package = json.loads(read_bounded(folder / name / "package.json", 1 << 20))
            programs = package["bin"]
            program = programs if isinstance(programs, str) else programs[name]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
        if isinstance(program, str) and re.fullmatch(r"[\w./-]{1,200}", program, re.ASCII):
            command = folder / ".bin" / name
            command.write_text(f'#!/bin/sh\nexec node {MOUNT}/{name}/{program} "$@"\n')
            command.chmod(0o755)


def _package_file(requirements: Sequence[str], optional: Sequence[str]) -> str:
    """Return a ``package.json`` with nothing but requirements."""
    tables: dict[str, dict[str, str]] = {"dependencies": {}, "optionalDependencies": {}}
    known: set[str] = set()
    for table, lines in zip(tables.values(), (requirements, optional), strict=True):
        for line in lines:
            name, _, versions = line.rpartition("@")
            if name not in known:
                known.add(name)
                table[name] = versions
    return json.dumps({"name": "tests", "version": "1.0.0", "private": True, **tables})


def _npm(command: Sequence[str], folder: Path, home: Path) -> None:
    """Run npm in a folder that has only our files. Raises DatasetError or PreflightError."""
    limited = ["/bin/sh", "-c", f'ulimit -f {_FILE_BYTES // 512}; exec "$@"', "sh", "npm"]
    cache = f"--cache={home / 'npm-cache'}"
    try:
        done = subprocess.run(
            [*limited, *command, *_OPTIONS, cache],
            cwd=folder,
            env={**os.environ, **_ONLY_REGISTRY},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_NETWORK_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PreflightError(f"npm took more than {_NETWORK_S:g} s: is the registry reachable?") from None
    if done.returncode == 127:
        raise PreflightError("npm is not installed: install npm")
    if done.returncode != 0:
        reason = " ".join(done.stderr.split())[-400:]
        if _UNAVAILABLE.search(done.stderr):
            raise PreflightError(f"npm ended with {done.returncode}: {reason}")
        raise DatasetError(f"no versions fit: {reason}")
