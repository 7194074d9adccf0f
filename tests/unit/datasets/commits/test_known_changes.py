"""Changes of other datasets and near-duplicates."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from engine.config.curation import CommitCuration
from engine.datasets.commits import known_changes
from engine.datasets.commits.filters import Candidate, instance_id
from engine.datasets.commits.known_changes import KnownChanges
from engine.datasets.commits.languages.python.language import Python
from engine.datasets.store import save_dataset, with_content_id
from engine.errors import DatasetError
from engine.patches.diff import diff_texts
from engine.types import Task, TaskAnswer, TaskRow
from tests.unit.datasets.commits.test_filters import commit

LINES = [f"    value_{number} = compute({number})" for number in range(20)]


def candidate(lines: list[str], *, path: str = "pkg/m.py", sha: str = "a", parent: str = "b") -> Candidate:
    """Return a commit that adds lines to a file."""
    old, new = "x = 1\n", "x = 1\n" + "".join(f"{line}\n" for line in lines)
    change = commit((path, old, new), sha=sha * 40, parents=(parent * 40,))
    patch = diff_texts(path, old, new)
    tests = ("tests/test_m.py",)
    language = Python(Path())
    return Candidate(commit=change, language=language, gold_patch=patch, test_paths=tests, entities={})


def stored(home: Path, **task: str) -> None:
    """Store a benchmark of one task whose fix adds ``LINES``."""
    fields: dict[str, Any] = {
        "instance_id": "r-1",
        "repo": "r",
        "base_commit": "c" * 40,
        "problem_statement": "p",
        "image": "i",
    }
    row = TaskRow(
        task=Task(id="", **{**fields, **task}),
        answer=TaskAnswer(gold_patch=candidate(LINES).gold_patch),
        split="test",
    )
    save_dataset(home, "verified", [with_content_id(row)], {})


@pytest.mark.parametrize(
    ("task", "change", "detail"),
    [
        ({}, candidate(LINES[:12] + ["another_line = 1"], path="elsewhere.py"), "92% of the fix's lines"),
        ({}, candidate(["y = 2"], parent="c"), "it has a commit of r-1"),
        ({"instance_id": f"R__{'a' * 12}"}, candidate(["y = 2"]), "the benchmark has R__aaaaaaaaaaaa"),
        ({}, candidate(["y = 2"]), ""),
    ],
)
def test_tasks_of_excluded_datasets_are_contaminated(
    tmp_path: Path, task: dict[str, str], change: Candidate, detail: str
) -> None:
    stored(tmp_path, **task)
    exclusion = KnownChanges.read(["verified"], tmp_path).check("r", change)
    assert (exclusion.by if exclusion else "") == ("contaminated" if detail else "")
    assert detail in (exclusion.detail if exclusion else "")


def test_a_missing_or_own_excluded_dataset_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="there is no dataset 'verified'"):
        KnownChanges.read(["verified"], tmp_path)
    with pytest.raises(ValidationError, match="'out' is the dataset to write"):
        CommitCuration(repositories=("r",), output="out", exclude_datasets=("out",))


@pytest.mark.parametrize(
    ("first", "second", "is_duplicate"),
    [
        (LINES, [f"  {line} " for line in LINES[:-2]], True),
        (LINES, LINES[:12], False),
        (LINES, LINES[:-6] + [f"    other_{number} = 0" for number in range(6)], False),
        (["return 1"], ["return  1"], False),
    ],
)
def test_nearly_equal_changes_of_two_repositories_count_once(
    tmp_path: Path, first: list[str], second: list[str], is_duplicate: bool
) -> None:
    known = KnownChanges.read([], tmp_path)
    one, other = candidate(first), candidate(second, path="lib/n.py", sha="d")
    assert known.check("r", one) is None
    exclusion = known.check("s", other)
    assert (exclusion.by if exclusion else "") == ("duplicate" if is_duplicate else "")
    if exclusion:
        assert instance_id("r", one.commit) in exclusion.detail


def test_the_index_finds_what_a_comparison_of_all_pairs_finds() -> None:
    draw = random.Random(3)
    sets = [frozenset(draw.sample(range(24), draw.randint(4, 20))) for _ in range(120)]
    index = known_changes._SimilarChanges()
    found = []
    for number, lines in enumerate(sets):
        found.append(bool(index.find(lines)))
        index.add(lines, str(number))
    expected = [any(len(a & b) >= 0.8 * len(a | b) for b in sets[:number]) for number, a in enumerate(sets)]
    assert found == expected
    assert True in found
