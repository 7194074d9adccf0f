"""Git repositories with a history of small commits."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path


class GitHistory:
    """A repository on disk; each commit is an hour later than the one before it.

    Args:
        folder: folder to create.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._commits = 0
        folder.mkdir(parents=True)
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str) -> str:
        """Run git in the repository and return its output."""
        date = f"2024-03-{1 + self._commits // 24:02}T{self._commits % 24:02}:00:00Z"
        environment = {
            "PATH": os.environ["PATH"], "HOME": str(self.folder), "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a",
            "GIT_COMMITTER_EMAIL": "a@b", "GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date,
        }  # fmt: skip
        done = subprocess.run(
            ["git", *arguments], cwd=self.folder, env=environment, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def commit(self, message: str, files: Mapping[str, str | None]) -> str:
        """Write or delete (None) files, commit them and return the commit."""
        for name, text in files.items():
            path = self.folder / name
            if text is None:
                path.unlink()
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.git("add", "-A")
        self._commits += 1
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")
