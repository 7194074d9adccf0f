"""Image folders: mounts follow the data folder when it moves; missing ones are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import ImageError
from engine.sandbox.local.images import build_image, load_image


def test_mounts_below_the_data_folder_move_with_it(tmp_path: Path) -> None:
    home, elsewhere, tree = tmp_path / "home", tmp_path / "elsewhere", tmp_path / "tree"
    for folder in (home / "toolchain" / "1", elsewhere, tree):
        folder.mkdir(parents=True)
    build_image(home, "toy", tree, binds={"/opt/a": str(home / "toolchain" / "1"), "/opt/b": str(elsewhere)})
    moved = home.rename(tmp_path / "moved")
    expected = {"/opt/a": str(moved / "toolchain" / "1"), "/opt/b": str(elsewhere)}
    assert load_image(moved, "toy").binds == expected


def test_missing_mount_is_named(tmp_path: Path) -> None:
    home, tree = tmp_path / "home", tmp_path / "tree"
    for folder in (home / "toolchain", tree):
        folder.mkdir(parents=True)
    build_image(home, "toy", tree, binds={"/opt/a": str(home / "toolchain")})
    (home / "toolchain").rmdir()
    with pytest.raises(ImageError, match=r"'toy' is not built here: .*/home/toolchain is missing"):
        load_image(home, "toy")
