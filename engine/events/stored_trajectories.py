"""Stored trajectories as JSON lines, which the web application provides to runs that train on them.

A run folder's ``trajectories.jsonl`` holds one trajectory a line, complete with its steps and, where the
policy's tokens were recorded, its token block.
"""

from __future__ import annotations

import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import Field, FiniteFloat, ValidationError

from engine.errors import DatasetError
from engine.events.record import Record
from engine.events.token_block import TokenField
from engine.reading import read_bounded_lines
from engine.types import TerminationReason, Verdict

LONGEST_LINE = 64 << 20
"""Maximum length of a line, bytes."""
TRAJECTORIES_FILE = "trajectories.jsonl"
"""File of a run folder with the trajectories that the run trains on."""


class StoredStep(Record):
    """One turn; fields as in ``StepFinished``."""

    thought: str = ""
    response: str = ""
    tool: str = ""
    """Tool name; empty when no call could be parsed."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    observation: str = ""
    error: str = ""


class StoredAnnotation(Record):
    """A label or comment of a person."""

    kind: str
    """``label`` or ``comment``."""
    text: str
    step: int | None = None
    """Index of the step; None for the whole trajectory."""
    author: str = ""


class StoredTrajectory(Record):
    """A finished rollout with its task."""

    id: int
    """Number of the trajectory in the database; in files of other origin its position."""
    run: int = 0
    """Number of the run that made it; 0 in files of other origin."""
    model: str = ""
    """Checkpoint or name of the sampled model; empty where it is unknown."""
    task_id: str
    instance_id: str
    problem_statement: str
    workdir: str = "/testbed"
    metadata: dict[str, Any] = Field(default_factory=dict)
    """The task's metadata, which prompts may quote."""
    verdict: Verdict | None = None
    reward: FiniteFloat | None = None
    termination: TerminationReason | None = None
    patch: str = ""
    steps: list[StoredStep]
    tokens: TokenField | None = None
    """Tokens as the policy read and sampled them; None where there are none."""
    annotations: list[StoredAnnotation] = Field(default_factory=list)


def write_trajectories(path: Path, trajectories: Iterable[StoredTrajectory]) -> int:
    """Write a file atomically, readable by its owner; return the count.

    Each writer has its own draft, so concurrent writers do not interfere.
    """
    count = 0
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".draft", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w") as file:
            for trajectory in trajectories:
                file.write(trajectory.model_dump_json() + "\n")
                count += 1
            file.flush()
            os.fsync(file.fileno())
        Path(draft).rename(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
    return count


def read_trajectories(path: Path) -> Iterator[StoredTrajectory]:
    """Yield the trajectories of a file.

    Raises:
        DatasetError: the file is missing, or a line (``row``, from 0) is not a trajectory.
    """
    try:
        for number, line, problem in read_bounded_lines(path, longest=LONGEST_LINE):
            if problem:
                raise DatasetError(problem, row=number - 1)
            yield _parsed(line, number - 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DatasetError(f"cannot read the trajectories in {path}: {error}") from error


def _parsed(line: bytes, number: int) -> StoredTrajectory:
    try:
        return StoredTrajectory.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise DatasetError(first["msg"], row=number, field=place) from error
