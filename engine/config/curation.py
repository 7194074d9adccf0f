"""Settings of the creation of tasks: from the commits of repositories, or by injecting faults."""

from __future__ import annotations

from collections.abc import Iterable
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


FaultKind = Literal[
    "added_not",
    "arithmetic_swap",
    "augmented_swap",
    "bool_literal",
    "boolean_swap",
    "compare_flip",
    "constant_off_by_one",
    "dropped_minus",
    "dropped_not",
    "equality_flip",
    "identity_flip",
    "membership_flip",
    "paired_name",
    "range_off_by_one",
    "slice_off_by_one",
    "swapped_arguments",
    "swapped_branches",
    "swapped_operands",
    "swapped_return",
    "wrong_attribute",
    "wrong_variable",
]
"""Kinds of fault that ``engine.datasets.curation.faults`` can inject."""


class AnswerLimits(Section):
    """Limits of a model that writes parts of tasks."""

    attempts: int = Field(default=3, ge=1, le=20)
    """Maximum number of answers that the writer is asked for, for one statement, test file or fault."""
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

    def inert(self, names: Iterable[str], missing: str) -> list[Problem]:
        """Return the problems of settings that have no effect without a model but are set."""
        return [
            Problem(f"has no effect without a {missing}: leave it out", f"writing.{name}")
            for name in names
            if getattr(self, name) != type(self).model_fields[name].default
        ]


class WritingConfig(AnswerLimits):
    """Limits of the models that write and judge statements and tests."""

    tests: bool = True
    """Ask the writer for tests of commits that change none."""


def _model_problems(**models: OptionalPolicyConfig) -> list[Problem]:
    """Return the problems of models, by the name of their section."""
    problem = (
        "a writer or judge runs in the run's own process: leave it out, or use a vLLM server as an endpoint"
    )
    return [
        Problem(problem, f"{name}.engine")
        for name, model in models.items()
        if isinstance(model, TransformerPolicyConfig) and model.engine != "builtin"
    ]


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
        problems = _model_problems(writer=self.writer, judge=self.judge)
        if isinstance(self.writer, NoPolicyConfig) and isinstance(self.judge, NoPolicyConfig):
            problems += self.writing.inert(WritingConfig.model_fields, "writer or judge")
        elif isinstance(self.writer, NoPolicyConfig):
            problems += self.writing.inert(("attempts", "tests"), "writer")
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


class CurationConfig(Section):
    """Creation of tasks from a Python source tree with tests, by injecting faults, or by a model's faults."""

    sources: Annotated[tuple[str, ...], SourceTrees()] = Field(min_length=1)
    """Source distributions ``pip:NAME==VERSION``, git repositories ``https://HOST/PATH``, or folders."""
    output: Text = Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the dataset to write."""
    train_tasks: int = Field(default=48, ge=1)
    """Target number of training tasks."""
    heldout_tasks: int = Field(default=16, ge=0)
    """Target number of held-out tasks (from other files than the training tasks)."""
    hint: Literal["none", "function", "line"] = "line"
    """Precision with which the problem statement locates the symptom."""
    stability_runs: int = Field(default=3, ge=1)
    """Number of test runs that must agree on the failing tests."""
    max_function_lines: int = Field(default=40, ge=3)
    """Maximum length of a function that receives a fault, lines."""
    fault_kinds: tuple[FaultKind, ...] = ()
    """Kinds of fault to inject; empty uses every kind."""
    writer: OptionalPolicyConfig = NoPolicyConfig()
    """Model that writes all faults, each into one function; without one they are injected."""
    writing: AnswerLimits = AnswerLimits()
    faults_per_task: int = Field(default=1, ge=1, le=4)
    """Number of faults of a task, in different functions of one file."""
    test_timeout_s: float = Field(default=30.0, gt=0)
    """Time limit of one run of a source's tests, seconds."""
    extra_tasks: tuple[Text, ...] = ()
    """Hand-written tasks to add, by name, e.g. ``wcmatch-45``."""
    workers: int = Field(default=2, ge=1)
    """Number of sandboxes used at once."""

    @model_validator(mode="after")
    def _effective(self) -> Self:
        problems = _model_problems(writer=self.writer)
        if isinstance(self.writer, NoPolicyConfig):
            problems += self.writing.inert(AnswerLimits.model_fields, "writer")
        elif self.fault_kinds:
            problem = "has no effect on the faults of a writer: leave it empty"
            problems.append(Problem(problem, "fault_kinds"))
        if problems:
            raise ImpossibleSettingsError(problems)
        return self

    @field_validator("sources")
    @classmethod
    def _known(cls, sources: tuple[str, ...]) -> tuple[str, ...]:
        for source in sources:
            parse_source(source)
        return sources
