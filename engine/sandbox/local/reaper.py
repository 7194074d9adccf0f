"""Removal of processes, control groups and ledger files of dead owners.

Mounts need no removal: they belong to the sandbox's own namespace, which ends with its last process. The
death of an owner normally ends its sandboxes within milliseconds (see ``spawn_server``). The reaper handles
the remaining ones, and deadlines.
"""

from __future__ import annotations

import os
import signal
import time

from engine.processes import cgroups
from engine.sandbox.ledger import Ledger, LedgerEntry

_KILL_S = 2.0


def reap(ledger: Ledger, run_id: str | None = None) -> int:
    """Remove all orphans, or one run's; return their number. Safe to run concurrently."""
    removed = 0
    for entry in ledger.entries():
        if (run_id is None or entry.run_id == run_id) and entry.orphaned() and _remove(ledger, entry):
            removed += 1
    if run_id is None:
        cgroups.remove_abandoned(cgroups.detect())
    return removed


def _remove(ledger: Ledger, entry: LedgerEntry) -> bool:
    give_up = time.monotonic() + _KILL_S
    while entry.alive() and time.monotonic() < give_up:
        try:
            os.kill(entry.pid, signal.SIGKILL)
        except ProcessLookupError:
            break
        time.sleep(0.005)
    cgroups.kill(entry.cgroups)
    if entry.alive() or not cgroups.remove(entry.cgroups):
        return False
    ledger.remove(entry)
    return True
