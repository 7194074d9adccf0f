"""Files are replaced whole or not at all."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine.files import atomic_write, replace_folder


@pytest.mark.parametrize("durable", [False, True])
def test_content_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path, durable: bool) -> None:
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


def test_writers_at_the_same_time_do_not_mix(tmp_path: Path) -> None:
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
    """A file system and a C library that can exchange folders, or one of them cannot."""
    if request.param == "file system without":
        monkeypatch.setattr("engine.files._RENAME_EXCHANGE", 1 << 30)  # a flag that no kernel knows: EINVAL
    if request.param == "library without":
        monkeypatch.setattr("engine.files.ctypes.CDLL", lambda *_, **__: object())


@pytest.mark.usefixtures("system")
@pytest.mark.parametrize("leads", [True, False])
def test_a_symlink_is_replaced_and_what_it_leads_to_stays(tmp_path: Path, leads: bool) -> None:
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
def test_a_folder_replaces_another_one(tmp_path: Path) -> None:
    target = folder(tmp_path / "set", "old")
    replace_folder(folder(tmp_path / ".new", "new"), target)
    assert (target / "a").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_a_kill_between_two_folders_leaves_one_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleting the old folder is the last step: whoever is killed before has the new one in place."""

    def killed(_path: Path) -> None:
        raise KeyboardInterrupt

    target, new = folder(tmp_path / "set", "old"), folder(tmp_path / ".new", "new")
    monkeypatch.setattr("engine.files.shutil.rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        replace_folder(new, target)
    assert ((target / "a").read_text(), (new / "a").read_text()) == ("new", "old")


def test_a_folder_that_cannot_be_replaced_stays(tmp_path: Path) -> None:
    target = folder(tmp_path / "set", "old")
    with pytest.raises(OSError, match="No such file"):
        replace_folder(tmp_path / "absent", target)
    assert (target / "a").read_text() == "old"
