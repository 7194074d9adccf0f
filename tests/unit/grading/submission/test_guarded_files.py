"""Hashes of test files: read in small batches, computed and compared off the event loop."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import cast

import pytest

from engine.errors import PatchError, SandboxError
from engine.grading.evidence import Evidence
from engine.grading.running import guarded_files
from engine.grading.running.guarded_files import GuardedFiles
from engine.patches.trees import FileState
from engine.sandbox.base import Sandbox, SandboxSpec
from engine.types import TaskAnswer
from tests.builders.dataset_builders import new_file

NAMES = [f"tests/test_{number:03}.py" for number in range(100)]


class Box:
    """A sandbox with test files that records the sizes of fetched batches."""

    def __init__(self) -> None:
        self.spec = SandboxSpec(image="i", workdir="/w")
        self.contents = {name: name.encode() for name in NAMES}
        self.fetched: list[int] = []
        self.locked: set[str] = set()

    async def fetch_files(self, names: Sequence[str]) -> dict[str, FileState]:
        self.fetched.append(len(names))
        if not self.locked.isdisjoint(names):
            raise PatchError("the files of the patch cannot be read: Permission denied")
        return {name: FileState(0o100644, self.contents[name]) for name in names if name in self.contents}

    async def read_file(self, path: str, *, max_bytes: int = 0) -> bytes:
        if path in self.locked:
            raise PermissionError(13, "Permission denied")
        raise FileNotFoundError(path)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the threads in which contents are hashed."""
    thread_ids: list[int] = []
    original = guarded_files._hashed

    def hash_here(contents: Mapping[str, bytes]) -> dict[str, str]:
        thread_ids.append(threading.get_ident())
        return original(contents)

    monkeypatch.setattr(guarded_files, "_hashed", hash_here)
    return thread_ids


async def checked_signs(guarded: GuardedFiles, box: Box) -> tuple[str, ...]:
    return (await guarded.checked(cast("Sandbox", box), Evidence())).signs


async def test_contents_are_fetched_in_small_batches_and_hashed_in_threads(threads: list[int]) -> None:
    box = Box()
    answer = TaskAnswer(gold_patch="", test_files=dict.fromkeys(NAMES, ""))
    overlay = {NAMES[0]: b"false"}
    guarded = await GuardedFiles.hashed(cast("Sandbox", box), answer, overlay=overlay)
    assert await checked_signs(guarded, box) == ()
    box.contents |= {NAMES[0]: b"false", NAMES[40]: b"changed"}
    del box.contents[NAMES[50]]
    (sign,) = await checked_signs(guarded, box)
    assert sign.startswith(f"{NAMES[40]} was changed")
    assert max(box.fetched) <= 32
    assert sum(box.fetched) == 3 * len(NAMES)
    assert threads
    assert threading.get_ident() not in threads


@pytest.mark.parametrize("name", ["data/expected.json", "data/page.html", "data/LICENSE", "data/image.png"])
async def test_changed_data_files_of_a_row_are_reported_as_data_signs(name: str) -> None:
    box, evidence = Box(), Evidence(signs=("before",))
    for answer in (
        TaskAnswer(gold_patch="", test_files={name: "true"}),
        TaskAnswer(gold_patch="", binary_files={name: "dHJ1ZQ=="}),
        TaskAnswer(gold_patch="", test_patch=new_file(name, "true\n")),
    ):
        box.contents = {} if answer.test_patch else {name: b"true"}
        guarded = await GuardedFiles.hashed(cast("Sandbox", box), answer, overlay={})
        box.contents[name] = b"true\n" if answer.test_patch else b"true"
        assert (await guarded.checked(cast("Sandbox", box), evidence)) == evidence
        for content in (b"one", b"other"):
            box.contents[name] = content
            after = await guarded.checked(cast("Sandbox", box), evidence)
            assert (after.signs, after.data_signs) == (
                ("before",),
                (f"{name} was changed while the tests ran",),
            )


async def test_files_that_become_unreadable_count_as_changed() -> None:
    data, source, outside = "data/expected.json", NAMES[7], "/data/expected.json"
    box = Box()
    box.contents |= {data: b"true", "data/removed.json": b"true"}
    answer = TaskAnswer(
        gold_patch="",
        test_files=dict.fromkeys([*NAMES, data, "data/removed.json"], ""),
        binary_files={outside: ""},
    )
    guarded = await GuardedFiles.hashed(cast("Sandbox", box), answer, overlay={})
    del box.contents["data/removed.json"]
    box.locked = {data, outside}
    after = await guarded.checked(cast("Sandbox", box), Evidence(data_signs=("before",)))
    assert after.signs == ()
    assert [sign.partition(" cannot be read: ")[0] for sign in after.data_signs] == ["before", data, outside]
    box.locked = {source}
    box.contents[NAMES[8]] = b"changed"
    after = await guarded.checked(cast("Sandbox", box), Evidence())
    assert [sign.partition(" ")[0] for sign in after.signs] == [NAMES[8], source]
    assert after.data_signs == ()
    with pytest.raises(SandboxError, match=f"cannot be hashed: {source} cannot be read"):
        await GuardedFiles.hashed(cast("Sandbox", box), answer, overlay={})


@pytest.mark.parametrize("binary", ["tests/image.png", "tests/test_latin.py"])
async def test_a_test_patch_may_omit_the_content_of_binary_files(binary: str) -> None:
    lossy = (
        f"diff --git a/{binary} b/{binary}\nnew file mode 100644\nindex 0000000..1111111\n"
        f"Binary files /dev/null and b/{binary} differ\n"
    )
    box, name, content = Box(), "tests/test_new.py", "def test_new(): pass\n"
    answer = TaskAnswer(gold_patch="", test_patch=lossy + new_file(name, content))
    guarded = await GuardedFiles.hashed(cast("Sandbox", box), answer, overlay={})
    box.contents[name] = content.encode()
    assert await checked_signs(guarded, box) == ()
    box.contents[name] = b""
    assert len(await checked_signs(guarded, box)) == 1
