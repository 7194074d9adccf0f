"""Detection of contradictory settings of a training run; each finding names the setting to change.

``TrainRun`` rejects them; ``engine.algorithms.lint`` reports them together with its warnings.
To add one: a condition and a ``LintFinding`` in the function of its subject.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from engine.config.learning.algorithm import AlgorithmConfig
from engine.config.learning.trainer import TrainerConfig
from engine.config.learning.training import EvaluationConfig, ScheduleConfig
from engine.config.policies import TransformerPolicyConfig
from engine.config.rollout import AgentConfig, RolloutConfig

MAX_ADAPTER_RANK = 512
"""Maximum rank of LoRA adapters that vLLM serves."""


class TrainSettings(Protocol):
    """Sections of a training run that can contradict each other."""

    @property
    def agent(self) -> AgentConfig:
        """Return the limits of the agent loop."""

    @property
    def policy(self) -> TransformerPolicyConfig:
        """Return the settings of sampling."""

    @property
    def rollout(self) -> RolloutConfig:
        """Return the settings of groups."""

    @property
    def algorithm(self) -> AlgorithmConfig:
        """Return the objective."""

    @property
    def trainer(self) -> TrainerConfig:
        """Return the settings of batches and optimizer steps."""

    @property
    def schedule(self) -> ScheduleConfig:
        """Return the order of collection and updates."""

    @property
    def evaluation(self) -> EvaluationConfig:
        """Return the settings of evaluations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LintFinding:
    """A problem of a configuration, reported to its author."""

    severity: Literal["error", "warning"]
    setting: str
    """Dotted name of the setting to change."""
    message: str
    """The problem and its remedy, without the setting's name."""


def find_contradictions(run: TrainSettings) -> list[LintFinding]:
    """Return every combination of settings that makes training impossible or pointless."""
    return [
        LintFinding(severity="error", setting=setting, message=message)
        for setting, message in (
            *_sampling(run),
            *_groups(run),
            *_schedule(run),
            *_lengths(run),
            *_engines(run),
        )
    ]


def _sampling(run: TrainSettings) -> list[tuple[str, str]]:
    problems = []
    if run.policy.temperature == 0:
        problems.append(("policy.temperature", "0 makes greedy siblings identical, so nothing is learned"))
    for name, neutral in (("top_p", 1), ("top_k", 0), ("min_p", 0)):
        if getattr(run.policy, name) != neutral:
            problems.append(
                (
                    f"policy.{name}",
                    f"must be {neutral} in training: the sampler's log-probabilities are those of the "
                    "tokens it may draw, the trainer's those of the whole vocabulary",
                )
            )
    if run.policy.precision == "f32" and run.trainer.lora_rank and run.trainer.precision == "bf16":
        problems.append(
            (
                "policy.precision",
                "f32 has no effect: the weights under adapters are bf16 with trainer.precision = bf16",
            )
        )
    return problems


def _groups(run: TrainSettings) -> list[tuple[str, str]]:
    problems = []
    if run.rollout.group_size < 2 and run.algorithm.baseline in ("leave_one_out", "group_mean"):
        problems.append(
            (
                "rollout.group_size",
                f"must be at least 2 for the {run.algorithm.baseline} baseline: alone in its group every "
                "trajectory has advantage 0",
            )
        )
    elif run.rollout.group_size < 2 and run.algorithm.dynamic_sampling:
        problems.append(
            (
                "rollout.group_size",
                "must be at least 2 for algorithm.dynamic_sampling: a group of one is always uniform",
            )
        )
    if run.trainer.minibatches > run.trainer.tasks_per_iteration:
        problems.append(
            (
                "trainer.minibatches",
                f"{run.trainer.minibatches} exceeds trainer.tasks_per_iteration "
                f"({run.trainer.tasks_per_iteration}): an optimizer step takes whole groups",
            )
        )
    return problems


def _schedule(run: TrainSettings) -> list[tuple[str, str]]:
    problems, schedule, size = [], run.schedule, run.rollout.group_size
    if schedule.min_siblings is not None and not 2 <= schedule.min_siblings < size:
        problems.append(
            (
                "schedule.min_siblings",
                f"{schedule.min_siblings} must be at least 2 and less than rollout.group_size ({size})",
            )
        )
    return problems


def _lengths(run: TrainSettings) -> list[tuple[str, str]]:
    problems = []
    if run.agent.max_response > run.agent.max_context:
        problems.append(
            (
                "agent.max_response",
                f"{run.agent.max_response} exceeds agent.max_context ({run.agent.max_context})",
            )
        )
    evaluated = run.evaluation.max_context
    if evaluated is not None and evaluated <= max(run.agent.max_response, run.agent.token_warning):
        problems.append(
            (
                "evaluation.max_context",
                f"{evaluated} must exceed agent.max_response ({run.agent.max_response}) and "
                f"agent.token_warning ({run.agent.token_warning})",
            )
        )
    if run.agent.token_warning >= run.agent.max_context:
        problems.append(
            (
                "agent.token_warning",
                f"{run.agent.token_warning} leaves nothing of agent.max_context ({run.agent.max_context}) "
                "without the warning",
            )
        )
    if run.algorithm.overlong_buffer > run.agent.max_context:
        problems.append(
            (
                "algorithm.overlong_buffer",
                f"{run.algorithm.overlong_buffer:g} tokens exceed agent.max_context "
                f"({run.agent.max_context}): even an empty trajectory would be too long",
            )
        )
    return problems


def _engines(run: TrainSettings) -> list[tuple[str, str]]:
    """Return the settings of vLLM servers that contradict LoRA adapters or ranks on other nodes."""
    rank, transfer, problems = run.trainer.lora_rank, run.policy.vllm.transfer, []
    if run.policy.engine == "vllm" and run.trainer.launcher == "ray" and transfer in ("nccl", "ipc"):
        problems.append(
            (
                "policy.vllm.transfer",
                f"'{transfer}' needs ranks on the servers' machine, but trainer.launcher is 'ray': use "
                "'disk'",
            )
        )
    if run.policy.vllm.launcher == "ray" and transfer == "ipc":
        problems.append(
            (
                "policy.vllm.transfer",
                "'ipc' shares the memory of the trainer's device, but policy.vllm.launcher is 'ray': use "
                "'nccl' or 'disk'",
            )
        )
    if run.policy.engine == "vllm" and rank and transfer == "nccl":
        problems.append(
            (
                "policy.vllm.transfer",
                "'nccl' has no effect with trainer.lora_rank: adapters are sent as files; leave it out",
            )
        )
    if run.policy.engine == "vllm" and rank > MAX_ADAPTER_RANK:
        problems.append(
            ("trainer.lora_rank", f"{rank} exceeds {MAX_ADAPTER_RANK}, the highest that vLLM serves")
        )
    return problems
