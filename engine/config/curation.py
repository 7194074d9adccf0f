"""Settings of the creation of tasks from the commits of repositories."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from engine.config.access.places import SourceTrees, Text
from engine.config.access.source_spec import PackageSource, parse_source
from engine.config.base import ImpossibleSettingsError, Section
from engine.config.policies import NoPolicyConfig, OptionalPolicyConfig, TransformerPolicyConfig
from engine.errors import Problem

DatasetName = Annotated[Text, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
_MIN_PROMPT = 1024
"""Minimum length of a prompt for a writer or judge, tokens."""


class WritingConfig(Section):
    """Limits of the models that write and judge statements and tests."""

    attempts: int = Field(default=3, ge=1, le=20)
    """Maximum number of statements that the writer is asked for per commit, and of test files."""
    tests: bool = True
    """Ask the writer for tests of commits that change none."""
    max_context: int = Field(default=16_384, ge=2048)
    """Maximum length of a prompt and its answer, tokens; longer prompts are shortened."""
    max_response: int = Field(default=4096, ge=64)
    """Maximum length of an answer, tokens, thinking included."""
    timeout_s: float = Field(default=600.0, gt=0)
    """Maximum time of an answer, retries included, seconds."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.max_context - self.max_response < _MIN_PROMPT:
            message = (
                f"{self.max_response} leaves less than {_MIN_PROMPT} of the {self.max_context} tokens of "
                "max_context for the prompt: lower it"
            )
            raise ImpossibleSettingsError([Problem(message, "max_response")])
        return self


class CommitCuration(Section):
    """Creation of tasks from the commits of repositories, each proven by the commit's own tests."""

    repositories: Annotated[tuple[str, ...], SourceTrees()] = Field(min_length=1)
    """Repositories with their history: addresses ``https://HOST/PATH``, or folders."""
    output: Text = Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the dataset to write."""
    language: Literal["auto", "python", "javascript"] = "auto"
    """Language of the repositories; ``auto`` finds each one's from its files."""
    max_commits: int = Field(default=300, ge=1, le=20_000)
    """Number of commits of each repository, the newest, that are looked at."""
    exclude_datasets: tuple[DatasetName, ...] = ()
    """Stored datasets whose tasks must not be made again: commits with the same base commit or instance id,
    or nearly the same fix, are left out. Name benchmarks and evaluation sets here."""
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
    writer: OptionalPolicyConfig = NoPolicyConfig()
    """Model that writes problem statements, and tests for commits without any."""
    judge: OptionalPolicyConfig = NoPolicyConfig()
    """Model that reads every statement and reports leaks of the fix and unspecified behaviour."""
    writing: WritingConfig = WritingConfig()

    @property
    def writes_tests(self) -> bool:
        """Return whether a model writes tests for commits that change none."""
        return self.writing.tests and not isinstance(self.writer, NoPolicyConfig)

    @model_validator(mode="after")
    def _effective(self) -> Self:
        models = {"writer": self.writer, "judge": self.judge}
        problems = [
            Problem(
                "a writer or judge runs in the run's own process: leave it out, or use a vLLM server as an "
                "endpoint",
                f"{name}.engine",
            )
            for name, model in models.items()
            if isinstance(model, TransformerPolicyConfig) and model.engine != "builtin"
        ]
        inert: tuple[str, ...] = ()
        if all(isinstance(model, NoPolicyConfig) for model in models.values()):
            inert, missing = tuple(WritingConfig.model_fields), "writer or judge"
        elif isinstance(self.writer, NoPolicyConfig):
            inert, missing = ("attempts", "tests"), "writer"
        problems += [
            Problem(f"has no effect without a {missing}: leave it out", f"writing.{name}")
            for name in inert
            if getattr(self.writing, name) != WritingConfig.model_fields[name].default
        ]
        if problems:
            raise ImpossibleSettingsError(problems)
        return self

    @model_validator(mode="after")
    def _excludes_others(self) -> Self:
        if self.output in self.exclude_datasets:
            problem = f"'{self.output}' is the dataset to write: name other datasets"
            raise ImpossibleSettingsError([Problem(problem, "exclude_datasets")])
        return self

    @field_validator("repositories")
    @classmethod
    def _have_history(cls, repositories: tuple[str, ...]) -> tuple[str, ...]:
        for repository in repositories:
            if isinstance(parse_source(repository), PackageSource):
                raise ValueError(f"'{repository}' is a package, which has no history: name its repository")
        return repositories
