"""System calls that Python does not have, for the spawner and its sandboxes; each raises OSError.

Loaded once by the spawner before it forks, so that a sandbox's start imports nothing.
"""

from __future__ import annotations

import ctypes
import os

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 1 << 14, 1 << 18
CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_SECCOMP, _PR_CAPBSET_DROP = 1, 15, 22, 24
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 36, 38, 47, 4
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522
_LAST_CAPABILITY = "/proc/sys/kernel/cap_last_cap"
_MNT_DETACH = 2
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SYS_MOUNT_SETATTR = 442
_AT_RECURSIVE, _AT_FDCWD = 0x8000, -100
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID, _MOUNT_ATTR_NODEV = 1, 2, 4

_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """Mount a file system, or bind or remount an existing tree."""
    result = _libc.mount(source.encode(), target.encode(), kind.encode(), flags, data.encode())
    _check(result, f"mount {kind or 'bind'} {source} on {target}")


def protect(folder: str) -> None:
    """Make every mount at and below ``folder`` read-only, without devices and set-user-id programs."""
    attributes = _MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV
    setting = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    arguments = (_AT_FDCWD, folder.encode(), _AT_RECURSIVE, ctypes.byref(setting), ctypes.sizeof(setting))
    _check(_libc.syscall(_SYS_MOUNT_SETATTR, *arguments), f"mount_setattr {folder} (needs Linux 5.12)")


def pivot_root(root: str) -> None:
    """Make ``root`` the root folder and let go of the old one."""
    os.chdir(root)
    _check(_libc.syscall(_SYS_PIVOT_ROOT[os.uname().machine], b".", b"."), f"pivot_root {root}")
    _check(_libc.umount2(b".", _MNT_DETACH), "umount2 of the old root")
    os.chdir("/")


def unshare(flags: int) -> None:
    """Leave namespaces for new ones."""
    _check(_libc.unshare(flags), "unshare")


def set_host_name(name: bytes) -> None:
    """Name this UTS namespace."""
    _check(_libc.sethostname(name, len(name)), "sethostname")


def die_with_parent(signal: int) -> None:
    """Receive ``signal`` when the parent ends; a later change of user clears it."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal, 0, 0, 0), "PR_SET_PDEATHSIG")


def adopt_orphans() -> None:
    """Become the parent of every orphan below this process."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "PR_SET_CHILD_SUBREAPER")


def rename(name: bytes) -> None:
    """Replace the command line that everybody can read; it may be shortened."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, name, min(len(name), end - start - 1))
    _check(_libc.prctl(_PR_SET_NAME, ctypes.c_char_p(name), 0, 0, 0), "PR_SET_NAME")


def drop_capabilities() -> None:
    """Give up every capability for good, the bounding set included."""
    with open(_LAST_CAPABILITY) as file:
        last = int(file.read())
    for capability in range(last + 1):
        _check(_libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0), f"PR_CAPBSET_DROP {capability}")
    _check(_libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "PR_CAP_AMBIENT")
    header, none = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    _check(_libc.capset(ctypes.byref(header), ctypes.byref(none)), "capset")


def filter_calls(program: bytes) -> None:
    """Apply a seccomp filter, for good, to this process and its children; no new privileges either."""
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")
    loaded = _Program(len(program) // 8, program)
    _check(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(loaded), 0, 0), "PR_SET_SECCOMP")
