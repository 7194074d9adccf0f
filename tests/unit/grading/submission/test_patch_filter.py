"""Files that the patch filter grades or leaves out: shipped helpers, build files, shadowing modules."""

from __future__ import annotations

from typing import Any

from engine.grading.submission.filter import PatchFilter
from engine.patches.apply import Changes
from engine.patches.trees import FileState
from tests.builders.dataset_builders import new_file
from tests.unit.grading.test_patch_apply import task


def left_out(paths: list[str], **answer: Any) -> tuple[str, ...]:
    """Return the new files that are not graded."""
    files = {path: FileState(0o100644, b"x = 1\n") for path in paths}
    return PatchFilter(task(**answer)).admit({}, Changes(files, ())).left_out


def test_siblings_of_helpers_in_the_gold_patch_are_code() -> None:
    siblings = ["pandas/_testing/compat.py", "pandas/_testing/sub/a.py"]
    others = ["pandas/_testing/conftest.py", "pandas/_testing/test_a.py", "pandas/tests/a.py"]
    answer = {
        "gold_patch": new_file("pandas/_testing/asserters.py", ""),
        "fail_to_pass": ("pandas/tests/util/test_x.py::test_x",),
    }
    assert left_out(siblings + others, **answer) == tuple(others)
    assert left_out(siblings) == tuple(siblings)


def test_siblings_of_tests_are_tests_whatever_the_gold_patch_changes() -> None:
    gold = new_file("pkg/test/helper.py", "") + new_file("tests/helper.py", "")
    paths = ["pkg/test/other.py", "tests/other.py"]
    assert left_out(paths, gold_patch=gold, fail_to_pass=("pkg/test/test_x.py::test_x",)) == tuple(paths)
    assert left_out(paths, gold_patch=gold, test_files={"pkg/test/check.py": ""}) == tuple(paths)
    assert left_out(paths, gold_patch=gold, fail_to_pass=("tests/test_x.py::test_x",)) == ("tests/other.py",)


def test_build_files_are_graded_if_only_the_product_changes() -> None:
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
    filtered = PatchFilter(task()).admit(before, changes)
    assert list(filtered.changes.files) == ["CMakeLists.txt"]
    assert filtered.left_out == ("src/CMakeLists.txt", "x/CMakeLists.txt", "y/CMakeLists.txt")


def test_tasks_with_tests_outside_the_tree_grade_new_build_files_and_tests() -> None:
    graded = ["Makefile", "package.json", "CMakeLists.txt", "tests/test_mine.py", "spec/a.rb", "test.sh"]
    refused = ["conftest.py", "pytest.ini", "sitecustomize.py", "calendar.py", "node_modules/a.js"]
    outside = {"gold_patch": "", "test_files": {"/tests/test_outputs.py": ""}}
    assert left_out(graded + refused, **outside) == tuple(sorted(refused))
    inside = {**outside, "test_files": {"/tests/test_outputs.py": "", "checks/a.py": ""}}
    assert set(graded) <= set(left_out(graded, **inside))


def test_packages_in_the_gold_patch_may_share_names_with_runner_modules() -> None:
    gold = new_file("src/packaging/version.py", "") + new_file("types.py", "")
    assert left_out(["src/packaging/_cmp.py", "src/packaging/sub/a.py"], gold_patch=gold) == ()
    others = ["lib/packaging/a.py", "packaging/a.py", "src/json/a.py", "tox.py"]
    assert left_out(others, gold_patch=gold) == tuple(sorted(others))


def test_files_sharing_only_a_name_with_the_gold_patch_are_left_out() -> None:
    gold = new_file("coverage.xml", "") + new_file("types.py", "") + new_file("tox/notes.txt", "")
    paths = ["coverage.py", "types/__init__.py", "tox/a.py", "types.so"]
    assert left_out(paths, gold_patch=gold) == tuple(sorted(paths))


def test_shadowing_modules_beside_a_folder_of_their_name_are_left_out() -> None:
    before = {path: FileState(0o100644, b"") for path in ("platform/build.py", "src/code/x.py")}
    files = {path: FileState(0o100644, b"x = 1\n") for path in ("platform.py", "src/code.py", *before)}
    assert PatchFilter(task()).admit(before, Changes(files, ())).left_out == ("platform.py", "src/code.py")


def test_existing_packages_may_gain_modules_but_no_init_file() -> None:
    before = {"src/calendar/utils.py": FileState(0o100644, b"")}
    files = {
        path: FileState(0o100644, b"x = 1\n")
        for path in ("src/calendar/utils.py", "src/calendar/more.py", "src/calendar/__init__.py")
    }
    assert PatchFilter(task()).admit(before, Changes(files, ())).left_out == ("src/calendar/__init__.py",)


def test_links_that_shadow_runner_modules_are_left_out() -> None:
    files = {name: FileState(0o120000, b"src/mine") for name in ("pytest", "src/json", "mine")}
    assert PatchFilter(task()).admit({}, Changes(files, ())).left_out == ("pytest", "src/json")


def test_spec_folders_in_the_gold_patch_are_code() -> None:
    gold = new_file("src/spec/unit.ts", "")
    paths = ["src/spec/base.ts", "src/spec/base.spec.ts"]
    assert left_out(paths, gold_patch=gold) == ("src/spec/base.spec.ts",)
    assert left_out(["src/spec/base.ts"]) == ("src/spec/base.ts",)
