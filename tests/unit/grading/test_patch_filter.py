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


def test_solutions_that_are_no_patch_write_build_files_and_tests_where_the_task_has_none() -> None:
    asked = ["Makefile", "package.json", "CMakeLists.txt", "tests/test_mine.py", "spec/a.rb", "test.sh"]
    refused = ["conftest.py", "pytest.ini", "sitecustomize.py", "calendar.py", "node_modules/a.js"]
    outside = {"gold_patch": "", "test_files": {"/tests/test_outputs.py": ""}}
    assert left_out(asked + refused, **outside) == tuple(sorted(refused))
    inside = {**outside, "test_files": {"/tests/test_outputs.py": "", "checks/a.py": ""}}
    assert set(asked) <= set(left_out(asked, **inside))


def test_packages_of_the_product_may_be_called_like_others() -> None:
    gold = new_file("src/packaging/version.py", "") + new_file("types.py", "")
    assert left_out(["src/packaging/_cmp.py", "src/packaging/sub/a.py"], gold_patch=gold) == ()
    others = ["lib/packaging/a.py", "packaging/a.py", "src/json/a.py", "tox.py"]
    assert left_out(others, gold_patch=gold) == tuple(sorted(others))


def test_files_that_only_share_a_name_with_the_gold_patch_shadow_as_others_do() -> None:
    gold = new_file("coverage.xml", "") + new_file("types.py", "") + new_file("tox/notes.txt", "")
    paths = ["coverage.py", "types/__init__.py", "tox/a.py", "types.so"]
    assert left_out(paths, gold_patch=gold) == tuple(sorted(paths))


def test_a_module_is_no_part_of_a_folder_of_its_name() -> None:
    before = {path: FileState(0o100644, b"") for path in ("platform/build.py", "src/code/x.py")}
    files = {path: FileState(0o100644, b"x = 1\n") for path in ("platform.py", "src/code.py", *before)}
    assert PatchFilter(task()).admit(before, Changes(files, ())).left_out == ("platform.py", "src/code.py")


def test_packages_that_the_tree_has_may_grow() -> None:
    before = {"src/calendar/utils.py": FileState(0o100644, b"")}
    files = {
        path: FileState(0o100644, b"x = 1\n")
        for path in ("src/calendar/utils.py", "src/calendar/more.py", "src/calendar/__init__.py")
    }
    assert PatchFilter(task()).admit(before, Changes(files, ())).left_out == ("src/calendar/__init__.py",)


def test_links_shadow_the_runner_as_files_do() -> None:
    files = {name: FileState(0o120000, b"src/mine") for name in ("pytest", "src/json", "mine")}
    assert PatchFilter(task()).admit({}, Changes(files, ())).left_out == ("pytest", "src/json")


def test_specifications_are_code_where_the_gold_patch_says_so() -> None:
    gold = new_file("src/spec/unit.ts", "")
    paths = ["src/spec/base.ts", "src/spec/base.spec.ts"]
    assert left_out(paths, gold_patch=gold) == ("src/spec/base.spec.ts",)
    assert left_out(["src/spec/base.ts"]) == ("src/spec/base.ts",)
