"""The agent's commit of files: atomic and without leftovers."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from engine.sandbox.agent.files import commit

_FILE, _LINK = 0o100644, 0o120000


def request(root: Path, files: dict[str, bytes], deleted: tuple[str, ...] = ()) -> dict[str, Any]:
    rows = [[name, _LINK if name.startswith("link") else _FILE, data] for name, data in files.items()]
    return {"path": str(root), "files": rows, "deleted": list(deleted)}


def state(root: Path) -> dict[str, tuple[int, bytes]]:
    entries = {}
    for path in sorted(root.rglob("*")):
        if path.is_symlink():
            entries[path.relative_to(root).as_posix()] = (_LINK, os.fsencode(os.readlink(path)))
        else:
            mode = path.stat().st_mode
            content = path.read_bytes() if stat.S_ISREG(mode) else b""
            entries[path.relative_to(root).as_posix()] = (mode, content)
    return entries


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "a.py").write_bytes(b"old a")
    (tmp_path / "x.py").write_bytes(b"old x")
    (tmp_path / "x.py").chmod(0o750)
    (tmp_path / "zz").write_bytes(b"a file")
    (tmp_path / "link").symlink_to("x.py")
    return tmp_path


@pytest.mark.parametrize(
    ("files", "deleted"),
    [
        ({"x.py": b"new", "zz/b.py": b"below a file"}, ()),
        ({"new/deep.py": b"new", "link": b"zz", "x.py": b"new", "zz/b.py": b"below a file"}, ("pkg/a.py",)),
        ({"x.py": b"new", "pkg": b"where a folder with a file is"}, ()),
        ({"x.py": b"new"}, ("pkg/a.py", "absent.py")),
        ({"x.py": b"new"}, ("zz", "pkg")),
    ],
)
def test_failed_commit_changes_nothing(root: Path, files: dict[str, bytes], deleted: tuple[str, ...]) -> None:
    before = state(root)
    for _ in range(2):
        with pytest.raises(OSError):
            commit(request(root, files, deleted))
        assert state(root) == before
    commit(request(root, {"x.py": b"new", "y.py": b"new"}))
    assert set(state(root)) == {*before, "y.py"}


@pytest.mark.parametrize("problem", [OSError, KeyboardInterrupt, MemoryError])
def test_interrupted_commit_changes_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch, problem: type[BaseException]
) -> None:
    for folder in ("empty/deeper", "both/__pycache__", "place/__pycache__"):
        (root / folder).mkdir(parents=True)
    (root / "place" / "__pycache__" / "a.cpython-311.pyc").write_bytes(b"bytecode")
    files = {"empty/deeper/a.py": b"", "both/b.py": b"", "made/c.py": b"", "place": b"a file"}
    (root / "place").chmod(0o700)
    before, rename = state(root), os.rename
    for steps in range(6):
        done: list[str] = []

        def failing_rename(source: str, target: str, done: list[str] = done, steps: int = steps) -> None:
            if len(done) == steps:
                done.append(target)
                raise problem
            done.append(target)
            rename(source, target)

        monkeypatch.setattr("engine.sandbox.agent.files.os.rename", failing_rename)
        with pytest.raises(problem):
            commit(request(root, files, ("pkg/a.py",)))
        assert state(root) == before


def test_commit_does_not_replace_a_folder_of_links_as_empty(root: Path) -> None:
    (root / "links").mkdir()
    (root / "links" / "up").symlink_to("..")
    before = state(root)
    with pytest.raises(OSError, match="not empty"):
        commit(request(root, {"x.py": b"new", "links": b"a file"}))
    assert state(root) == before


def test_commit_replaces_files_links_and_folders_by_each_other(root: Path) -> None:
    cache = root / "pkg" / "__pycache__"
    cache.mkdir()
    (cache / "a.cpython-311.pyc").write_bytes(b"bytecode")
    commit(request(root, {"pkg": b"a file now", "zz/b.py": b"new", "link": b"zz"}, ("pkg/a.py", "zz")))
    entries = state(root)
    assert sorted(entries) == ["link", "pkg", "x.py", "zz", "zz/b.py"]
    assert entries["pkg"] == (_FILE, b"a file now")
    assert entries["zz/b.py"] == (_FILE, b"new")
    assert entries["link"] == (_LINK, b"zz")


def test_commit_removes_the_emptied_folder_of_a_deleted_file(root: Path) -> None:
    commit(request(root, {}, ("pkg/a.py",)))
    assert sorted(state(root)) == ["link", "x.py", "zz"]
