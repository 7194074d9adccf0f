"""The process that starts local sandboxes ends with its owner, however that ends."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys

from engine.sandbox.local import spawn_server


def test_an_owner_that_was_killed_before_it_read_everything_leaves_no_traceback() -> None:
    """Its log is the run's: the last line is shown as the reason for which an attempt ended."""
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
