"""Helper process that starts bubblewrap sandboxes on request; run as a script, one per backend.

A separate process is needed for three reasons. Only a small single-threaded process can cheaply create the
private mount namespace of a sandbox. ``--die-with-parent`` is bound to a thread, and this process has exactly
one, which lives as long as its owner (watched by a pidfd). Forking this process is cheap, whereas the owner
may hold gigabytes of model.

Requests and events are JSON messages on a SOCK_SEQPACKET socket; a spawn request carries two descriptors: the
agent's stream and its error output. The host side is ``engine.sandbox.local.spawn_client``. To give sandboxes
another mount, add it to ``_populate``.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys
from typing import Any

_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_STAGES = ("/mnt", "/media", "/srv", "/opt", "/tmp")
_SECCOMP_FD = 3
_libc = ctypes.CDLL(None, use_errno=True)

NO_OVERLAY = 97
"""Exit status of a sandbox whose image could not be overlaid; the request's ``copy`` avoids overlays."""


class _OverlayError(OSError):
    """Overlay mounts are not possible here."""


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    result = _libc.mount(os.fsencode(source), os.fsencode(target), kind.encode(), flags, os.fsencode(data))
    _check(result, f"mount {kind or 'bind'} {source} on {target}")


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _escape(path: str) -> str:
    return "".join("\\" + char if char in ":,\\" else char for char in path)


def _enter_namespaces() -> bool:
    """Enter a private mount namespace; return True if it needed an unprivileged user namespace."""
    uid, gid = os.geteuid(), os.getegid()
    ordinary = uid != 0
    _check(_libc.unshare(_CLONE_NEWNS | (_CLONE_NEWUSER if ordinary else 0)), "unshare")
    if ordinary:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{uid} {uid} 1")
        _write("/proc/self/gid_map", f"{gid} {gid} 1")
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE)
    return ordinary


def _writable(path: str, mode: int, request: dict[str, Any]) -> None:
    os.makedirs(path, exist_ok=True)
    if os.geteuid() == 0:
        os.chown(path, request["uid"], request["gid"])
    os.chmod(path, mode)


def _layer(request: dict[str, Any], stage: str, name: str, *, ordinary: bool) -> None:
    """Make the image's top-level folder ``name`` writable by an overlay, or by a copy."""
    os.chdir(request["rootfs"])  # the mount table shows the lower layer's path: a relative one reveals little
    merged, upper, work = (f"{stage}/{part}/{name}" for part in ("root", "upper", "work"))
    mode = os.stat(name).st_mode & 0o7777
    os.makedirs(work)
    _writable(merged, mode, request)
    _writable(upper, mode, request)
    if not request["copy"]:
        options = f"lowerdir={_escape(name)},upperdir={upper},workdir={work},volatile"
        flags = _MS_NODEV | _MS_NOSUID
        try:
            _mount("overlay", merged, "overlay", flags, options + (",userxattr" if ordinary else ""))
        except OSError as error:
            raise _OverlayError(error.errno, error.strerror) from error
        return
    code = os.spawnv(os.P_WAIT, "/bin/cp", ["cp", "-a", f"{name}/.", merged])
    if code != 0:
        raise OSError(code, f"copying {name} into the sandbox failed (is disk_mb too small?)")


def _populate(request: dict[str, Any], stage: str, *, ordinary: bool) -> None:
    size, inodes = request["disk_bytes"], request["inodes"]
    _mount("tmpfs", stage, "tmpfs", _MS_NODEV | _MS_NOSUID, f"size={size},nr_inodes={inodes},mode=755")
    root = f"{stage}/root"
    os.mkdir(f"{stage}/empty")
    for folder in ("", "/dev", "/proc", "/sys", "/run", "/var"):
        os.mkdir(root + folder)
    os.symlink("../tmp", f"{root}/var/tmp")
    for path in request["writable"]:
        os.makedirs(root + path, exist_ok=True)
        _writable(f"{stage}/rw{path}", 0o1777, request)
    for name, target in request["links"]:
        os.symlink(target, root + name)
    for name in request["layers"]:
        _layer(request, stage, name, ordinary=ordinary)
    for source, target in request["binds"]:
        os.makedirs(root + target, exist_ok=True)
        if source == target or not _mount_unnamed(source, root + target, f"{stage}/empty"):
            _mount(source, root + target, "", _MS_BIND | _MS_REC)


def _mount_unnamed(source: str, target: str, empty: str) -> bool:
    """Mount a folder read-only so that the mount table hides its path; return False if impossible."""
    folder, name = os.path.split(source)
    os.chdir(folder)
    try:
        _mount("overlay", target, "overlay", _MS_NODEV | _MS_NOSUID, f"lowerdir={_escape(name)}:{empty}")
    except OSError:
        return False
    return True


def _arguments(request: dict[str, Any], stage: str) -> list[str]:
    root = f"{stage}/root"
    arguments = [request["bwrap"], "--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL"]
    arguments += ["--uid", "1000", "--gid", "1000", "--hostname", "sandbox"]
    arguments += ["--die-with-parent", "--as-pid-1", "--new-session", "--ro-bind", root, "/"]
    for name in request["layers"]:
        arguments += ["--bind", f"{root}/{name}", f"/{name}"]
    for path in request["writable"]:
        arguments += ["--bind", f"{stage}/rw{path}", path]
    for _, target in request["binds"]:
        if target.split("/")[1] in request["layers"]:
            arguments += ["--ro-bind", root + target, target]  # the layer's own bind made it writable
    arguments += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
    arguments += ["--bind", f"{stage}/rw/tmp", "/dev/shm", "--clearenv", "--seccomp", str(_SECCOMP_FD)]
    for key, value in request["env"].items():
        arguments += ["--setenv", key, value]
    return [*arguments, "--chdir", "/", "--", *request["argv"]]


def _stage_for(request: dict[str, Any]) -> str:
    """Return a standard folder to mount over that contains no mount source."""
    sources = [request["rootfs"], *(source for source, _ in request["binds"])]
    for stage in _STAGES:
        if os.path.isdir(stage) and not any(f"{source}/".startswith(f"{stage}/") for source in sources):
            return stage
    raise OSError(f"none of {', '.join(_STAGES)} can serve as mount point")


def _become_sandbox(request: dict[str, Any], fds: list[int], spawner: int) -> None:
    """Build the file system in the forked child and execute bubblewrap."""
    stream, errors = fds
    status = 1
    try:
        os.dup2(errors, 2)
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != spawner:
            os._exit(1)
        for folder in request["cgroups"]:
            _write(f"{folder}/cgroup.procs", str(os.getpid()))
        seccomp = os.open(request["seccomp"], os.O_RDONLY)
        ordinary = _enter_namespaces()
        stage = _stage_for(request)
        _populate(request, stage, ordinary=ordinary)
        if os.geteuid() == 0 and request["uid"] != 0:
            os.setgroups([])
            os.setgid(request["gid"])
            os.setuid(request["uid"])
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of user clears it
        for target, fd in ((0, stream), (1, stream), (_SECCOMP_FD, seccomp)):
            os.dup2(fd, target)
        os.closerange(_SECCOMP_FD + 1, os.sysconf("SC_OPEN_MAX"))
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.execve(request["bwrap"], _arguments(request, stage), {})
    except BaseException as error:
        status = NO_OVERLAY if isinstance(error, _OverlayError) else 1
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(status)


class SpawnServer:
    """Server of spawn and kill requests; ends with its owner."""

    def __init__(self, control: socket.socket, owner: int) -> None:
        self.control = control
        self.owner_fd = os.pidfd_open(owner)
        self.ids: dict[int, str] = {}
        self.children: dict[str, int] = {}
        self.dying: dict[int, str] = {}
        self.ended: dict[str, int] = {}
        self.wake_fd, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        os.set_blocking(self.wake_fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Serve until the control socket or the owner ends; then kill every sandbox."""
        poller = select.poll()
        for fd in (self.control.fileno(), self.owner_fd, self.wake_fd):
            poller.register(fd, select.POLLIN)
        try:
            while True:
                ready = {fd for fd, _ in poller.poll()}
                if self.owner_fd in ready:
                    return
                if self.wake_fd in ready:
                    self._reap()
                if self.control.fileno() in ready and not self._handle():
                    return
        finally:
            for pid in self.ids:
                os.kill(pid, signal.SIGKILL)

    def _handle(self) -> bool:
        try:
            message, fds, _, _ = socket.recv_fds(self.control, 1 << 20, 2)
        except ConnectionResetError:  # the owner was killed before it had read all of our events
            return False
        if not message:
            return False
        request = json.loads(message)
        if request["op"] == "spawn":
            self._spawn(request, fds)
        elif request["id"] in self.children:
            self._kill(self.children[request["id"]])
        return True

    def _spawn(self, request: dict[str, Any], fds: list[int]) -> None:
        spawner = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            self._send({"id": request["id"], "event": "gone", "status": 1})
        else:
            if pid == 0:
                _become_sandbox(request, fds, spawner)
            self.ids[pid] = request["id"]
            self.children[request["id"]] = pid
            self._send({"id": request["id"], "event": "started", "pid": pid})
        finally:
            for fd in fds:
                os.close(fd)

    def _kill(self, pid: int) -> None:
        # The sandbox's init dies with the monitor, its parent, and is then reparented to this process.
        for inner in self._inner(pid):
            try:
                os.kill(inner, signal.SIGKILL)
            except ProcessLookupError:  # ended and reaped by the monitor since we looked
                continue
            self.dying[inner] = self.ids[pid]
        os.kill(pid, signal.SIGKILL)

    @staticmethod
    def _inner(pid: int) -> list[int]:
        try:
            with open(f"/proc/{pid}/task/{pid}/children") as file:
                return [int(part) for part in file.read().split()]
        except OSError:
            return []

    def _reap(self) -> None:
        try:
            os.read(self.wake_fd, 4096)
        except BlockingIOError:
            pass
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                pid, status = 0, 0
            if pid == 0:
                break
            self.dying.pop(pid, None)
            sandbox = self.ids.pop(pid, None)
            if sandbox is not None:
                del self.children[sandbox]
                self.ended[sandbox] = os.waitstatus_to_exitcode(status)
        self._report_gone()

    def _report_gone(self) -> None:
        for inner in [pid for pid in self.dying if not os.path.exists(f"/proc/{pid}")]:
            del self.dying[inner]
        waiting = set(self.dying.values())
        for sandbox in [name for name in self.ended if name not in waiting]:
            self._send({"id": sandbox, "event": "gone", "status": self.ended.pop(sandbox)})

    def _send(self, event: dict[str, Any]) -> None:
        try:
            self.control.send(json.dumps(event).encode())
        except OSError:  # the owner is ending; the main loop notices
            pass


def main() -> None:
    """Detach from the owner and serve it (arguments: owner's pid, descriptor of the control socket)."""
    owner, control = int(sys.argv[1]), int(sys.argv[2])
    if os.fork():
        os._exit(0)
    os.setsid()
    os.umask(0o022)  # the folders of a sandbox's root must be open to its user
    # The kernel pipes cores to a handler outside of the sandbox whatever the limit is, unless it is 1.
    resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    SpawnServer(socket.socket(fileno=control), owner).serve()


if __name__ == "__main__":
    main()
