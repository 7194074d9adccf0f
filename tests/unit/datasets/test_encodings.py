"""Sources with files in other encodings, malformed metadata, FIFOs or paths outside of their tree."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.datasets.curation.baseline import Baseline, executed_lines
from engine.datasets.curation.candidates import find_candidates
from engine.datasets.sources.fetch import Source, fetch_source
from engine.errors import DatasetError
from engine.testing.testrun import TestRun

_MODULE = (
    "# -*- coding: latin-1 -*-\n# caf\u00e9\ndef clamp(value, low):\n    if value < low:\n"
    "        return low\n    return value\n"
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    (tree / "pkg").mkdir(parents=True)
    (tree / "pkg" / "__init__.py").touch()
    (tree / "pkg" / "latin.py").write_bytes(_MODULE.encode("latin-1"))
    (tree / "pkg" / "utf.py").write_bytes(_MODULE.replace("latin-1", "utf-8").encode())
    (tree / "tests").mkdir()
    return tree


def test_modules_that_are_not_utf_8_have_no_candidates(tree: Path) -> None:
    source = Source(
        spec="toy", name="toy", revision="1", tree=tree, packages=("pkg",), roots=(".",), tests=("tests",),
        requirements=(),
    )  # fmt: skip
    executed = dict.fromkeys((4, 5, 6), ("tests/t.py::low",))
    baseline = Baseline(
        source=source,
        image="toy-1",
        toolchain=tree,
        seconds={"tests/t.py::low": 0.25},
        executed_by={"pkg/latin.py": executed, "pkg/utf.py": executed},
    )
    assert {c.path for c in find_candidates(baseline, max_function_lines=20)} == {"pkg/utf.py"}


def test_an_author_in_latin_1_does_not_hide_the_requirements(tree: Path, tmp_path: Path) -> None:
    metadata = "Name: pkg\nAuthor: Ren\u00e9\nRequires-Dist: attrs>=23\n\nText.\n"
    (tree / "PKG-INFO").write_bytes(metadata.encode("latin-1"))
    assert fetch_source(str(tree), tmp_path / "home").requirements == ("attrs>=23",)


def test_a_project_file_that_is_not_utf_8_makes_the_source_unusable(tree: Path, tmp_path: Path) -> None:
    (tree / "pyproject.toml").write_bytes('[project]\nname = "Ren\u00e9"\n'.encode("latin-1"))
    with pytest.raises(DatasetError, match="pyproject.toml of the source is malformed"):
        fetch_source(str(tree), tmp_path / "home")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("pyproject.toml", "a = " + "[" * 100_000),
        ("pyproject.toml", "#" * (2 << 20)),
        ("PKG-INFO", "x" * (2 << 20)),
    ],
    ids=["deep", "long", "long metadata"],
)
def test_metadata_that_is_nested_deeply_or_huge_makes_the_source_unusable(
    tree: Path, tmp_path: Path, name: str, content: str
) -> None:
    (tree / name).write_text(content)
    with pytest.raises(DatasetError, match=f"{name} of the source is malformed"):
        fetch_source(str(tree), tmp_path / "home")


def test_a_fifo_of_the_source_is_left_out(tree: Path, tmp_path: Path) -> None:
    os.mkfifo(tree / "pkg" / "fifo")
    assert not (fetch_source(str(tree), tmp_path / "home").tree / "pkg" / "fifo").exists()


def test_executed_lines_ignore_files_outside_of_the_source(tree: Path, tmp_path: Path) -> None:
    """The executed lines that a traced run reports are untrusted."""
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
