"""Conversion of detected faults into a task: statement, required tests, gold patch, image."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from engine.datasets.curation.baseline import image_environment
from engine.datasets.curation.candidates import Candidate
from engine.datasets.curation.faults import Fault
from engine.datasets.curation.measurements import Trial
from engine.datasets.curation.statements import Hint, problem_statement
from engine.datasets.store import with_content_id
from engine.patches.diff import diff_texts
from engine.patches.sections import count_changed_lines
from engine.sandbox.local.images import build_image, image_exists
from engine.testing.testrun import driver_command
from engine.testing.toolchain import MOUNT
from engine.types import Task, TaskAnswer, TaskRow

WORKDIR = "/testbed"


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectedFault:
    """A candidate whose faults the tests detect every time."""

    candidate: Candidate
    failing: tuple[str, ...]
    passing: tuple[str, ...]
    exception: str

    @classmethod
    def of(cls, candidate: Candidate, trial: Trial) -> Self:
        """Return a candidate with the outcome of its trial."""
        return cls(
            candidate=candidate,
            failing=trial.failing,
            passing=tuple(test for test in candidate.tests if test not in trial.failing),
            exception=trial.exception,
        )


def make_row(detected: DetectedFault, split: str, names: set[str], *, hint: Hint, home: Path) -> TaskRow:
    """Build the image of detected faults and return their task.

    Args:
        detected: the candidate and the observed test failures.
        split: the row's split.
        names: instance ids in use; the new one is added.
        hint: how exactly the statement locates the symptom.
        home: the data folder.
    """
    candidate = detected.candidate
    faults, source = _placed(candidate), candidate.baseline.source
    gold = diff_texts(candidate.path, candidate.mutated, candidate.source)
    name = _unique_name(candidate, faults, names)
    task = Task(
        id="",
        instance_id=name,
        repo=source.name,
        base_commit=source.revision,
        problem_statement=_statement(detected, faults, hint),
        image=f"local:{_build_image(home, candidate)}",
        workdir=WORKDIR,
        difficulty={
            "function_lines": sum(f.function_last_line - f.function_first_line + 1 for f in faults),
            "num_tests": len(candidate.tests),
            "num_fail_to_pass": len(detected.failing),
            "patch_lines": count_changed_lines(gold),
            "num_candidates": candidate.num_faults,
            **({"num_faults": len(faults)} if len(faults) > 1 else {}),
        },
        metadata={
            "source": source.spec,
            "file": candidate.path,
            "function": ", ".join(fault.function for fault in faults),
        },
    )
    answer = TaskAnswer(
        gold_patch=gold,
        fail_to_pass=detected.failing,
        pass_to_pass=detected.passing,
        test_command=driver_command(candidate.tests, source.roots),
        deterministic=True,
        metadata=_fault_record(candidate.path, faults),
    )
    return with_content_id(TaskRow(task=task, answer=answer, split=split))


def _placed(candidate: Candidate) -> list[Fault]:
    """Return the faults with the line numbers of the file that has all of them."""
    placed, shift = [], 0
    for fault in candidate.faults:
        growth = fault.mutated.count("\n") - fault.original.count("\n")
        fault = replace(
            fault,
            line=fault.line + shift,
            function_first_line=fault.function_first_line + shift,
            function_last_line=fault.function_last_line + shift + growth,
        )
        placed.append(fault)
        shift += growth
    return placed


def _unique_name(candidate: Candidate, faults: Sequence[Fault], names: set[str]) -> str:
    stem = candidate.path.removesuffix(".py").removesuffix("/__init__").rsplit("/", 1)[-1]
    lines = "-".join(str(fault.line) for fault in faults)
    name = f"{candidate.baseline.source.name}__{stem}-{lines}"
    while name in names:
        name += "b"
    names.add(name)
    return name


def _statement(detected: DetectedFault, faults: Sequence[Fault], hint: Hint) -> str:
    """Return the hints at all faults, then the failing tests."""
    parts = []
    for number, fault in enumerate(faults, start=1):
        lines = enumerate(fault.mutated.split("\n"), start=fault.line)
        parts.append(
            problem_statement(
                detected.candidate.path,
                fault.function,
                fault.function_first_line,
                fault.function_last_line,
                [(line, text) for line, text in lines if text.strip()],
                detected.failing if number == len(faults) else (),
                detected.exception,
                hint,
            )
        )
    return "\n".join(filter(None, parts))


def _fault_record(path: str, faults: Sequence[Fault]) -> dict[str, Any]:
    """Return the record of a single fault, or of all as ``faults``."""
    records = [
        {
            "kind": fault.kind,
            "family": fault.family,
            "path": path,
            "line": fault.line,
            "original": fault.original,
            "mutated": fault.mutated,
        }
        for fault in faults
    ]
    return records[0] if len(records) == 1 else {"faults": records}


def _build_image(home: Path, candidate: Candidate) -> str:
    """Return the image whose tree contains the faults; its name includes a hash of its content."""
    baseline = candidate.baseline
    digest = hashlib.sha256(repr((baseline.image, candidate.path, candidate.mutated)).encode()).hexdigest()
    name = f"{baseline.source.name}-{digest[:12]}"
    if image_exists(home, name):
        return name
    staging = Path(tempfile.mkdtemp(prefix=".task-", dir=home))
    try:
        tree = staging / "tree"
        shutil.copytree(baseline.source.tree, tree, copy_function=os.link)
        broken = tree / candidate.path
        broken.unlink()  # a hard link: writing to it would change the source tree
        broken.write_text(candidate.mutated, encoding="utf-8", newline="")
        build_image(
            home,
            name,
            tree,
            workdir=WORKDIR,
            env=image_environment(baseline.source),
            binds={MOUNT: str(baseline.toolchain)},
        )
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return name
