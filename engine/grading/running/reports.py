"""Evidence in files that tests leave in their sandbox: the sealed record, a JUnit report, rewards."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import replace

from engine.grading.evidence import SEVERITY, Evidence
from engine.grading.rules.reward_file import parse_rewards, reward_files, reward_of
from engine.grading.running.nonces import Nonces
from engine.sandbox.base import Sandbox
from engine.testing.testrun import Record, TestCase, parse_junit, read_record
from engine.types import GradeRule, TaskAnswer

_REPORT_BYTES = 64 << 20
_REWARD_BYTES = 1 << 20


async def read_reports(box: Sandbox, answer: TaskAnswer, nonces: Nonces, evidence: Evidence) -> Evidence:
    """Return the evidence with the files that tests wrote; call it after all of their processes are dead."""
    record, forged = await _record(box, nonces)
    cases: Mapping[tuple[str, str], TestCase] = {}
    rewards: Mapping[str, float] = {}
    if answer.grade_rule is GradeRule.JUNIT:
        cases = await _cases(box, nonces.junit)
    elif answer.grade_rule is GradeRule.REWARD_FILE:
        rewards = await _rewards(box, answer)
    return replace(
        evidence,
        problem="the test runner's record was forged" if forged else evidence.problem,
        forged=evidence.forged or forged,
        signs=record.altered if record is not None else (),
        data_signs=record.changed if record is not None else (),
        record_wanted=bool(nonces.key),
        record=record,
        cases=cases,
        rewards=rewards,
    )


async def _record(box: Sandbox, nonces: Nonces) -> tuple[Record | None, bool]:
    """Return the sealed record, and whether there is an unsealed one."""
    if not nonces.key:
        return None, False
    try:
        data = await box.read_file(f"{nonces.folder}/record", max_bytes=_REPORT_BYTES)
        return await asyncio.to_thread(unsealed, data, nonces.key.encode()), False
    except FileNotFoundError:
        return None, False
    except (OSError, ValueError):
        return None, True


def unsealed(data: bytes, key: bytes) -> Record | None:
    """Return the content of a record. Raises ValueError if it is not sealed with the key."""
    signature, _, payload = data.partition(b"\n")
    if not hmac.compare_digest(signature, hmac.new(key, payload, hashlib.sha256).hexdigest().encode()):
        raise ValueError("the seal is broken")
    return _merged([read_record(part) for part in payload.split(b"\n\n") if part])


def _merged(records: Sequence[Record]) -> Record | None:
    """Return several sessions merged into one; of several outcomes of a test the worst counts.

    Outcomes of unfinished sessions are ignored; None if none finished and no file was changed.
    """
    ended = [record for record in records if record.exit_status >= 0]
    outcomes: dict[str, str] = {}
    for record in ended:
        for name, outcome in record.outcomes.items():
            outcomes[name] = max(outcomes.get(name, outcome), outcome, key=SEVERITY.index)
    altered = tuple(name for record in records for name in record.altered)
    changed = tuple(name for record in records for name in record.changed)
    if not ended and not altered and not changed:
        return None
    complete = len(ended) == len(records)
    status = max(record.exit_status for record in ended) if complete else -1
    return Record(exit_status=status, altered=altered, outcomes=outcomes, changed=changed)


async def _cases(box: Sandbox, path: str) -> Mapping[tuple[str, str], TestCase]:
    try:
        data = await box.read_file(path, max_bytes=_REPORT_BYTES)
        return await asyncio.to_thread(parse_junit, data)
    except (OSError, ValueError):
        return {}


async def _rewards(box: Sandbox, answer: TaskAnswer) -> Mapping[str, float]:
    """Return the rewards in the verifier's reward file; of several files the one with the lowest counts.

    Empty if a file exists but cannot be read: the verifier may not have finished writing its reward.
    """
    rewards: list[Mapping[str, float]] = []
    for path in reward_files(answer):
        try:
            data = await box.read_file(path, max_bytes=_REWARD_BYTES)
            rewards.append(await asyncio.to_thread(parse_rewards, path, data.decode("utf-8", "replace")))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, TypeError):
            return {}
    return min(rewards, key=reward_of, default={})
