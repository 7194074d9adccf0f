"""Waiting threads of OpenMP, with which torch computes on processors."""

from __future__ import annotations

import os

_POLICY, _SPINS = "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"
_MAX_SPINS = "300"


def spinning() -> dict[str, str]:
    """Return the variables by which waiting threads sleep after microseconds, or those of the environment.

    By default libgomp's threads spin for milliseconds. Where sandboxes or other runs want the same
    processors, each small operation then waits for threads that have none (``bench/spinning.py``).
    """
    given = {name: os.environ[name] for name in (_POLICY, _SPINS) if name in os.environ}
    return given or {_SPINS: _MAX_SPINS}


def limit_spinning() -> None:
    """Have waiting threads of this process sleep soon. It has no effect once torch is imported."""
    os.environ.update(spinning())
