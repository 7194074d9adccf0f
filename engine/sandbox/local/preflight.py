"""Preflight of local sandboxes: starts one and reports what is missing.

To add a check, append to the list in ``check``; a message names the remedy, too.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path

from engine.errors import SandboxError
from engine.sandbox.base import PreflightFinding, SandboxSpec
from engine.sandbox.local.backend import LocalBackend
from engine.sandbox.local.images import build_image

_SYSCTLS = (
    ("/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces=10000"),
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "kernel.apparmor_restrict_unprivileged_userns=0",
    ),
)


async def check(backend: LocalBackend) -> list[PreflightFinding]:
    """Start a sandbox and return this machine's shortcomings; empty when nothing is missing."""
    if shutil.which("bwrap") is None:
        return [PreflightFinding.error(not_installed("bwrap", "bubblewrap"))]
    problem = await _probe(backend)
    if problem is not None:
        return [
            PreflightFinding.error(message)
            for message in (f"A sandbox does not start here: {problem}", *_remedies())
        ]
    weaker = []
    if backend.groups is None:
        weaker.append(
            "no writable control groups: memory is limited per process, processes by rlimit, CPU "
            "not at all; run as root, or with delegated cgroup v2 controllers (systemd Delegate=yes)."
        )
    if backend.copies:
        weaker.append(
            "overlay mounts are not possible here, so every sandbox copies its image: "
            "use Linux 5.11 or newer, or run as root."
        )
    return [PreflightFinding.warning(message) for message in weaker]


def not_installed(program: str, package: str) -> str:
    """Return the message for a program that this machine lacks."""
    return f"{program} is not installed: apt-get install {package} (or your distribution's equivalent)."


async def _probe(backend: LocalBackend) -> str | None:
    """Run one command in a sandbox of a throw-away image; return the problem, None without one."""
    backend.home.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        tree = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trainyard-preflight-")))
        (tree / "file").write_text("content\n")
        try:
            name = f"preflight-{tree.name.rpartition('-')[2]}"
            stack.callback(shutil.rmtree, backend.home / "images" / name, ignore_errors=True)
            build_image(backend.home, name, tree)
            async with backend.open(SandboxSpec(image=name, name="preflight")) as sandbox:
                result = await sandbox.exec("cat file && echo more >> file", timeout_s=20)
                if result.exit_code != 0 or result.stdout != b"content\n":
                    return f"a trivial command printed {(result.stdout + result.stderr)[:500]!r}."
        except (SandboxError, OSError) as error:
            return f"{error}."
    return None


def _remedies() -> list[str]:
    remedies = []
    for path, bad, setting in _SYSCTLS:
        with contextlib.suppress(OSError):
            if Path(path).read_text().strip() == bad:
                remedies.append(f"User namespaces are restricted: sysctl -w {setting}.")
    return remedies or [
        "If this is a container, start it with --security-opt seccomp=unconfined --cap-add SYS_ADMIN, "
        "or run on the host itself."
    ]
