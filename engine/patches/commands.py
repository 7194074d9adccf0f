"""Runs git on copies of files in a private temporary folder, without anybody's configuration."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from engine.errors import PatchError

_GIT_S = 120.0


def run_git(folder: Path, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run git in a ``private_folder``'s tree, without anybody's configuration. Raises PatchError."""
    env = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(folder),
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": str(folder.parent),
    }
    command = ["git", "-c", "core.attributesFile=" + str(folder / "attributes"), "-c", "core.quotePath=true"]
    try:
        return subprocess.run(
            [*command, *arguments],
            cwd=folder / "tree",
            env=env,
            input=stdin,
            capture_output=True,
            timeout=_GIT_S,
        )
    except subprocess.TimeoutExpired:
        raise PatchError(f"git took more than {_GIT_S:g} s over the files") from None


def private_folder(attributes: str = "") -> tempfile.TemporaryDirectory[str]:
    """A folder for ``run_git``: an empty ``tree`` and git's attributes."""
    folder = tempfile.TemporaryDirectory(prefix="trainyard-patch-")
    (Path(folder.name) / "tree").mkdir()
    (Path(folder.name) / "attributes").write_text(attributes)
    return folder
