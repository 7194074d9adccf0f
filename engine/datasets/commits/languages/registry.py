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


def open_language(name: Name, tree: Path, home: Path) -> Language:
    """Return a language by its name, or the one that the files of a tree declare.

    Raises PreflightError: programs of the language are missing on this machine.
    """
    if name == "auto":
        name = "javascript" if declares_javascript(tree) else "python"
    if name == "python":
        return Python(home)
    check_programs(tree)
    return JavaScript(home)
