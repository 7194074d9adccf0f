"""One program on hostile files: no network, no other file of this machine, a folder for what it makes.

For work on strangers' files that is no task: unpacking an archive, reading a repository. ``run_contained``
starts it in bubblewrap with the base system of local sandboxes; ``check_tree`` proves afterwards that nothing
but files and folders came out.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.errors import HostileInputError, PreflightError
from engine.sandbox.local.base_system import prepare

OUT = "/out"
"""Where the program sees the folder that it may write to."""
_SAID = 500
_START = """
import resource, runpy, sys
memory, size = int(sys.argv.pop(1)), int(sys.argv.pop(1))
for limit, value in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_FSIZE, size), (resource.RLIMIT_CORE, 0)):
    resource.setrlimit(limit, (value, value))
runpy.run_path("/program.py", run_name="__main__")
"""
"""The limits hold before the program has read anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainedLimits:
    """Resource limits of a contained program."""

    seconds: float = 120.0
    memory_mb: int = 2048
    file_mb: int = 256
    """Largest file it may write, MiB."""


def run_contained(
    program: Path,
    arguments: Sequence[str],
    *,
    home: Path,
    reads: Mapping[str, Path],
    writes: Path,
    limits: ContainedLimits | None = None,
) -> None:
    """Run a Python program of the standard library in a sandbox of its own.

    Args:
        program: the script, on this machine.
        arguments: its arguments.
        home: the data folder.
        reads: path in the sandbox to file or folder of this machine, read-only.
        writes: folder that appears as ``OUT``.
        limits: None is the usual.

    Raises:
        PreflightError: bubblewrap is missing.
        HostileInputError: the program failed or went over a limit; says what it printed last.
    """
    limits = limits or ContainedLimits()
    bubblewrap = shutil.which("bwrap")
    if bubblewrap is None:
        raise PreflightError(
            "bwrap is not installed, and strangers' files are only unpacked in a sandbox: install bubblewrap"
        )
    base = prepare(home / "sandboxes")
    command = [bubblewrap, "--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL"]
    command += ["--uid", "1000", "--gid", "1000", "--die-with-parent", "--new-session", "--clearenv"]
    command += ["--setenv", "PATH", base.path, "--setenv", "HOME", "/tmp", "--setenv", "LC_ALL", "C.UTF-8"]
    for source, target in base.binds:
        command += ["--ro-bind", source, target]
    for path, points_to in base.links:
        command += ["--symlink", points_to, path]
    command += [
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "--tmpfs",
        "/tmp",
        "--ro-bind",
        str(program),
        "/program.py",
    ]
    for inside, outside in reads.items():
        command += ["--ro-bind", str(outside), inside]
    with open(base.seccomp, "rb") as seccomp:
        command += ["--bind", str(writes), OUT, "--chdir", OUT, "--seccomp", str(seccomp.fileno())]
        command += ["--", base.python, "-I", "-S", "-B", "-c", _START]
        command += [str(limits.memory_mb << 20), str(limits.file_mb << 20), *arguments]
        _run(command, limits.seconds, seccomp.fileno())


def _run(command: Sequence[str], seconds: float, inherited: int) -> None:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={},
            pass_fds=[inherited],
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        raise HostileInputError(f"it took more than {seconds:g} s") from None
    if done.returncode != 0:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise HostileInputError(last[-_SAID:] or f"it ended with code {done.returncode}")


def check_tree(folder: Path, *, max_entries: int, max_bytes: int) -> None:
    """Check that only plain files and folders are below ``folder``, within limits.

    Raises:
        HostileInputError: something else is there, or too much; says what.
    """
    entries = total = 0
    queue = [str(folder)]
    while queue:
        for entry in os.scandir(queue.pop()):
            about = entry.stat(follow_symlinks=False)
            entries += 1
            if stat.S_ISDIR(about.st_mode):
                queue.append(entry.path)
            elif stat.S_ISREG(about.st_mode) and about.st_nlink == 1:
                total += about.st_size
            else:
                raise HostileInputError(f"{entry.name[:200]!r} is neither a plain file nor a folder")
            if entries > max_entries or total > max_bytes:
                raise HostileInputError(
                    f"it has more than {max_entries} files and folders, or {max_bytes >> 20} MiB"
                )
