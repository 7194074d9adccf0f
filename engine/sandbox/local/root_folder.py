"""The file system of a sandbox, built in a mount namespace of its own.

One tmpfs holds the root's skeleton, the upper layers of the overlays and everything else that is writable, so
that one limit covers it all. To give sandboxes another mount, add it to ``build``.
"""

from __future__ import annotations

import os
from typing import Any

from engine.sandbox.local.kernel import (
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_RDONLY,
    MS_REC,
    MS_REMOUNT,
    mount,
    protect,
)

_STAGES = ("/mnt", "/media", "/srv", "/opt", "/tmp")
_FOLDERS = ("/dev", "/proc", "/sys", "/run", "/var", "/dev/pts", "/dev/shm")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = (
    ("/var/tmp", "../tmp"),
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
    ("/dev/core", "/proc/kcore"),
    ("/dev/ptmx", "pts/ptmx"),
)
_READ_ONLY_IN_PROC = ("sys", "sysrq-trigger", "irq", "bus")


class OverlayError(OSError):
    """Overlay mounts are not possible here."""


def build(request: dict[str, Any], *, ordinary: bool) -> str:
    """Build the file system of a request and return its root; ``mount_proc`` completes it.

    Args:
        ordinary: mounts are made by an ordinary user in a user namespace.
    """
    stage = _stage_for(request)
    size, inodes = request["disk_bytes"], request["inodes"]
    mount("tmpfs", stage, "tmpfs", MS_NODEV | MS_NOSUID, f"size={size},nr_inodes={inodes},mode=755")
    root = f"{stage}/root"
    os.mkdir(root)
    os.mkdir(f"{stage}/empty")
    mount(root, root, "", MS_BIND)
    _skeleton(request, stage, root)
    protect(root)
    for name in _DEVICES:
        mount(f"/dev/{name}", f"{root}/dev/{name}", "", MS_BIND)
    options = "newinstance,ptmxmode=0666,mode=620"
    mount("devpts", f"{root}/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, options)
    for name in request["layers"]:
        _layer(request, stage, name, ordinary=ordinary)
    for path in request["writable"]:
        _writable(f"{stage}/rw{path}", 0o1777, request)
        mount(f"{stage}/rw{path}", root + path, "", MS_BIND)
    mount(f"{stage}/rw/tmp", f"{root}/dev/shm", "", MS_BIND)
    return root


def mount_proc(root: str) -> None:
    """Mount the process table of the caller's PID namespace, without the kernel's switches."""
    proc = f"{root}/proc"
    mount("proc", proc, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for name in _READ_ONLY_IN_PROC:
        path = f"{proc}/{name}"
        if os.path.exists(path):
            mount(path, path, "", MS_BIND)
            mount("none", path, "", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)


def _skeleton(request: dict[str, Any], stage: str, root: str) -> None:
    """Make the folders, links and read-only mounts of the root."""
    for folder in _FOLDERS:
        os.mkdir(root + folder)
    for name in _DEVICES:
        os.close(os.open(f"{root}/dev/{name}", os.O_CREAT | os.O_WRONLY, 0o666))
    for name, target in (*_LINKS, *request["links"]):
        os.symlink(target, root + name)
    for path in (*request["writable"], *(f"/{name}" for name in request["layers"])):
        os.makedirs(root + path, exist_ok=True)
    for source, target in request["binds"]:
        os.makedirs(root + target, exist_ok=True)
        if source == target or request["copy"] or not _show(source, root + target, f"{stage}/empty"):
            mount(source, root + target, "", MS_BIND | MS_REC)


def _show(source: str, target: str, empty: str) -> bool:
    """Mount a folder so that the mount table does not name its path on this machine, if that is possible."""
    folder, _, name = source.rpartition("/")
    os.chdir(folder)
    try:
        mount("overlay", target, "overlay", MS_NODEV | MS_NOSUID, f"lowerdir={_escape(name)}:{empty}")
    except OSError:
        return False
    return True


def _layer(request: dict[str, Any], stage: str, name: str, *, ordinary: bool) -> None:
    """Make the image's top-level folder ``name`` writable by an overlay, or by a copy."""
    os.chdir(request["rootfs"])  # the path of the lower layer is relative: the mount table shows it
    merged, upper, work = f"{stage}/root/{name}", f"{stage}/upper/{name}", f"{stage}/work/{name}"
    _writable(upper, os.stat(name).st_mode & 0o7777, request)
    if request["copy"]:
        code = os.spawnv(os.P_WAIT, "/bin/cp", ["cp", "-a", f"{name}/.", upper])
        if code != 0:
            raise OSError(code, f"copying {name} into the sandbox failed (is disk_mb too small?)")
        mount(upper, merged, "", MS_BIND)
        return
    os.makedirs(work)
    options = f"lowerdir={_escape(name)},upperdir={upper},workdir={work},volatile"
    try:
        userxattr = ",userxattr" if ordinary else ""
        mount("overlay", merged, "overlay", MS_NODEV | MS_NOSUID, options + userxattr)
    except OSError as error:
        raise OverlayError(error.errno, error.strerror) from error


def _writable(path: str, mode: int, request: dict[str, Any]) -> None:
    os.makedirs(path, exist_ok=True)
    if os.geteuid() == 0:
        os.chown(path, request["uid"], request["gid"])
    os.chmod(path, mode)


def _escape(path: str) -> str:
    return "".join("\\" + char if char in ":,\\" else char for char in path)


def _stage_for(request: dict[str, Any]) -> str:
    """Return a standard folder to mount over in our own namespace that hides no mount source."""
    sources = [request["rootfs"], *(source for source, _ in request["binds"])]
    for stage in _STAGES:
        if os.path.isdir(stage) and not any(f"{source}/".startswith(f"{stage}/") for source in sources):
            return stage
    raise OSError(f"none of {', '.join(_STAGES)} can serve as mount point")
