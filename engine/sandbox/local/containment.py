"""A sandbox as two forks of the spawner: a monitor outside and, in namespaces of its own, the agent.

The agent is a fork, not a program of its own, because starting Python is most of a sandbox's start. Nothing
of the spawner is within a command's reach: its descriptors are closed, its mounts gone, the command line is
overwritten, and the agent cannot be traced or read (it is not dumpable). What bubblewrap would do is done
here in the same order: mounts, namespaces, user, capabilities, filter.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import struct
from typing import Any

from engine.sandbox.agent.main import main as serve
from engine.sandbox.local import kernel
from engine.sandbox.local.root_folder import OverlayError, build, mount_proc

NO_OVERLAY = 97
"""Exit status of a sandbox whose image could not be overlaid; the request's ``copy`` avoids overlays."""

_USER = 1000
"""User and group of commands, as they see it."""
_FIRST_CREATOR = 2_000_000_000
"""Users from here on create the user namespaces of root's sandboxes, each its own: the kernel counts file
watches, pending signals and the like of a namespace towards its creator's limits."""
_NAMESPACES = (
    kernel.CLONE_NEWPID
    | kernel.CLONE_NEWNET
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWCGROUP
)
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1


def become_sandbox(request: dict[str, Any], stream: int, errors: int, spawner: int) -> None:
    """Turn this fork of the spawner into the monitor of a new sandbox; never returns."""
    status = 1
    try:
        os.dup2(errors, 2)
        kernel.die_with_parent(signal.SIGKILL)
        if os.getppid() != spawner:
            os._exit(1)
        _reset_signals()
        for folder in request["cgroups"]:
            _write(f"{folder}/cgroup.procs", str(os.getpid()))
        with open(request["seccomp"], "rb") as file:
            program = file.read()
        ordinary = _enter_mounts()
        root = build(request, ordinary=ordinary)
        kernel.unshare(_NAMESPACES)
        _start_loopback()
        kernel.set_host_name(b"sandbox")
        kernel.rename(b"agent")
        creator = None if ordinary else _FIRST_CREATOR + os.getpid()
        monitor, init = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            monitor.close()
            _become_init(request, program, root, stream, init, creator)
        os.closerange(3, monitor.fileno())
        os.closerange(monitor.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
        if creator is not None:
            _map_user(monitor, request)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except BaseException as error:
        status = NO_OVERLAY if isinstance(error, OverlayError) else 1
        _complain(error)
    finally:
        os._exit(status if status >= 0 else 128 - status)


def _become_init(
    request: dict[str, Any],
    program: bytes,
    root: str,
    stream: int,
    monitor: socket.socket,
    creator: int | None,
) -> None:
    """Turn this fork of the monitor into the agent; never returns."""
    status = 1
    try:
        os.setsid()
        mount_proc(root)
        kernel.pivot_root(root)
        if creator is None:
            _enter_own_user()
        else:
            _enter_mapped_user(monitor, creator)
        kernel.drop_capabilities()
        kernel.die_with_parent(signal.SIGKILL)
        if select.select([monitor], [], [], 0)[0]:  # its end is closed: it died before we could notice
            os._exit(1)
        os.dup2(stream, 0)
        os.dup2(stream, 1)
        os.environ.update(request["env"])
        request.clear()
        kernel.filter_calls(program)
        serve()
        status = 0
    except BaseException as error:
        _complain(error)
    finally:
        os._exit(status)


def _complain(error: BaseException) -> None:
    os.write(2, f"{type(error).__name__}: {error}\n".encode())


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _enter_mounts() -> bool:
    """Enter private mounts; return True if an unprivileged user namespace was needed for them."""
    uid, gid = os.geteuid(), os.getegid()
    ordinary = uid != 0
    kernel.unshare(kernel.CLONE_NEWNS | (kernel.CLONE_NEWUSER if ordinary else 0))
    if ordinary:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{uid} {uid} 1")
        _write("/proc/self/gid_map", f"{gid} {gid} 1")
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    return ordinary


def _start_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))


def _enter_own_user() -> None:
    """Enter the user namespace in which commands run, as the ordinary user who owns the image's files."""
    uid, gid = os.geteuid(), os.getegid()
    kernel.unshare(kernel.CLONE_NEWUSER)
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{_USER} {uid} 1")
    _write("/proc/self/gid_map", f"{_USER} {gid} 1")


def _enter_mapped_user(monitor: socket.socket, creator: int) -> None:
    """Enter a user namespace made by ``creator`` in which the monitor maps the owner of the image's files."""
    os.setgroups([])
    os.setresgid(creator, creator, creator)
    os.setresuid(creator, creator, creator)
    kernel.unshare(kernel.CLONE_NEWUSER)
    monitor.send(b"m")
    if monitor.recv(1) != b"m":
        raise OSError("the monitor has died")
    os.setresgid(_USER, _USER, _USER)
    os.setresuid(_USER, _USER, _USER)


def _map_user(monitor: socket.socket, request: dict[str, Any]) -> None:
    """Let the sandbox's user be the owner of the image's files; only the monitor may."""
    if monitor.recv(1):
        _write("/proc/1/setgroups", "deny")
        _write("/proc/1/uid_map", f"{_USER} {request['uid']} 1")
        _write("/proc/1/gid_map", f"{_USER} {request['gid']} 1")
        monitor.send(b"m")
