"""Conversion of trajectory events to column values by pure functions."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime

from engine.events.types import GroupMember, StepFinished, TrajectoryFinished, TrajectoryStarted
from engine.patches.sections import submission_hash
from engine.scanners.tool_kinds import action_kind
from engine.types import TestOutcome
from webapp.rollouts.models.trajectories import Trajectory

PASSED = frozenset({TestOutcome.PASSED, TestOutcome.XFAIL})
"""Outcomes of tests that count as passed."""

STEP_COLUMNS = (
    "trajectory_id", "index", "time", "action", "tool", "arguments", "thought", "response",
    "observation", "error", "exit_code", "done", "prompt_tokens", "generated_tokens",
    "thinking_tokens", "cached_tokens", "cost", "provider_state", "truncated_chars", "model_seconds",
    "tool_seconds", "policy_version", "action_hash",
)  # fmt: skip
TEST_COLUMNS = ("trajectory_id", "position", "test_id", "kind", "outcome", "seconds")
TEST_LOG_COLUMNS = ("trajectory_id", "chars", "data")
MAX_LOG_BYTES = 64 << 20
"""Largest complete test log, bytes; graders keep at most 10 MiB of each stream."""
OPENING_COLUMNS = ("trajectory_id", "messages")
IMPORTED_COLUMNS = ("trajectory_id", "fields")
TOKEN_BLOB_COLUMNS = ("trajectory_id", "length", "samples", "data")


def moment(seconds: float) -> datetime:
    """Convert Unix seconds to an aware UTC time."""
    return datetime.fromtimestamp(seconds, tz=UTC)


def step_row(trajectory_id: int, event: StepFinished) -> tuple[object, ...]:
    """Return the values of a step in the order of ``STEP_COLUMNS``."""
    # Sorted, because JSON columns do not keep the order of keys and a replay must have the same hash.
    arguments = json.dumps(event.arguments, ensure_ascii=False, sort_keys=True)
    digest = hashlib.blake2b(f"{event.tool}\0{arguments}".encode(), digest_size=8).hexdigest()
    state = None if event.provider_state is None else json.dumps(event.provider_state)
    return (
        trajectory_id, event.index, moment(event.time), action_kind(event.tool, event.arguments),
        event.tool[:64], arguments, event.thought, event.response, event.observation, event.error,
        event.exit_code, event.done, event.prompt_tokens, event.generated_tokens,
        event.thinking_tokens, event.cached_tokens, event.cost, state, event.truncated_chars,
        event.model_seconds, event.tool_seconds, event.policy_version, digest,
    )  # fmt: skip


def test_rows(trajectory_id: int, event: TrajectoryFinished) -> Iterator[tuple[object, ...]]:
    """Yield the values of each test in the order of ``TEST_COLUMNS``."""
    for position, test in enumerate(event.tests):
        yield (trajectory_id, position, test.test_id, test.kind.value, test.outcome.value, test.seconds)


def log_row(trajectory_id: int, event: TrajectoryFinished) -> tuple[object, ...] | None:
    """Return values in the order of ``TEST_LOG_COLUMNS``; None if the short log is complete.

    Raises:
        ValueError: the log is not base64 of zlib data, or is larger than ``MAX_LOG_BYTES``.
    """
    if not event.whole_test_log:
        return None
    data = base64.b64decode(event.whole_test_log, validate=True)
    stream = zlib.decompressobj()
    try:
        text = stream.decompress(data, MAX_LOG_BYTES)
    except zlib.error as error:
        raise ValueError(f"the whole test log is damaged: {error}") from error
    if not stream.eof:
        raise ValueError(f"the whole test log is cut or larger than {MAX_LOG_BYTES} bytes")
    return (trajectory_id, len(text.decode("utf-8", "replace")), data)


def opening_row(trajectory_id: int, event: TrajectoryFinished) -> tuple[object, ...] | None:
    """Return values in the order of ``OPENING_COLUMNS``; None without an opening."""
    if not event.opening:
        return None
    return (trajectory_id, json.dumps([message.model_dump() for message in event.opening]))


def imported_row(trajectory_id: int, event: TrajectoryFinished) -> tuple[object, ...] | None:
    """Return values in the order of ``IMPORTED_COLUMNS``; None for a trajectory that was not imported."""
    return None if event.imported is None else (trajectory_id, json.dumps(event.imported))


def token_row(trajectory_id: int, event: TrajectoryFinished) -> tuple[object, ...] | None:
    """Return values in the order of ``TOKEN_BLOB_COLUMNS``; None without tokens."""
    if event.tokens is None:
        return None
    return (trajectory_id, event.tokens.length, event.tokens.samples, event.tokens.data)


def start(trajectory: Trajectory, event: TrajectoryStarted) -> None:
    """Set the columns of a new row from its start event."""
    trajectory.sandbox_id = event.sandbox_id[:200]
    trajectory.started_at = trajectory.active_at = moment(event.time)
    trajectory.epoch = event.epoch


def advance(trajectory: Trajectory, event: StepFinished) -> None:
    """Count one more step of a live trajectory."""
    trajectory.num_steps = max(trajectory.num_steps, event.index + 1)
    trajectory.prompt_tokens += event.prompt_tokens
    trajectory.generated_tokens += event.generated_tokens
    trajectory.context_tokens = max(trajectory.context_tokens, event.prompt_tokens + event.generated_tokens)
    trajectory.cached_tokens += event.cached_tokens
    if event.thinking_tokens is None or trajectory.thinking_tokens is None:
        trajectory.thinking_tokens = None
    else:
        trajectory.thinking_tokens += event.thinking_tokens
    if event.cost is not None:
        trajectory.cost = (trajectory.cost or 0.0) + event.cost
    trajectory.active_at = moment(event.time)


def finish(trajectory: Trajectory, event: TrajectoryFinished) -> None:
    """Set the columns from the terminal event."""
    for name in _COPIED:
        setattr(trajectory, name, getattr(event, name))
    trajectory.state = Trajectory.State.FINISHED
    trajectory.epoch = event.epoch
    trajectory.finished_at = trajectory.active_at = moment(event.time)
    trajectory.termination = event.termination.value
    trajectory.findings = [finding.model_dump(mode="json") for finding in event.findings]
    trajectory.replay = event.replay.model_dump() if event.replay is not None else None
    trajectory.verdict = event.verdict.value if event.verdict is not None else ""
    trajectory.counterfactual = event.counterfactual or ""
    trajectory.patch_hash = submission_hash(event.patch)
    trajectory.num_tests = len(event.tests)
    trajectory.num_tests_passed = sum(test.outcome in PASSED for test in event.tests)


def judge(trajectory: Trajectory, member: GroupMember) -> None:
    """Set the columns of advantage and loss mask from the objective's result."""
    trajectory.advantage = member.advantage
    trajectory.baseline = member.baseline
    trajectory.loss_mask = member.loss_mask
    trajectory.mask_reason = member.mask_reason[:64]


_COPIED = (
    "reward", "num_steps", "patch", "test_log", "detail", "error", "failure", "reused_verdict", "extra_runs",
    "attempts", "extra_grading_seconds",
    "prompt", "prompt_hash", "prompt_tokens", "cached_tokens", "generated_tokens", "thinking_tokens", "cost",
    "policy_version_min", "policy_version_max", "queue_seconds", "sandbox_seconds", "pull_seconds",
    "start_seconds", "model_seconds", "tool_seconds", "grading_seconds", "total_seconds",
)  # fmt: skip
