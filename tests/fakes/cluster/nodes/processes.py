"""Processes inside a local sandbox that are not its agent's: a container's own command, pods/exec, and
sockets into its network.

They join the namespaces and control groups of the sandbox's init and get its filter of system calls, as a
container runtime's exec does; whatever ends the sandbox ends them.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.sandbox.local.backend import LocalBackend
from engine.sandbox.seccomp.bpf import native_program

_JOIN = 'while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs"; shift; done; shift; exec "$@"'
# Only children enter a PID namespace, and whoever waits for the child must not hold its streams open.
_HAND_OVER = 'exec 3<&0; "$@" <&3 3<&- & exec 0<&- 1>&- 2>&- 3<&-; wait $!'
# After it has joined the namespaces: the filter refuses that.
_FILTER = """
import ctypes, os, signal, sys
class Program(ctypes.Structure): _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]
code, libc = bytes.fromhex(sys.argv[1]), ctypes.CDLL(None)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(Program(len(code) // 8, code))):
    sys.exit("no filter of system calls")
os.execv(sys.argv[2], sys.argv[2:])
"""
_NAMESPACES = ("--user", "--mount", "--pid", "--net", "--ipc", "--uts")
_CLONE_NEWNET = 0x40000000
_UID = "1000"
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Inside:
    """Where to enter: a sandbox's init as this machine numbers it, and its control groups."""

    pid: int
    cgroups: tuple[str, ...]

    async def spawn(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str, stdin: bool
    ) -> asyncio.subprocess.Process:
        """Start a command with pipes for its streams; stdin is empty unless asked for.

        A command that is not there ends with 127 and a line of ``env`` on stderr.
        """
        variables = [f"{name}={value}" for name, value in env.items()]
        identity = ("-S", _UID, "-G", _UID) if os.geteuid() == 0 else ("--preserve-credentials",)
        enter = ["nsenter", "--target", str(self.pid), *_NAMESPACES, "--root", "--no-fork", *identity, "--"]
        filtered = [_python(), "-I", "-S", "-B", "-c", _FILTER, native_program().hex()]
        command = [*filtered, "/usr/bin/env", "-i", f"--chdir={cwd}", *variables, *argv]
        handed_over = ["/bin/sh", "-c", _HAND_OVER, "sh", *command]
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", _JOIN, "sh", *self.cgroups, "--", *enter, *handed_over),
            stdin=pipe if stdin else asyncio.subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
        )

    async def connect(self, port: int) -> socket.socket:
        """A connection to a port of the sandbox's loopback. Raises OSError."""
        return await asyncio.to_thread(self._connect, port)

    def _connect(self, port: int) -> socket.socket:
        # A socket belongs to the namespace it was made in, wherever its maker's thread goes afterwards.
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        there = os.open(f"/proc/{self.pid}/ns/net", os.O_RDONLY)
        try:
            _enter(there)
            try:
                sock = socket.socket()
                sock.settimeout(1.0)
                try:
                    sock.connect(("127.0.0.1", port))
                except OSError:
                    sock.close()
                    raise
                return sock
            finally:
                _enter(home)
        finally:
            os.close(home)
            os.close(there)


def _python() -> str:
    """The interpreter that local sandboxes share with this machine."""
    return os.path.realpath(os.path.join(sys.base_prefix, "bin", "python3"))


def _enter(namespace: int) -> None:
    if _libc.setns(namespace, _CLONE_NEWNET) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def inside(backend: LocalBackend, sandbox_id: str) -> Inside:
    """The way into a live sandbox. Raises OSError when it has ended."""
    entry = next((one for one in backend.ledger.entries() if one.id == sandbox_id), None)
    if entry is None or not entry.pid:
        raise ProcessLookupError(f"sandbox {sandbox_id} is not in the ledger")
    children = Path(f"/proc/{entry.pid}/task/{entry.pid}/children").read_text().split()
    if not children:
        raise ProcessLookupError(f"sandbox {sandbox_id} has ended")
    return Inside(int(children[0]), tuple(entry.cgroups))
