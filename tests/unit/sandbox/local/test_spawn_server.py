"""Spawn server of local sandboxes: it ends cleanly whenever its owner ends."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys

from engine.sandbox.local import spawn_server


def test_owner_killed_with_unread_events_leaves_no_traceback() -> None:
    """The server writes to the run's log, whose last line is shown as the reason why an attempt ended."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, open(os.devnull, "r+b") as null:
        with theirs:
            command = [sys.executable, spawn_server.__file__, str(os.getpid()), str(theirs.fileno())]
            process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE)
        request = {"op": "spawn", "id": "box", "cgroups": [], "seccomp": "/absent"}
        socket.send_fds(ours, [json.dumps(request).encode()], [null.fileno(), null.fileno()])
        assert select.select([ours], [], [], 240)[0], "the spawn server sent no event"
    _, errors = process.communicate(timeout=240)  # waits for the end of the detached server, too
    assert errors == b""
