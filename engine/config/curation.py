"""Settings of the creation of tasks from the commits of repositories."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from engine.config.access.places import SourceTrees, Text
from engine.config.access.source_spec import PackageSource, parse_source
from engine.config.base import Section


class CommitCuration(Section):
    """Creation of tasks from the commits of repositories, each proven by the commit's own tests."""

    repositories: Annotated[tuple[str, ...], SourceTrees()] = Field(min_length=1)
    """Repositories with their history: addresses ``https://HOST/PATH``, or folders."""
    output: Text = Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the dataset to write."""
    max_commits: int = Field(default=300, ge=1, le=20_000)
    """Number of commits of each repository, the newest, that are looked at."""
    licences: tuple[Text, ...] = ()
    """Licences of repositories that are used, e.g. ``MIT`` (SPDX, or as declared); empty uses all."""
    train_tasks: int = Field(default=200, ge=1)
    """Maximum number of training tasks."""
    heldout_tasks: int = Field(default=20, ge=0)
    """Maximum number of held-out tasks, made of the newest commits."""
    max_files: int = Field(default=4, ge=1)
    """Maximum number of files with code that a commit changes, tests excluded."""
    max_lines: int = Field(default=199, ge=1)
    """Maximum number of added and removed lines of code, tests excluded."""
    max_patch_chars: int = Field(default=9_999, ge=100)
    """Maximum size of the change to code, characters."""
    stability_runs: int = Field(default=5, ge=2, le=50)
    """Number of test runs before and after the change, in shuffled order, that must agree."""
    test_timeout_s: float = Field(default=120.0, gt=0)
    """Time limit of one run of a commit's tests, seconds."""
    workers: int = Field(default=2, ge=1)
    """Number of commits tried at once."""

    @field_validator("repositories")
    @classmethod
    def _have_history(cls, repositories: tuple[str, ...]) -> tuple[str, ...]:
        for repository in repositories:
            if isinstance(parse_source(repository), PackageSource):
                raise ValueError(f"'{repository}' is a package, which has no history: name its repository")
        return repositories
