"""Secrets in the environment of this process."""

from __future__ import annotations

import ctypes
import os


def take_variable(name: str) -> str:
    """Return a variable's value; remove it, also where ``/proc/PID/environ`` shows it."""
    library = ctypes.CDLL(None)
    library.getenv.restype = ctypes.c_void_p
    if address := library.getenv(name.encode()):
        ctypes.memset(address, 0, len(ctypes.string_at(address)))
    return os.environ.pop(name, "")
