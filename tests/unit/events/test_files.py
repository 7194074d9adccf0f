"""Atomic replacement of files and folders."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine.files import atomic_write, numbered_folders, replace_folder


@pytest.mark.parametrize("durable", [False, True])
def test_content_is_replaced_without_leftover_files(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "state.json"
    for text in ("one", "two"):
        atomic_write(path, text, durable=durable)
        assert path.read_text() == text
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_content_and_no_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    atomic_write(path, "old")
    with pytest.raises(UnicodeEncodeError):
        atomic_write(path, "\ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_concurrent_writers_do_not_mix_their_content(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    texts = [str(number) * 100_000 for number in range(8)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda text: atomic_write(path, text), texts * 5))
    assert path.read_text() in texts
    assert list(tmp_path.iterdir()) == [path]


def folder(path: Path, content: str) -> Path:
    path.mkdir()
    (path / "a").write_text(content)
    return path


@pytest.fixture(params=["exchanges", "file system without", "library without"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Test with and without support of the file system and the C library for exchanging folders."""
    if request.param == "file system without":
        monkeypatch.setattr("engine.files._RENAME_EXCHANGE", 1 << 30)  # no kernel supports this flag: EINVAL
    if request.param == "library without":
        monkeypatch.setattr("engine.files.ctypes.CDLL", lambda *_, **__: object())


@pytest.mark.usefixtures("system")
@pytest.mark.parametrize("leads", [True, False])
def test_symlink_is_replaced_and_its_target_stays(tmp_path: Path, leads: bool) -> None:
    place, elsewhere = tmp_path / "place", tmp_path / "elsewhere"
    place.mkdir()
    if leads:
        folder(elsewhere, "old")
    target = place / "set"
    target.symlink_to(elsewhere)
    replace_folder(folder(place / ".new", "new"), target)
    assert not target.is_symlink()
    assert (target / "a").read_text() == "new"
    assert [path.name for path in place.iterdir()] == ["set"]
    assert not leads or (elsewhere / "a").read_text() == "old"


@pytest.mark.usefixtures("system")
def test_folder_replaces_another_folder(tmp_path: Path) -> None:
    target = folder(tmp_path / "set", "old")
    replace_folder(folder(tmp_path / ".new", "new"), target)
    assert (target / "a").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_kill_during_a_replacement_leaves_the_new_folder_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old folder is deleted last, so the new one is already in place at a kill."""

    def kill(_path: Path, **_options: object) -> None:
        raise KeyboardInterrupt

    target, new = folder(tmp_path / "set", "old"), folder(tmp_path / ".new", "new")
    monkeypatch.setattr("engine.files.shutil.rmtree", kill)
    with pytest.raises(KeyboardInterrupt):
        replace_folder(new, target)
    assert ((target / "a").read_text(), (new / "a").read_text()) == ("new", "old")


def test_a_folder_that_cannot_be_replaced_stays(tmp_path: Path) -> None:
    target = folder(tmp_path / "set", "old")
    with pytest.raises(OSError, match="No such file"):
        replace_folder(tmp_path / "absent", target)
    assert (target / "a").read_text() == "old"


def test_numbered_folders_are_ordered_by_number(tmp_path: Path) -> None:
    for name in ("100000", "99999", "00007", "7-old", ".00008"):
        (tmp_path / name).mkdir()
    (tmp_path / "100001").write_text("a file")
    assert [path.name for path in numbered_folders(tmp_path)] == ["00007", "99999", "100000"]
    assert numbered_folders(tmp_path / "absent") == []
