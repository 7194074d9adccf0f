"""Decisions of the reconciler about a run, without processes."""

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
        # An unclaimed queued run is sent again, but not in every pass.
        (S.QUEUED, None, NOW, SECOND, None, Decision.WAIT),
        (S.QUEUED, None, NOW, RESEND_AFTER + SECOND, None, Decision.RESEND),
        (S.QUEUED, None, NOW, RESEND_AFTER * 3, SECOND, Decision.WAIT),
        (S.QUEUED, None, NOW, timedelta(days=8), SECOND, Decision.EXPIRE),
        (S.DRAFT, None, NOW, timedelta(days=1), None, Decision.WAIT),
        (S.DRAFT, None, NOW, timedelta(days=31), None, Decision.EXPIRE),
        # A worker died between the claim and the start of the process.
        (S.STARTING, None, SECOND, SECOND, None, Decision.WAIT),
        (S.STARTING, None, CLAIM_GRACE, CLAIM_GRACE + SECOND, None, Decision.RECOVER),
        # A worker may need a long time to write the training data of a run.
        (S.STARTING, None, SECOND, timedelta(hours=1), None, Decision.WAIT),
        # A dead process is recovered at once, an unreachable one after its timeout.
        (S.STARTING, DEAD, NOW, SECOND, None, Decision.RECOVER),
        (S.RUNNING, DEAD, NOW, SECOND, None, Decision.RECOVER),
        (S.PAUSED, DEAD, NOW, SECOND, None, Decision.RECOVER),
        (S.RUNNING, AWAY, 14 * SECOND, timedelta(hours=1), None, Decision.WAIT),
        (S.RUNNING, AWAY, 16 * SECOND, timedelta(hours=1), None, Decision.RECOVER),
        # A live local process may be silent while the web server is unreachable.
        (S.RUNNING, ALIVE, 60 * SECOND, timedelta(hours=1), None, Decision.WAIT),
        (S.RUNNING, ALIVE, HUNG_AFTER, timedelta(hours=1), None, Decision.RECOVER),
        # A pending job and an unreachable cluster are waited for; nothing is started elsewhere.
        (S.STARTING, PENDING, timedelta(hours=5), timedelta(hours=5), None, Decision.WAIT),
        (S.RUNNING, CUT_OFF, timedelta(hours=5), timedelta(hours=9), None, Decision.WAIT),
        (S.RUNNING, CUT_OFF, DISCONNECTED_AFTER, timedelta(days=2), None, Decision.RECOVER),
        # A job that its cluster does not list may still run; it is recovered once it is silent.
        (S.RUNNING, MISSING, 2 * SECOND, timedelta(hours=1), None, Decision.WAIT),
        (S.RUNNING, MISSING, MISSING_GRACE, timedelta(hours=1), None, Decision.RECOVER),
        (S.STOPPING, PENDING, SECOND, SECOND, None, Decision.RECOVER),
        # Stopping waits for a process with heartbeats, at most until its timeout.
        (S.STOPPING, ALIVE, SECOND, 20 * SECOND, None, Decision.WAIT),
        (S.STOPPING, ALIVE, SECOND, 31 * SECOND, None, Decision.RECOVER),
        (S.STOPPING, ALIVE, 8 * SECOND, 8 * SECOND, None, Decision.RECOVER),
        (S.STOPPING, MISSING, SECOND, 8 * SECOND, None, Decision.WAIT),
        (S.STOPPING, MISSING, 8 * SECOND, 8 * SECOND, None, Decision.RECOVER),
        (S.STOPPING, DEAD, SECOND, SECOND, None, Decision.RECOVER),
        (S.STOPPING, None, 8 * SECOND, 8 * SECOND, None, Decision.RECOVER),
    ],
)
def test_decision_depends_on_state_process_and_elapsed_times(
    state: RunState,
    process: ProcessState | None,
    silent: timedelta,
    in_state: timedelta,
    nudged: timedelta | None,
    expected: Decision,
) -> None:
    assert decide(state=state, process=process, silent=silent, in_state=in_state, nudged=nudged) is expected


def test_only_terminal_states_wait_forever() -> None:
    forever = timedelta(days=365)
    for state in RunState:
        for process in (None, *ProcessState):
            decision = decide(state=state, process=process, silent=forever, in_state=forever, nudged=None)
            assert (decision is Decision.WAIT) == (state in states.TERMINAL)
