"""Rows excluded from an import: filters and decontamination."""
# ruff: noqa: E501  (literal rows)

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config.importing import DecontaminationConfig, FilterConfig
from engine.datasets.importers.run import import_dataset
from engine.datasets.store import load_dataset
from engine.errors import DatasetError
from tests.unit.datasets.importers import rows
from tests.unit.datasets.importers.builders import config, numbered, records, write_lines


def test_filters_count_the_rows_that_each_removed(tmp_path: Path) -> None:
    leaking = rows.STATEMENT + " Write `if value > high_secret_gold_line:` instead."
    published = [
        numbered(0),
        numbered(1, problem_statement="too short"),
        numbered(2, problem_statement=leaking),
        numbered(3, patch=rows.CODE_PATCH + rows.CODE_PATCH.replace("pkg/core.py", "pkg/more.py")),
        numbered(4, repo="other/pkg"),
        numbered(5, meta={}),
    ]
    filters = FilterConfig(
        min_words=5,
        drop_leaking=True,
        where=("num_files<=1", "issue_text_score<=1"),
        repositories=("acme/pkg",),
    )
    source = write_lines(tmp_path / "rows.jsonl", published)
    result = import_dataset(config(source, filters=filters), home=tmp_path)
    assert result.imported == 1
    assert result.excluded_by == {
        "repository": 1, "statement:leaks": 1, "statement:short": 1, "where:issue_text_score": 1, "where:num_files": 1,
    }  # fmt: skip
    assert [record["row"] for record in records(tmp_path, "excluded.jsonl")] == [1, 2, 3, 4, 5]
    provenance = load_dataset(tmp_path, "d").provenance["imports"][0]
    assert provenance["excluded_by"] == result.excluded_by
    assert provenance["settings"]["filters"]["min_words"] == 5
    with pytest.raises(ValueError, match="no comparison"):
        FilterConfig(where=("patch_lines",))


def test_decontamination_matches_repository_instance_commit_text_and_fix(tmp_path: Path) -> None:
    other = "0" * 40
    far = "Nothing in here has to do with any of the others, it is about saving files in the wrong folder."
    fix = "".join(f"+    the_line_number_{n} = compute_something({n})\n" for n in range(6))
    long_patch = f"diff --git a/p.py b/p.py\n--- a/p.py\n+++ b/p.py\n@@ -1,0 +1,6 @@\n{fix}"
    verified = write_lines(tmp_path / "verified.jsonl", [
        rows.swe_bench(instance_id="sympy__sympy-1", repo="sympy/sympy", base_commit="a" * 40, problem_statement=far),
        rows.swe_bench(instance_id="acme__pkg-3", base_commit="b" * 40, problem_statement=f"{far} Twice.", patch=long_patch),
        rows.swe_bench(instance_id="x__y-1", base_commit="c" * 40),
    ])  # fmt: skip
    unlike = (
        "Parsing an empty header line raises IndexError when the stream ends right after the first colon."
    )
    base = {"base_commit": other, "problem_statement": unlike}
    published = [
        numbered(0, **{**base, "repo": "sympy"}),
        numbered(1, **{**base, "repo": "swesmith/django__django.01234567"}),
        numbered(3, **{**base, "instance_id": "acme__pkg-3"}),
        numbered(4, **{**base, "base_commit": "A" * 40}),
        numbered(5, **{**base, "problem_statement": f"As reported: {rows.STATEMENT.upper()}"}),
        numbered(6, **{**base, "patch": long_patch.replace("p.py", "q.py")}),
        numbered(7, **base),
    ]
    source = write_lines(tmp_path / "rows.jsonl", published)
    both = DecontaminationConfig(verified_repositories=True, reference=str(verified))
    result = import_dataset(config(source, decontamination=both), home=tmp_path)
    assert result.excluded_by == {
        "decontamination:repository": 2, "decontamination:instance": 1, "decontamination:commit": 1,
        "decontamination:statement": 1, "decontamination:fix": 1,
    }  # fmt: skip
    assert [row.task.instance_id for row in load_dataset(tmp_path, "d").rows] == ["acme__pkg-7"]
    details = [record["detail"] for record in records(tmp_path, "excluded.jsonl")]
    assert "n-grams are those of x__y-1" in details[4]
    assert load_dataset(tmp_path, "d").provenance["imports"][0]["decontamination_references"] == 3


def test_malformed_decontamination_reference_is_named(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "rows.jsonl", [numbered(0)])
    wrong = write_lines(tmp_path / "wrong.jsonl", [{"instance_id": "a"}])
    with pytest.raises(DatasetError, match="decontamination.reference: missing"):
        import_dataset(
            config(source, decontamination=DecontaminationConfig(reference=str(wrong))), home=tmp_path
        )
