"""What the reconciler decides about a run, without any process."""

from __future__ import annotations

from datetime import timedelta

import pytest

from engine.types import RunState
from webapp.runs.services import states
from workers.launchers.base import ProcessState
from workers.reconciler import (
    CLAIM_GRACE,
    DISCONNECTED_AFTER,
    HUNG_AFTER,
    MISSING_GRACE,
    RESEND_AFTER,
    Decision,
    decide,
)

NOW = timedelta(0)
SECOND = timedelta(seconds=1)
ALIVE, DEAD, AWAY = ProcessState.ALIVE, ProcessState.DEAD, ProcessState.UNREACHABLE
PENDING, CUT_OFF, MISSING = ProcessState.PENDING, ProcessState.DISCONNECTED, ProcessState.MISSING
S = RunState


@pytest.mark.parametrize(
    ("state", "process", "silent", "in_state", "nudged", "expected"),
    [
        # Nobody came for a queued run: again, but not every time.
        (S.QUEUED, None, NOW, SECOND, None, Decision.WAIT),
        (S.QUEUED, None, NOW, RESEND_AFTER + SECOND, None, Decision.RESEND),
        (S.QUEUED, None, NOW, RESEND_AFTER * 3, SECOND, Decision.WAIT),
        (S.QUEUED, None, NOW, timedelta(days=8), SECOND, Decision.EXPIRE),
        (S.DRAFT, None, NOW, timedelta(days=1), None, Decision.WAIT),
        (S.DRAFT, None, NOW, timedelta(days=31), None, Decision.EXPIRE),
        # A worker died between the claim and the process.
        (S.STARTING, None, SECOND, SECOND, None, Decision.WAIT),
        (S.STARTING, None, CLAIM_GRACE, CLAIM_GRACE + SECOND, None, Decision.RECOVER),
        # A worker may take long to write what a run learns from.
        (S.STARTING, None, SECOND, timedelta(hours=1), None, Decision.WAIT),
        # A dead process is known at once, an unreachable one after its timeout.
        (S.STARTING, DEAD, NOW, SECOND, None, Decision.RECOVER),
        (S.RUNNING, DEAD, NOW, SECOND, None, Decision.RECOVER),
        (S.PAUSED, DEAD, NOW, SECOND, None, Decision.RECOVER),
        (S.RUNNING, AWAY, 14 * SECOND, timedelta(hours=1), None, Decision.WAIT),
        (S.RUNNING, AWAY, 16 * SECOND, timedelta(hours=1), None, Decision.RECOVER),
        # A live local process may be silent while the web server is away.
        (S.RUNNING, ALIVE, 60 * SECOND, timedelta(hours=1), None, Decision.WAIT),
        (S.RUNNING, ALIVE, HUNG_AFTER, timedelta(hours=1), None, Decision.RECOVER),
        # A job waits for its cluster, and for the cluster to answer again; nothing is started elsewhere.
        (S.STARTING, PENDING, timedelta(hours=5), timedelta(hours=5), None, Decision.WAIT),
        (S.RUNNING, CUT_OFF, timedelta(hours=5), timedelta(hours=9), None, Decision.WAIT),
        (S.RUNNING, CUT_OFF, DISCONNECTED_AFTER, timedelta(days=2), None, Decision.RECOVER),
        # A job that the cluster lost may live on: its heartbeats count, then their absence.
        (S.RUNNING, MISSING, 2 * SECOND, timedelta(hours=1), None, Decision.WAIT),
        (S.RUNNING, MISSING, MISSING_GRACE, timedelta(hours=1), None, Decision.RECOVER),
        (S.STOPPING, PENDING, SECOND, SECOND, None, Decision.RECOVER),
        # Stopping waits for a process that shows signs of life, not for longer than its timeout.
        (S.STOPPING, ALIVE, SECOND, 20 * SECOND, None, Decision.WAIT),
        (S.STOPPING, ALIVE, SECOND, 31 * SECOND, None, Decision.RECOVER),
        (S.STOPPING, ALIVE, 8 * SECOND, 8 * SECOND, None, Decision.RECOVER),
        (S.STOPPING, MISSING, SECOND, 8 * SECOND, None, Decision.WAIT),
        (S.STOPPING, MISSING, 8 * SECOND, 8 * SECOND, None, Decision.RECOVER),
        (S.STOPPING, DEAD, SECOND, SECOND, None, Decision.RECOVER),
        (S.STOPPING, None, 8 * SECOND, 8 * SECOND, None, Decision.RECOVER),
    ],
)
def test_decisions(
    state: RunState,
    process: ProcessState | None,
    silent: timedelta,
    in_state: timedelta,
    nudged: timedelta | None,
    expected: Decision,
) -> None:
    assert decide(state=state, process=process, silent=silent, in_state=in_state, nudged=nudged) is expected


def test_no_state_waits_forever() -> None:
    forever = timedelta(days=365)
    for state in RunState:
        for process in (None, *ProcessState):
            decision = decide(state=state, process=process, silent=forever, in_state=forever, nudged=None)
            assert (decision is Decision.WAIT) == (state in states.TERMINAL)
