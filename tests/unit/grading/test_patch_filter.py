"""Which changed files are graded, by the files themselves: helpers that a product ships, and build files."""

from __future__ import annotations

from typing import Any

from engine.grading.submission.filter import PatchFilter
from engine.patches.apply import Changes
from engine.patches.trees import FileState
from tests.builders.dataset_builders import new_file
from tests.unit.grading.test_patch_apply import task


def left_out(paths: list[str], **answer: Any) -> tuple[str, ...]:
    """Return which of some new files are not graded."""
    files = {path: FileState(0o100644, b"x = 1\n") for path in paths}
    return PatchFilter(task(**answer)).admit({}, Changes(files, ())).left_out


def test_neighbours_of_helpers_that_the_gold_patch_touches_are_code() -> None:
    neighbours = ["pandas/_testing/compat.py", "pandas/_testing/sub/a.py"]
    others = ["pandas/_testing/conftest.py", "pandas/_testing/test_a.py", "pandas/tests/a.py"]
    answer = {
        "gold_patch": new_file("pandas/_testing/asserters.py", ""),
        "fail_to_pass": ("pandas/tests/util/test_x.py::test_x",),
    }
    assert left_out(neighbours + others, **answer) == tuple(others)
    assert left_out(neighbours) == tuple(neighbours)


def test_neighbours_of_tests_are_tests_whatever_the_gold_patch_touches() -> None:
    gold = new_file("pkg/test/helper.py", "") + new_file("tests/helper.py", "")
    paths = ["pkg/test/other.py", "tests/other.py"]
    assert left_out(paths, gold_patch=gold, fail_to_pass=("pkg/test/test_x.py::test_x",)) == tuple(paths)
    assert left_out(paths, gold_patch=gold, test_files={"pkg/test/check.py": ""}) == tuple(paths)
    assert left_out(paths, gold_patch=gold, fail_to_pass=("tests/test_x.py::test_x",)) == ("tests/other.py",)


def test_build_files_are_graded_where_the_product_alone_changes() -> None:
    old, new = b"add_library(a a.c)\n", b"add_library(a a.c b.c)\n"
    before = {
        name: FileState(0o100644, old)
        for name in ("CMakeLists.txt", "src/CMakeLists.txt", "x/CMakeLists.txt")
    }
    changes = Changes(
        {
            "CMakeLists.txt": FileState(0o100644, new),
            "src/CMakeLists.txt": FileState(0o100644, new + b"add_test(a true)\n"),
            "x/CMakeLists.txt": FileState(0o120000, new),
            "y/CMakeLists.txt": FileState(0o100644, new),
        },
        (),
    )
    found = PatchFilter(task()).admit(before, changes)
    assert list(found.changes.files) == ["CMakeLists.txt"]
    assert found.left_out == ("src/CMakeLists.txt", "x/CMakeLists.txt", "y/CMakeLists.txt")
