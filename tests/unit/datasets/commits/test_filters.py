"""Selection of commits by their change."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from engine.config.curation import CommitCuration
from engine.datasets.commits.filters import Candidate, select
from engine.datasets.commits.history import ChangedFile, Commit
from engine.datasets.commits.languages.python.language import Python
from engine.datasets.importers.filters import Exclusion
from engine.patches.diff import diff_texts

CODE = ("pkg/m.py", "def f():\n    return 1\n", "def f():\n    return 2\n")
TEST = ("tests/test_m.py", "", "def test_f():\n    assert f() == 2\n")
CONFIG = CommitCuration(repositories=("repo",), output="out")


def commit(*changes: tuple[str, str, str], message: str = "Fix f.", **fields: Any) -> Commit:
    """Return a commit that changes files from one text to another."""
    values: dict[str, Any] = {
        "sha": "a" * 40,
        "parents": ("b" * 40,),
        "date": datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC),
        "message": message,
        "files": [ChangedFile(path=path, mode="100644", added=1, deleted=1) for path, _, _ in changes],
        "patch": "".join(diff_texts(path, old, new) for path, old, new in changes),
        "contents": {path: (old or None, new or None) for path, old, new in changes},
    }
    return Commit(**{**values, **fields})


def selected(*commits: Commit, **settings: Any) -> list[Candidate | str]:
    config = CONFIG.model_copy(update=settings)
    results = (result for _, result in select(commits, Python(Path()), config, lambda _: None))
    return [result if isinstance(result, Candidate) else result.by for result in results]


def test_a_fix_with_tests_is_a_candidate_without_its_tests_in_the_gold_patch() -> None:
    (candidate,) = selected(commit(CODE, TEST, ("README.md", "a\n", "b\n")))
    assert isinstance(candidate, Candidate)
    assert candidate.test_paths == ("tests/test_m.py",)
    assert "pkg/m.py" in candidate.gold_patch
    assert "tests/test_m.py" not in candidate.gold_patch
    assert "README" not in candidate.gold_patch
    assert candidate.entities["pkg/m.py"].changed == ("f",)
    assert candidate.num_entities == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (commit(CODE, TEST, parents=("b" * 40, "c" * 40), patch=None, contents=None), "merge"),
        (commit(CODE, TEST, parents=(), patch=None, contents=None), "first_commit"),
        (commit(CODE, TEST, message='Revert "Fix f."'), "revert"),
        (commit(CODE, TEST, message="Undo\n\nThis reverts commit 1234567."), "revert"),
        (commit(CODE, TEST, message=f"Fix f.\n\n(cherry picked from commit {'a' * 40})"), "cherry_pick"),
        (commit(), "empty"),
        (commit(TEST), "no_code"),
        (commit(("README.md", "a\n", "b\n")), "no_code"),
        (commit(CODE, TEST, ("pkg/fast.c", "a\n", "b\n")), "native_code"),
        (commit(CODE, TEST, patch=None, contents=None), "unreadable"),
        (commit(("pkg/m.py", CODE[1], CODE[1] + "# done\n"), TEST), "no_real_change"),
        (commit(("pkg/m.py", "print 'x'\n", "print 'y'\n"), TEST), "no_syntax"),
        (commit(CODE), "no_tests"),
        (commit(("pkg/m.py", CODE[1], CODE[1] + "# done\n")), "no_tests"),
    ],
)
def test_other_commits_are_left_out_for_their_reason(change: Commit, reason: str) -> None:
    assert selected(change) == [reason]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"max_lines": 1}, "too_large"),
        ({"max_patch_chars": 120}, "too_large"),
        ({"max_files": 1}, "too_many_files"),
    ],
)
def test_limits_hold_without_tests(settings: dict[str, int], reason: str) -> None:
    many = ("pkg/other.py", "a = 1\n", "a = 2\n")
    assert selected(commit(CODE, many, TEST), **settings) == [reason]
    assert isinstance(selected(commit(CODE, TEST), max_files=1)[0], Candidate)


def test_a_known_change_is_left_out_with_its_detail() -> None:
    known = Exclusion("duplicate", "r__aaa has the same change")
    selection = select([commit(CODE, TEST)], Python(Path()), CONFIG, lambda _: known)
    assert [result for _, result in selection] == [known]
