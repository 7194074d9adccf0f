"""Health of a dataset: findings of validation and decisions of people, in ``validation.jsonl``.

The append-only file, beside the dataset's ``tasks.jsonl``, keeps the whole history:

    {"type": "validation", "task_id": …, "content": …, "status": "flaky", …}    one per row and run
    {"type": "decision", "task_id": …, "content": …, "quarantined": false, …}   one per manual change
    {"type": "proof", "task_id": …, "content": …, "coverage": {…}, …}           one per proof of mutated tests

A record applies to a row only while the row's content is unchanged. ``row_health`` combines the records:
a person's decision overrides every validation, else the newest validation decides.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from filelock import FileLock
from pydantic import Field, TypeAdapter, ValidationError

from engine.errors import DatasetError
from engine.events.record import Int, Record, Time
from engine.events.redaction import redact_line
from engine.redaction import redactor
from engine.types import Task, TaskAnswer, Verdict

FILE = "validation.jsonl"
SOLVE_RATES_FILE = "solve_rates.json"
"""``{"format": 1, "measured_at": Unix seconds, "tasks": {task id: [solved, graded]}}``."""
REFERENCES_FOLDER = "references"
"""Folder of the references, made by runs of gold patches; as secret as ``answers.jsonl``."""
KEPT = (FILE, SOLVE_RATES_FILE, REFERENCES_FOLDER)
"""Files and folders kept when the dataset's rows are replaced; they refer to rows by id."""
MAX_NAMED = 50
"""Maximum number of flaky tests named per row; the rest are counted."""


class RowStatus(StrEnum):
    """Result of the validation of a row."""

    VALID = "valid"
    """The row fails without changes and passes with the gold patch, every time."""
    NOOP_PASSES = "noop_passes"
    """The row passes without any change: there is nothing to solve."""
    GOLD_FAILS = "gold_fails"
    """The gold patch does not solve the row."""
    FLAKY = "flaky"
    """Repeated gradings of the same patch differed, in the verdict or in a required test."""
    INFRA = "infra"
    """Infrastructure failed in every attempt: the row's health is unknown."""


class SideOutcome(StrEnum):
    """Result of repeated gradings of one patch."""

    PASSED = "passed"
    FAILED = "failed"
    FLAKY = "flaky"
    INFRA = "infra"


FAULTS = frozenset({RowStatus.NOOP_PASSES, RowStatus.GOLD_FAILS, RowStatus.FLAKY})
"""Statuses that are the row's own faults and lead to quarantine."""


class Side(Record):
    """Repeated gradings of one patch: the empty one, or the gold patch."""

    outcome: SideOutcome
    verdicts: list[Verdict]
    """Verdicts of the gradings, in order."""
    seconds: list[float]
    """Duration of each grading, sandbox start included, seconds."""
    detail: str = ""
    """Detail of the first grading that did not end as expected."""


class MutantCoverage(Record):
    """Tests that a row's solution fixes, by their best proven mutant; see ``engine.grading``.

    Rules that name no tests count test functions.
    """

    value: Int = Field(default=0, ge=0)
    """Tests with another expected value."""
    changed: Int = Field(default=0, ge=0)
    """Tests with a changed condition at best."""
    added: Int = Field(default=0, ge=0)
    """Tests with an added false assertion only."""
    none: Int = Field(default=0, ge=0)
    """Tests without a mutant."""
    variants: Int = Field(default=0, ge=0)
    """Number of sets of mutated tests to draw from."""
    note: str = Field(default="", max_length=500)
    """Reason why there are no mutants."""


class WrongPatchCounts(Record):
    """Gradings of one kind of wrong patches."""

    graded: Int = Field(ge=0)
    rejected: Int = Field(ge=0)


class TestStrength(Record):
    """Gradings of plausible wrong patches by a row's tests, see ``engine.datasets.wrong_patches``."""

    __test__ = False
    kinds: dict[str, WrongPatchCounts]
    """Kind of patch → its gradings."""
    passed: list[str] = Field(default_factory=list, max_length=MAX_NAMED)
    """Patches that the tests did not reject, one line each; as secret as the row's answer."""

    @property
    def graded(self) -> int:
        """Return the number of wrong patches with a verdict."""
        return sum(counts.graded for counts in self.kinds.values())

    @property
    def rejected(self) -> int:
        """Return the number of wrong patches that the tests rejected."""
        return sum(counts.rejected for counts in self.kinds.values())

    @property
    def share(self) -> float | None:
        """Return the share of rejected patches; None where none was graded."""
        return self.rejected / self.graded if self.graded else None


class RowRecord(Record):
    """One record about a row; a subclass names its ``type``."""

    id: str = Field(min_length=1, max_length=200)
    """A repeated record has no effect."""
    task_id: str = Field(min_length=1, max_length=64)
    content: str = Field(max_length=16)
    """``content_hash`` of the row."""
    time: Time


class ValidationRecord(RowRecord):
    """Finding of one validation run about one row; its id is ``<run>/<task>``."""

    type: Literal["validation"] = "validation"
    run_id: str = Field(max_length=100)
    status: RowStatus
    noop: Side
    gold: Side
    repeats: Int = Field(ge=1)
    flaky_tests: list[str] = Field(default_factory=list, max_length=MAX_NAMED)
    num_flaky_tests: Int = 0
    reason: str = Field(default="", max_length=2000)
    """Reason of the status, one sentence; empty for a valid row."""
    quarantine: bool = True
    """Whether the run was configured to quarantine faulty rows."""
    coverage: MutantCoverage | None = None
    """Mutated tests; None where none were tried, as for every row that is not valid."""
    strength: TestStrength | None = None
    """Test strength; None where it was not measured, as for every row that is not valid."""

    def without_secrets(self) -> ValidationRecord:
        """Return the record without what tells the row's answer, for everyone to see."""
        if self.strength is None:
            return self
        return self.model_copy(update={"strength": self.strength.model_copy(update={"passed": []})})


class ProofRecord(RowRecord):
    """Finding of one proof of a row's mutated tests, by curation, at first use or by a validation."""

    type: Literal["proof"] = "proof"
    coverage: MutantCoverage | None = None
    """None where the proof failed."""
    problem: str = Field(default="", max_length=2000)
    """Reason why the proof failed, one sentence: submissions are not audited."""


class DecisionRecord(RowRecord):
    """Decision of a person to quarantine or release a row."""

    type: Literal["decision"] = "decision"
    quarantined: bool
    reason: str = Field(min_length=1, max_length=2000)
    by: str = Field(max_length=150)


HealthRecord = ValidationRecord | DecisionRecord | ProofRecord
_ADAPTER: TypeAdapter[HealthRecord] = TypeAdapter(Annotated[HealthRecord, Field(discriminator="type")])


@dataclass(frozen=True, slots=True, kw_only=True)
class RowHealth:
    """Current health of a row."""

    status: RowStatus | None = None
    """Status of the newest validation; None while there is none."""
    quarantined: bool = False
    reason: str = ""
    """Reason for the quarantine, or for the release by a person."""
    by: str = ""
    """Person who decided; empty where a validation did."""
    strength: float | None = None
    """Share of wrong patches that the tests rejected in the newest validation that measured it."""


def content_hash(task: Mapping[str, Any], answer: Mapping[str, Any]) -> str:
    """Return 16 hex digits over a row's two halves as ``tasks.jsonl`` and ``answers.jsonl`` store them.

    Empty and default values are left out, so that a field added by a later version does not
    change the hash. A row edited by hand keeps its id but not its hash.
    """
    parts = [_told(task, Task), _told(answer, TaskAnswer)]
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _told(row: Mapping[str, Any], kind: type[Task] | type[TaskAnswer]) -> dict[str, Any]:
    defaults = {field.name: field.default for field in fields(kind) if field.default is not MISSING}
    names = {field.name for field in fields(kind)} - {"id"}
    return {
        name: _canonical(value)
        for name, value in row.items()
        if name in names and value and value != defaults.get(name, MISSING)
    }


def _canonical(value: Any) -> Any:
    """Normalise whole numbers written as floats, so that equal rows have equal hashes."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    return value


def append(folder: Path, records: Iterable[HealthRecord]) -> None:
    """Add records to the dataset in ``folder``, durably; other processes may do so at the same time.

    Raises:
        DatasetError: the dataset is missing, or cannot be written.
    """
    lines = b"".join(redact_line(record.model_dump_json().encode(), redactor()) + b"\n" for record in records)
    try:
        with locked(folder):
            descriptor = os.open(folder / FILE, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(descriptor, "r+b", buffering=0) as file:
                size = file.seek(0, os.SEEK_END)
                if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
                    lines = b"\n" + lines  # after a record that a crash cut off
                file.write(lines)
                os.fsync(file.fileno())
    except OSError as error:
        raise DatasetError(f"cannot write {folder / FILE}: {error.strerror}") from error


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of the datasets folder, which blocks appending records and replacing datasets."""
    with FileLock(folder.parent.with_name(f"{folder.parent.name}.lock")):
        yield


def read(folder: Path) -> list[HealthRecord]:
    """Return all records of the dataset in ``folder``, oldest first; none where nothing was validated.

    A line cut off by a crash is skipped.

    Raises:
        DatasetError: a complete line is not a record; the message names the line.
    """
    try:
        lines = (folder / FILE).read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DatasetError(f"cannot read {folder / FILE}: {error.strerror}") from error
    records = []
    for number, line in enumerate(lines):
        if not line.strip() or not line.rstrip().endswith(b"}"):
            continue
        try:
            records.append(_ADAPTER.validate_json(line))
        except ValidationError as error:
            if _is_json(line):
                first = error.errors(include_url=False, include_input=False)[0]
                field = ".".join(map(str, first["loc"]))
                raise DatasetError(f"{FILE}: {first['msg']}", row=number, field=field) from None
    return records


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def row_health(records: Sequence[HealthRecord], contents: Mapping[str, str]) -> dict[str, RowHealth]:
    """Return the current health of rows by task id; rows without an applicable record are left out.

    Args:
        records: oldest first.
        contents: task id → ``content_hash`` of the rows as they are now.
    """
    validations: dict[str, ValidationRecord] = {}
    decisions: dict[str, DecisionRecord] = {}
    strengths: dict[str, float] = {}
    for record in records:
        if contents.get(record.task_id) != record.content:
            continue
        if isinstance(record, ValidationRecord):
            validations[record.task_id] = record
            if record.strength is not None and record.strength.share is not None:
                strengths[record.task_id] = record.strength.share
        elif isinstance(record, DecisionRecord):
            decisions[record.task_id] = record
    return {
        task_id: _row_health(validations.get(task_id), decisions.get(task_id), strengths.get(task_id))
        for task_id in {**validations, **decisions}
    }


def _row_health(
    validation: ValidationRecord | None, decision: DecisionRecord | None, strength: float | None
) -> RowHealth:
    status = validation.status if validation else None
    if decision is not None:
        return RowHealth(
            status=status,
            quarantined=decision.quarantined,
            reason=decision.reason,
            by=decision.by,
            strength=strength,
        )
    assert validation is not None
    quarantined = validation.quarantine and validation.status in FAULTS
    return RowHealth(status=status, quarantined=quarantined, reason=validation.reason, strength=strength)
