"""Settings of verifiers, which score finished trajectories without the answer key."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from engine.config.access.places import Text
from engine.config.base import Section
from engine.config.policies import EndpointPolicyConfig, JudgePolicyConfig, TransformerPolicyConfig
from engine.errors import Problem

_IDLE = {
    TransformerPolicyConfig: ("temperature", "top_p", "top_k", "min_p", "max_batch"),
    EndpointPolicyConfig: (
        "temperature", "top_p", "tool_choice", "single_call", "thinking_field", "stream", "stall_timeout_s",
    ),
}  # fmt: skip
"""Settings of policies that have no effect on judges."""

TRAINING_SPLITS = ("train", "imported")
"""Splits of tasks used for training."""

RunNames = tuple[Annotated[Text, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")], ...]


class TestLimits(Section):
    """Limits of an execution-based verifier's tests."""

    __test__ = False
    timeout_s: float = Field(default=300.0, gt=0)
    """Time limit of one run of tests, seconds."""
    max_parallel: int = Field(default=2, ge=1)
    """Maximum number of concurrent runs of tests."""
    max_test_files: int = Field(default=40, ge=1)
    """Maximum number of a repository's test files that are searched for regression tests."""
    repeats: int = Field(default=2, ge=1)
    """Runs on the untouched repository, all of which a regression test must pass."""


class TestVerifierConfig(TestLimits):
    """An execution-based verifier: tests run on the patches of finished runs."""

    runs: RunNames = ()
    """Runs whose patches are scored, by the names of their folders under the data folder's ``runs/``; the
    patches of one task run the same tests."""
    phases: tuple[Text, ...] = ()
    """Phases whose patches are scored: ``train``, ``eval:heldout``, …; empty scores all."""
    tests: RunNames = ()
    """Runs in which testing agents wrote reproduction tests (environment ``reproduction``); without any,
    patches are scored by the repository's tests alone."""


class VerifierConfig(Section):
    """An execution-free verifier: a model judges the trajectories of finished runs by reading them."""

    runs: RunNames = ()
    """Runs whose trajectories are scored, by the names of their folders under the data folder's ``runs/``."""
    phases: tuple[Text, ...] = ()
    """Phases whose trajectories are scored: ``train``, ``eval:heldout``, …; empty scores all."""
    follow: bool = False
    """Score runs in progress as they produce trajectories, until each has ended or lost its process; they and
    this run count towards the runs performed at once."""
    part: Literal["trajectory", "patch"] = "trajectory"
    """Part that the judge reads: every turn and the patch, or the patch alone."""
    max_context: int = Field(default=32_768, ge=256)
    """Maximum length of the judge's prompt and answer, tokens (with an endpoint estimated from characters);
    longer trajectories are shortened: thoughts, then observations, then whole turns. DeepSWE's verifier reads
    76,800."""
    answers: Literal["listed", "forced"] = "listed"
    """Reading of an endpoint's answers: ``listed`` takes the probabilities of YES and NO where its response
    says one of them, from the ``top_logprobs`` there; ``forced`` has a vLLM server score both answers as
    continuations (``prompt_logprobs``), with twice the requests and never a missing one. Answers of other
    models are always forced."""
    max_response: int = Field(default=32, ge=8)
    """Maximum length of an endpoint's response, tokens; reasoning models need more."""
    max_attempts: int = Field(default=3, ge=1)
    """Attempts at a trajectory that gets no score; then the error is stored in its place."""
    parallel: int = Field(default=8, ge=1)
    """Maximum number of trajectories judged at once."""


class JudgementsConfig(Section):
    """Training data of a judge: as many right as wrong trajectories of each task with both outcomes."""

    on_policy: RunNames = ()
    """Runs of the policy that the judge will score, by the names of their folders under the data folder's
    ``runs/``."""
    off_policy: RunNames = ()
    """Runs of other policies; their pairs are added (SWE-Gym's mixture)."""
    phases: tuple[Text, ...] = ("train",)
    """Phases whose trajectories are used: ``train``, ``eval:heldout``, …; empty uses all."""
    splits: tuple[Text, ...] = TRAINING_SPLITS
    """Splits of the tasks whose trajectories are used; empty uses all. A judge that learned the outcomes of
    held-out tasks must not select among their rollouts."""
    part: Literal["trajectory", "patch"] = "trajectory"
    """Part that the judge reads, as in ``verifier.part``."""
    per_task: int = Field(default=1, ge=1)
    """Maximum number of pairs of each task with both outcomes, for each origin."""
    extra: int = Field(default=0, ge=0)
    """Maximum number of further pairs of each origin, from tasks with one outcome only."""


def ineffective_settings(verifier: VerifierConfig, policy: JudgePolicyConfig) -> list[Problem]:
    """Return a problem for each setting that has no effect on a verifier's run."""
    fields = type(policy).model_fields
    problems = [
        Problem("has no effect on a judge, whose answer is forced or greedy: leave it out", f"policy.{name}")
        for name in _IDLE[type(policy)]
        if getattr(policy, name) != fields[name].default
    ]

    def is_set(name: str) -> bool:
        return bool(getattr(verifier, name) != VerifierConfig.model_fields[name].default)

    forced = not isinstance(policy, EndpointPolicyConfig) or verifier.answers == "forced"
    if forced and is_set("max_response"):
        message = "has no effect on a model whose answers are forced: leave it out"
        problems.append(Problem(message, "verifier.max_response"))
    if isinstance(policy, EndpointPolicyConfig):
        return problems
    if is_set("answers"):
        message = "is for endpoints; the answers of other models are always forced: leave it out"
        problems.append(Problem(message, "verifier.answers"))
    if policy.engine != "builtin":
        message = "a judge runs in the run's own process: leave it out, or use a vLLM server as an endpoint"
        problems.append(Problem(message, "policy.engine"))
    return problems
