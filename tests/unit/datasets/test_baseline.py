"""What a traced run says about executed lines is a stranger's word."""

from __future__ import annotations

from pathlib import Path

from engine.datasets.curation.baseline import executed_lines
from engine.testing.testrun import TestRun


def test_only_files_of_the_source_count(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "pkg").mkdir(parents=True)
    (tree / "pkg/a.py").write_text("x = 1\n")
    outside = tmp_path / "outside.py"
    outside.write_text("y = 1\n")
    reported = {
        "pkg/a.py": [1],
        "../outside.py": [1],
        str(outside): [1],
        "pkg/../../outside.py": [1],
        "pkg": [1],
    }
    run = TestRun(lines={"t": reported})
    assert executed_lines(run, ["t"], tree) == {"pkg/a.py": {1: ("t",)}}
