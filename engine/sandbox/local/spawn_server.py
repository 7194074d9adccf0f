"""Helper process that starts local sandboxes on request; one per backend.

It exists for three reasons: forking it costs little, whereas the owner may hold gigabytes of model, and a
fork of it is an agent that has nothing left to import; parent-death signals are bound to a thread, and this
process has exactly one, which lives as long as its owner does (a pidfd tells); and a sandbox's mounts live in
a private mount namespace that only a single-threaded process can enter. Requests and events are JSON messages
on a SOCK_SEQPACKET socket; a spawn request carries two descriptors: the agent's stream and its error output.
The host side is ``engine.sandbox.local.spawn_client``; ``containment`` is what a fork becomes.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import sys
from typing import Any

from engine.sandbox.local import kernel
from engine.sandbox.local.containment import become_sandbox


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
        message, fds, _, _ = socket.recv_fds(self.control, 1 << 20, 2)
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
                stream, errors = fds
                become_sandbox(request, stream, errors, spawner)
            self.ids[pid] = request["id"]
            self.children[request["id"]] = pid
            self._send({"id": request["id"], "event": "started", "pid": pid})
        finally:
            for fd in fds:
                os.close(fd)

    def _kill(self, pid: int) -> None:
        # The init inside dies with the monitor; until then it is our grandchild and becomes our child.
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
        except OSError:  # the owner is going away; the main loop notices
            pass


def main() -> None:
    """Detach from the owner and serve it (arguments: owner's pid, descriptor of the control socket)."""
    owner, control = int(sys.argv[1]), int(sys.argv[2])
    if os.fork():
        os._exit(0)
    os.setsid()
    kernel.adopt_orphans()
    gc.freeze()  # a collection in a fork would copy every page
    SpawnServer(socket.socket(fileno=control), owner).serve()
