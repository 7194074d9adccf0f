"""Execution of git and patch on file copies in a private temporary folder, without any user configuration.

Both read untrusted input, so the kernel limits the resources of a run: processor time, memory, and the size
of each written file, including the output. Neither waits for anything external: if a run misses the deadline
within these limits, the machine is at fault, not the patch. The same holds for a full disk.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from engine.errors import HostError, PatchError

DEADLINE_S = 120.0
CPU_S = 60
MEMORY_BYTES = 2 << 30
FILE_BYTES = 256 << 20
_ERROR_CHARS = 2000
_ROOM_BYTES = 1 << 20
"""Free disk space that a command needs besides the contents of its folder and its input, bytes."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_LIMITED = 'ulimit -t "$1"; ulimit -v "$2"; ulimit -f "$3"; ulimit -c 0; shift 3; exec "$@"'


class Finished(NamedTuple):
    """Result of a command."""

    exit_code: int
    output: bytes
    """Standard output."""
    stderr: str
    """Beginning of standard error."""


@contextmanager
def private_folder(attributes: str = "") -> Iterator[str]:
    """Create a temporary folder for commands, with an empty ``tree`` and git's attributes.

    Raises:
        HostError: this machine's disk is full.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="trainyard-patch-") as name:
            (Path(name) / "tree").mkdir()
            (Path(name) / "attributes").write_text(attributes)
            yield name
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise HostError(f"the disk of this machine is full ({tempfile.gettempdir()}): {error}") from error


def run_git(folder: Path, *arguments: str, stdin: bytes = b"") -> Finished:
    """Run git in a ``private_folder``'s tree.

    Raises:
        PatchError: the command exceeds a resource limit.
        HostError: this machine has no ``git``, or is too slow for it.
    """
    attributes = f"core.attributesFile={folder / 'attributes'}"
    return _run(folder, ["git", "-c", attributes, "-c", "core.quotePath=true", *arguments], stdin)


def run_patch(folder: Path, *arguments: str) -> Finished:
    """Run GNU patch in a ``private_folder``'s tree.

    Raises:
        PatchError: the command exceeds a resource limit.
        HostError: this machine has no ``patch``, or is too slow for it.
    """
    return _run(folder, ["patch", *arguments], b"")


def _run(folder: Path, command: Sequence[str], stdin: bytes) -> Finished:
    limits = [
        _limit(resource.RLIMIT_CPU, CPU_S),
        _limit(resource.RLIMIT_AS, MEMORY_BYTES, unit=1024),
        _limit(resource.RLIMIT_FSIZE, FILE_BYTES, unit=512),
    ]
    with (
        tempfile.TemporaryFile() as stdin_file,
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as errors,
    ):
        stdin_file.write(stdin)
        stdin_file.seek(0)
        process = subprocess.Popen(
            ["/bin/sh", "-c", _LIMITED, command[0], *limits, *command],
            cwd=folder / "tree",
            env=_environment(folder),
            stdin=stdin_file,
            stdout=output,
            stderr=errors,
            process_group=0,
        )
        try:
            exit_code = process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise HostError(
                f"'{command[0]}' took more than {DEADLINE_S:g} s over a patch: this machine is overloaded"
            ) from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        output.seek(0)
        errors.seek(0)
        finished = Finished(
            exit_code, output.read(), errors.read(_ERROR_CHARS).decode(errors="replace").strip()
        )
    if exit_code < 0:
        name = signal.Signals(-exit_code).name
        raise PatchError(f"'{command[0]}' exceeded its limits over the patch and was ended ({name})")
    if exit_code == 127:
        raise HostError(f"there is no '{command[0]}' on this machine; install it to apply patches")
    return finished


def check_disk_space(folder: Path, patch: bytes) -> None:
    """Check that a command that failed on a patch had enough disk space for its files.

    Raises:
        HostError: this machine's disk is full.
    """
    files = (Path(parent, name) for parent, _, names in os.walk(folder) for name in names)
    wanted = len(patch) + sum(file.lstat().st_size for file in files) + _ROOM_BYTES
    if (free := shutil.disk_usage(folder).free) < wanted:
        raise HostError(f"the disk of this machine has {free} bytes left, a patch needs {wanted} ({folder})")


def _limit(kind: int, wanted: int, *, unit: int = 1) -> str:
    """Return a limit in ``ulimit``'s unit, capped at this process's own hard limit."""
    hard = resource.getrlimit(kind)[1]
    return str((wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)) // unit)


def _environment(folder: Path) -> dict[str, str]:
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": str(folder.parent),
    }
