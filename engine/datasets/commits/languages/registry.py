"""The languages by name."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from engine.datasets.commits.languages.base import Language
from engine.datasets.commits.languages.javascript.language import (
    JavaScript,
    check_programs,
    declares_javascript,
)
from engine.datasets.commits.languages.python.language import Python

Name = Literal["auto", "python", "javascript"]


def open_language(name: Name, tree: Path | None, home: Path) -> Language:
    """Return a language by its name, or the one that the files of a tree declare.

    Args:
        name: the name; ``auto`` takes what the files declare.
        tree: the files; None if they are not known and the language is named.
        home: the data folder.

    Raises:
        PreflightError: programs of the language are missing on this machine.
    """
    if name == "auto":
        assert tree is not None, "no language declared"
        name = "javascript" if declares_javascript(tree) else "python"
    if name == "python":
        return Python(home)
    if tree is not None:
        check_programs(tree)
    return JavaScript(home)
