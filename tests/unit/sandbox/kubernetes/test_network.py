"""Programs that test whether pods reach each other, run as processes of this machine."""

from __future__ import annotations

import subprocess
import sys

from engine.sandbox.kubernetes import network
from tests.ports import reserved_port


def program(script: str, port: int, window_s: float = 60.0) -> list[str]:
    return [sys.executable, "-I", "-c", f"HOST, PORT, WINDOW_S = '127.0.0.1', {port}, {window_s}\n{script}"]


def test_reaching_program_connects_once_the_other_listens() -> None:
    port = reserved_port()
    with subprocess.Popen(program(network._REACH, port), stdout=subprocess.PIPE) as reaching:
        subprocess.run(program(network._LISTEN, port), check=True, timeout=240)
        output, _ = reaching.communicate(timeout=240)
    assert output.decode().split() == [f"127.0.0.1:{port}"]
