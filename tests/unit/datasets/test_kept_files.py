"""Files that curations keep: which of them something uses, and removal of the others."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from engine.datasets import kept_files as kept_files_module
from engine.datasets.kept_files import kept_files, remove_unused, using
from engine.datasets.store import save_dataset
from engine.errors import DatasetError
from engine.sandbox.local.images import build_image, image_exists
from engine.testing.toolchain import MOUNT
from tests.builders.rollout_builders import make_row

SPEC = "https://example.org/shelf.git"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a data folder with used, unused and recent files; those of the last hour count as recent."""
    home = tmp_path / "home"
    for name in ("old", "shared", "new"):
        (home / "toolchain" / name).mkdir(parents=True)
        (home / "toolchain" / name / "pytest.py").write_text("x" * 9000)
    (tmp_path / "tree").mkdir()
    for image, toolchain in (("row", "shared"), ("other", "shared"), ("stale", "old"), ("fresh", "new")):
        build_image(home, image, tmp_path / "tree", binds={MOUNT: str(home / "toolchain" / toolchain)})
    build_image(home, "own", tmp_path / "tree")
    row = make_row()
    save_dataset(
        home,
        "original",
        [replace(row, task=replace(row.task, image="local:row"))],
        {"original": {"sources": {SPEC: "head"}}},
    )
    used = hashlib.sha256(SPEC.encode()).hexdigest()[:12]
    for name in (f"shelf-{used}", "gone-0123456789ab"):
        (home / "repositories" / f"{name}.git").mkdir(parents=True)
        (home / "repositories" / f"{name}-head-100.jsonl").write_text("{}")
    (home / ".commit-x" / "out").mkdir(parents=True)
    (home / "models" / "gguf" / "0123456789abcdef").mkdir(parents=True)
    before = time.time() - 7200
    for path in (*map(home.joinpath, ("images", "toolchain", "repositories", "models/gguf")), home):
        for entry in path.iterdir():
            os.utime(entry, (before, before))
    os.utime(home / "images" / "fresh")
    return home


def test_files_are_used_recent_or_unused(home: Path) -> None:
    files = kept_files(home, recent_s=3600)
    states = {file.path: file.state for file in files}
    clones = {path: states.pop(path) for path in list(states) if path.startswith("repositories/")}
    assert states == {
        "images/row": "used", "images/other": "unused", "images/stale": "unused", "images/fresh": "recent",
        "toolchain/shared": "used", "toolchain/old": "unused", "toolchain/new": "used",
        ".commit-x": "unused", "models/gguf/0123456789abcdef": "unused",
    }  # fmt: skip
    assert sorted(clones.values()) == ["unused", "used"]
    assert clones["repositories/gone-0123456789ab.git"] == "unused"
    assert [file.bytes for file in files] == sorted((file.bytes for file in files), reverse=True)
    assert files[0].bytes > 9000


def test_unused_files_are_removed_and_others_stay(home: Path) -> None:
    removed = {file.path for file in remove_unused(home, recent_s=3600)}
    assert removed == {
        "images/other", "images/stale", "toolchain/old", ".commit-x", "repositories/gone-0123456789ab.git",
        "models/gguf/0123456789abcdef",
    }  # fmt: skip
    assert not any((home / path).exists() for path in removed)
    assert [image_exists(home, name) for name in ("row", "fresh", "own", "stale")] == [
        True,
        True,
        True,
        False,
    ]
    assert len(list((home / "repositories").iterdir())) == 2
    assert not list(home.rglob(".removed-*"))
    assert remove_unused(home, recent_s=3600) == []


def test_nothing_is_removed_while_a_curation_runs(home: Path) -> None:
    async def curate() -> None:
        async with using(home), using(home):
            with pytest.raises(DatasetError, match="uses this data folder"):
                await asyncio.to_thread(remove_unused, home, recent_s=3600)

    asyncio.run(curate())
    assert image_exists(home, "stale")
    assert remove_unused(home, recent_s=3600)


def test_what_cannot_be_removed_keeps_nothing_else(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unused = [file.path for file in kept_files(home, recent_s=3600) if file.state == "unused"]
    assert len(unused) > 1
    remove = kept_files_module._remove

    def refused(path: Path) -> None:
        if path == home / unused[0]:
            raise PermissionError(13, "Permission denied")
        remove(path)

    monkeypatch.setattr(kept_files_module, "_remove", refused)
    assert [file.path for file in remove_unused(home, recent_s=3600)] == unused[1:]
    assert (home / unused[0]).exists()


def test_nothing_is_removed_if_a_dataset_cannot_be_read(home: Path) -> None:
    (home / "datasets" / "original" / "tasks.jsonl").write_text("{")
    with pytest.raises(DatasetError, match="'original' cannot be read"):
        remove_unused(home, recent_s=3600)
    assert image_exists(home, "stale")
