"""Sandbox for one program that reads hostile files: no network, no other files, one output folder.

For untrusted files outside of tasks: unpacking an archive, reading a repository. ``run_contained`` starts the
program in bubblewrap with the base system of local sandboxes; ``check_tree`` then checks that its output
consists of plain files and folders.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from engine.errors import HostileInputError, PreflightError
from engine.sandbox.local.base_system import prepare
from engine.sandbox.local.images import OWNER

OUT = "/out"
"""Path in the sandbox of the folder that the program may write to."""
_MAX_MESSAGE_CHARS = 500
_START = """
import os, resource, sys
memory, size, user = (int(sys.argv.pop(1)) for _ in range(3))
with open("/program.py") as file:
    program = compile(file.read(), file.name, "exec")
if os.getuid() == 0:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
for limit, value in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_FSIZE, size), (resource.RLIMIT_CORE, 1)):
    resource.setrlimit(limit, (value, value))
exec(program, {"__name__": "__main__", "__file__": file.name})
"""
"""Sets user and limits before the program runs. A core limit of 1, unlike 0, also keeps cores from a handler
that the kernel pipes them to, which runs outside of the sandbox."""


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
    """Run a Python program that needs only the standard library in its own sandbox.

    Args:
        program: the script, on this machine.
        arguments: its arguments.
        home: the data folder.
        reads: path in the sandbox to file or folder of this machine, read-only.
        writes: folder that appears as ``OUT``.
        limits: None for the defaults.

    As root, the program runs as the owner of images: its inputs are made readable for that user, and its
    output belongs to root afterwards.

    Raises:
        PreflightError: bubblewrap is missing.
        HostileInputError: the program failed or exceeded a limit; the message is its last line of output.
    """
    limits = limits or ContainedLimits()
    bubblewrap = shutil.which("bwrap")
    if bubblewrap is None:
        raise PreflightError(
            "bwrap is not installed, and untrusted files are only read in a sandbox: install bubblewrap"
        )
    base = prepare(home / "sandboxes")
    command = [bubblewrap, *_namespaces(), "--die-with-parent", "--new-session", "--clearenv"]
    command += ["--setenv", "PATH", base.path, "--setenv", "HOME", "/tmp", "--setenv", "LC_ALL", "C.UTF-8"]
    binds = [*base.binds, (str(program), "/program.py"), *((str(path), name) for name, path in reads.items())]
    parents = {str(parent) for _, target in binds for parent in PurePosixPath(target).parents}
    for parent in sorted(parents - {"/"}):  # bubblewrap would create them for root only
        command += ["--perms", "0755", "--dir", parent]
    for source, target in binds:
        command += ["--ro-bind", source, target]
    for path, points_to in base.links:
        command += ["--symlink", points_to, path]
    command += ["--proc", "/proc", "--dev", "/dev", "--perms", "1777", "--tmpfs", "/tmp"]
    with open(base.seccomp, "rb") as seccomp:
        command += ["--bind", str(writes), OUT, "--chdir", OUT, "--seccomp", str(seccomp.fileno())]
        command += ["--", base.python, "-I", "-S", "-B", "-c", _START]
        command += [str(limits.memory_mb << 20), str(limits.file_mb << 20), str(OWNER), *arguments]
        with _owner_access(reads.values(), writes):
            _run(command, limits.seconds, seccomp.fileno())


def _namespaces() -> list[str]:
    """Return bubblewrap's options for namespaces, user and capabilities.

    Root gets no user namespace: in one, the program would own root's files, device nodes included. Instead,
    ``_START`` changes to another user, for which it needs two capabilities.
    """
    if os.geteuid() != 0:
        options = ["--unshare-all", "--unshare-user", "--disable-userns", "--uid", "1000", "--gid", "1000"]
        return [*options, "--cap-drop", "ALL"]
    options = [f"--unshare-{name}" for name in ("ipc", "pid", "net", "uts", "cgroup-try")]
    return [*options, "--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]


@contextlib.contextmanager
def _owner_access(reads: Iterable[Path], writes: Path) -> Iterator[None]:
    """As root, give the owner of images access to a contained program's inputs and output folder."""
    if os.geteuid() != 0:
        yield
        return
    for path in (inner for outer in reads for inner in _tree(outer)):
        mode = path.lstat().st_mode
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            path.chmod(stat.S_IMODE(mode) | (0o555 if stat.S_ISDIR(mode) else 0o444))
    os.chown(writes, OWNER, OWNER)
    try:
        yield
    finally:
        for path in _tree(writes):
            os.chown(path, 0, 0, follow_symlinks=False)


def _tree(path: Path) -> Iterator[Path]:
    """Iterate over a path and, where it is a folder, everything below it; links are not followed."""
    yield path
    for parent, folders, names in os.walk(path):
        yield from (Path(parent, name) for name in (*folders, *names))


def _run(command: Sequence[str], seconds: float, inherited: int) -> None:
    try:
        completed = subprocess.run(
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
    if completed.returncode != 0:
        last_line = completed.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise HostileInputError(
            last_line[-_MAX_MESSAGE_CHARS:] or f"it ended with code {completed.returncode}"
        )


def check_tree(folder: Path, *, max_entries: int, max_bytes: int) -> None:
    """Check that only plain files and folders are below ``folder``, within limits.

    Raises:
        HostileInputError: another kind of entry, or more than a limit; the message says which.
    """
    entries = total = 0
    queue = [str(folder)]
    while queue:
        for entry in os.scandir(queue.pop()):
            status = entry.stat(follow_symlinks=False)
            entries += 1
            if stat.S_ISDIR(status.st_mode):
                queue.append(entry.path)
            elif stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                total += status.st_size
            else:
                raise HostileInputError(f"{entry.name[:200]!r} is neither a plain file nor a folder")
            if entries > max_entries or total > max_bytes:
                raise HostileInputError(
                    f"it has more than {max_entries} files and folders, or {max_bytes >> 20} MiB"
                )
