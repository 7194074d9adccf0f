"""Complete run configurations: one class per kind, discriminated by ``kind``.

The resolved configuration is saved with the run as JSON and is all the engine reads.
To add a setting: put a field with a docstring in the section it belongs to; to add a recipe: a
function in ``engine.config.recipes`` that returns one of these classes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, Field, TypeAdapter, ValidationError, model_validator

from engine.config.access.places import ANY, Allowed, Bounded, Text, places
from engine.config.base import ImpossibleSettingsError, Section, config_error
from engine.config.contradictions import find_contradictions
from engine.config.curation import CommitCuration, CurationConfig
from engine.config.environment import (
    REPRODUCTION_PROMPTS,
    EnvironmentConfig,
    FrozenLakeConfig,
    ReproductionConfig,
    SweEnvironmentConfig,
    with_generated_dataset,
)
from engine.config.hardening import HardeningConfig
from engine.config.importing import ImportConfig
from engine.config.launcher import LauncherConfig, StorageConfig
from engine.config.learning.algorithm import AlgorithmConfig
from engine.config.learning.fine_tuning import (
    ConversationConfig,
    FineTuningConfig,
    ImitationConfig,
    TrajectoryQuery,
)
from engine.config.learning.improvement import ImprovementConfig
from engine.config.learning.trainer import TrainerConfig
from engine.config.learning.training import (
    CurriculumConfig,
    EvaluationConfig,
    HeldoutConfig,
    ScheduleConfig,
    SftConfig,
)
from engine.config.learning.verifier import (
    JudgementsConfig,
    TestVerifierConfig,
    VerifierConfig,
    ineffective_settings,
)
from engine.config.policies import (
    EndpointPolicyConfig,
    JudgePolicyConfig,
    PolicyConfig,
    TransformerPolicyConfig,
    VllmConfig,
)
from engine.config.regrading import RegradeConfig
from engine.config.rollout import (
    AgentConfig,
    CollectionConfig,
    DatasetConfig,
    GradingConfig,
    RolloutConfig,
)
from engine.config.sandbox import SandboxConfig
from engine.config.validation import ValidatedDatasetConfig, ValidationConfig
from engine.errors import ConfigError, Problem

PRESET_KEY = "algorithm.preset"
POLICY_TYPE_KEY = "policy.type"
_OF_UPDATES = ("transfer", "in_flight")
"""Settings of vLLM servers about weight updates."""


class DownloadConfig(Section):
    """Downloads of a run from the Hugging Face Hub."""

    max_gb: Annotated[float, Bounded(200)] = Field(default=200.0, ge=0)
    """Maximum download of one model or dataset, GB; 0 downloads nothing and allows only cached ones."""


_DATASET_KINDS = frozenset({"curate", "validate", "import"})


class _Run(Section):
    name: Text = Field(min_length=1, max_length=200)
    """Display name of the run."""
    recipe: Text = ""
    """Recipe from which the run was created."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of task order, sampling and initial weights."""
    launcher: LauncherConfig = LauncherConfig()
    storage: StorageConfig = StorageConfig()
    downloads: DownloadConfig = DownloadConfig()
    disk_gb: Annotated[float, Bounded(2_000)] = Field(default=2_000.0, gt=0)
    """Maximum size of the run's folder, GB; a run that exceeds it is stopped."""

    @model_validator(mode="after")
    def _runs_here(self) -> Self:
        kind = getattr(self, "kind", "")
        if self.launcher.backend == "external" and kind in _DATASET_KINDS:
            message = f"runs of kind '{kind}' change datasets, which no other program may: leave it out"
            raise ImpossibleSettingsError([Problem(message, "launcher.backend")])
        return self


class _ActingRun(_Run):
    """Settings shared by all kinds of run in which agents act."""

    dataset: DatasetConfig
    environment: EnvironmentConfig = SweEnvironmentConfig()
    sandbox: SandboxConfig = SandboxConfig()
    agent: AgentConfig = AgentConfig()
    grading: GradingConfig = GradingConfig(evaluation_timeout_s=1800.0)

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, data: Any) -> Any:
        return with_generated_dataset(data)

    @model_validator(mode="after")
    def _asks_for_what_counts(self) -> Self:
        writes = isinstance(self.environment, ReproductionConfig)
        if writes != (self.agent.prompt in REPRODUCTION_PROMPTS):
            raise ValueError(
                f"agent.prompt is {self.agent.prompt}, but in environment '{self.environment.type}' "
                + ("only tests of the issue count" if writes else "tests written by agents do not count")
                + f"; prompts that ask for tests: {', '.join(sorted(REPRODUCTION_PROMPTS))}"
            )
        return self

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        lake, steps = self.environment, self.agent.max_steps
        if not isinstance(lake, FrozenLakeConfig):
            return self
        if self.agent.tools != "r2e_gym":
            raise ValueError(
                f"agent.tools is {self.agent.tools}, but FrozenLake has tools of its own: leave it out"
            )
        if lake.max_path > steps:
            raise ValueError(
                f"environment.max_path is {lake.max_path}, but agent.max_steps only {steps}: some goals "
                "could not be reached"
            )
        return self


class TrainRun(_ActingRun):
    """Reinforcement learning: collect → grade → update."""

    kind: Literal["train"] = "train"
    policy: TransformerPolicyConfig = TransformerPolicyConfig()
    rollout: RolloutConfig = RolloutConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    trainer: TrainerConfig = TrainerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    curriculum: CurriculumConfig = CurriculumConfig()
    evaluation: EvaluationConfig = EvaluationConfig()

    @property
    def longest_context(self) -> int:
        """Return the maximum length of a conversation in training and evaluations, tokens."""
        return max(self.agent.max_context, self.evaluation.max_context or 0)

    @property
    def sampling_precision(self) -> Literal["f32", "bf16"]:
        """Return the precision in which the policy is sampled."""
        return self.trainer.precision if self.policy.precision == "auto" else self.policy.precision

    @model_validator(mode="after")
    def _possible(self) -> Self:
        findings = find_contradictions(self)
        if findings:
            raise ImpossibleSettingsError(Problem(finding.message, finding.setting) for finding in findings)
        return self


def _check_unpublished(policy: TransformerPolicyConfig) -> None:
    """Reject settings about weight updates, for engines that only sample.

    Raises:
        ImpossibleSettingsError: names every such setting.
    """
    inert = [name for name in _OF_UPDATES if getattr(policy.vllm, name) != getattr(VllmConfig(), name)]
    if inert:
        raise ImpossibleSettingsError(
            Problem(
                "has no effect in a run that does not train while its engines run: no weights are sent to "
                "them; leave it out",
                f"policy.vllm.{name}",
            )
            for name in inert
        )


class _CollectingRun(_ActingRun):
    """Settings shared by the kinds of run that sample a policy without training it."""

    policy: PolicyConfig = TransformerPolicyConfig()
    rollout: RolloutConfig = RolloutConfig()
    collection: CollectionConfig = CollectionConfig()

    @model_validator(mode="after")
    def _thinking_can_be_set(self) -> Self:
        if isinstance(self.policy, EndpointPolicyConfig) and self.agent.thinking == "off":
            raise ImpossibleSettingsError(
                [
                    Problem(
                        "has no effect on a model behind an endpoint: leave it out; thinking is set by "
                        "policy.reasoning_effort, or by policy.extra_body as the model's server expects it, "
                        'e.g. {"chat_template_kwargs": {"enable_thinking": false}}',
                        "agent.thinking",
                    )
                ]
            )
        return self

    @model_validator(mode="after")
    def _one_attempt_is_resumed(self) -> Self:
        if self.rollout.resume_in_flight == "replay" and self.collection.retry_temperatures:
            message = (
                "must be 'anew' with collection.retry_temperatures: steps do not record their repetition"
            )
            raise ImpossibleSettingsError([Problem(message, "rollout.resume_in_flight")])
        return self

    @model_validator(mode="after")
    def _publishes_nothing(self) -> Self:
        if isinstance(self.policy, TransformerPolicyConfig):
            _check_unpublished(self.policy)
        return self


class ImproveRun(_ActingRun):
    """Self-improvement by rejection sampling: sample → grade → keep passed rollouts → fine-tune."""

    kind: Literal["improve"] = "improve"
    policy: TransformerPolicyConfig = TransformerPolicyConfig(temperature=0.5)
    rollout: RolloutConfig = RolloutConfig(group_size=16)
    improvement: ImprovementConfig = ImprovementConfig()
    trainer: ImitationConfig = ImitationConfig()
    evaluation: HeldoutConfig = HeldoutConfig()

    @model_validator(mode="after")
    def _publishes_nothing(self) -> Self:
        _check_unpublished(self.policy)
        return self

    @model_validator(mode="after")
    def _samples_differ(self) -> Self:
        if self.policy.temperature == 0 and self.rollout.group_size > 1:
            message = (
                f"0 makes the {self.rollout.group_size} rollouts of a task identical: raise it, or set "
                "rollout.group_size to 1"
            )
            raise ImpossibleSettingsError([Problem(message, "policy.temperature")])
        return self


class RolloutRun(_CollectingRun):
    """Collection of graded trajectories, without learning."""

    kind: Literal["rollout"] = "rollout"


class EvaluateRun(_CollectingRun):
    """Evaluation: pass@1 with a confidence interval on a split."""

    kind: Literal["evaluate"] = "evaluate"
    grading: GradingConfig = GradingConfig(timeout_s=1800.0)

    @model_validator(mode="after")
    def _on_all_tasks(self) -> Self:
        if self.collection.skip != "none":
            raise ValueError(
                "collection.skip must be 'none': the solve rate would be that of the remaining tasks"
            )
        return self


class SftRun(_Run):
    """Supervised warm start."""

    kind: Literal["sft"] = "sft"
    data: Literal["stream"] = "stream"
    """Source of the training data: a stream of generated episodes."""
    environment: EnvironmentConfig = SweEnvironmentConfig()
    sft: SftConfig = SftConfig()
    agent: AgentConfig = AgentConfig()

    @model_validator(mode="after")
    def _one_curriculum(self) -> Self:
        if isinstance(self.environment, FrozenLakeConfig) and self.sft != SftConfig():
            raise ValueError(
                "sft.* are settings of the code stream; with environment 'frozenlake' the warm start is "
                "set by environment.warm_start_* and environment.expert_noise"
            )
        return self


class FineTuneRun(_Run):
    """Supervised fine-tuning on stored trajectories."""

    kind: Literal["sft"] = "sft"
    data: Literal["trajectories"] = "trajectories"
    """Source of the training data: stored trajectories."""
    trajectories: TrajectoryQuery = TrajectoryQuery()
    trainer: FineTuningConfig = FineTuningConfig()
    conversation: ConversationConfig = ConversationConfig()


class JudgeTrainingRun(_Run):
    """Supervised fine-tuning of a judge on graded trajectories."""

    kind: Literal["sft"] = "sft"
    data: Literal["judgements"] = "judgements"
    """Source of the training data: judgements of graded trajectories."""
    judgements: JudgementsConfig = JudgementsConfig()
    trainer: FineTuningConfig = FineTuningConfig()

    @model_validator(mode="after")
    def _effective(self) -> Self:
        if self.trainer.overlong != FineTuningConfig.model_fields["overlong"].default:
            message = "has no effect on judgements, which are shortened until they fit: leave it out"
            raise ImpossibleSettingsError([Problem(message, "trainer.overlong")])
        return self


class CurateRun(_Run):
    """Creation of a dataset from source trees, by injecting faults."""

    kind: Literal["curate"] = "curate"
    source: Literal["faults"] = "faults"
    """Origin of the tasks: faults injected into source trees."""
    curation: CurationConfig
    sandbox: SandboxConfig = SandboxConfig()


class CommitCurateRun(_Run):
    """Creation of a dataset from the commits of repositories."""

    kind: Literal["curate"] = "curate"
    source: Literal["commits"] = "commits"
    """Origin of the tasks: commits of repositories."""
    curation: CommitCuration
    sandbox: SandboxConfig = SandboxConfig()


class HardenRun(_Run):
    """Creation of a new version of a dataset, with additional tests for weak tasks."""

    kind: Literal["curate"] = "curate"
    source: Literal["hardening"] = "hardening"
    """Origin of the tasks: those of another dataset, with additional tests."""
    curation: HardeningConfig
    sandbox: SandboxConfig = SandboxConfig()


class ValidateRun(_Run):
    """Validation of a dataset: every row graded without changes and with its gold patch."""

    kind: Literal["validate"] = "validate"
    dataset: ValidatedDatasetConfig
    validation: ValidationConfig = ValidationConfig()
    grading: GradingConfig = GradingConfig(timeout_s=1800.0, reuse_verdicts=False)
    sandbox: SandboxConfig = SandboxConfig()

    @model_validator(mode="after")
    def _for_real(self) -> Self:
        if self.grading.reuse_verdicts:
            raise ValueError("grading.reuse_verdicts must be off: re-used verdicts detect no flaky tests")
        if self.grading.counterfactual != "sample":
            raise ImpossibleSettingsError(
                [
                    Problem(
                        "has no effect in validation, which grades trusted patches only: leave it out",
                        "grading.counterfactual",
                    )
                ]
            )
        return self


class ImportRun(_Run):
    """Import of a published dataset."""

    kind: Literal["import"] = "import"
    importing: ImportConfig


class VerifierRun(_Run):
    """Verification: a model scores the trajectories of finished runs without the answer key."""

    kind: Literal["verifier"] = "verifier"
    method: Literal["judge"] = "judge"
    """Origin of the scores: a model that reads the trajectories."""
    verifier: VerifierConfig = VerifierConfig()
    policy: JudgePolicyConfig = TransformerPolicyConfig()

    @model_validator(mode="after")
    def _effective(self) -> Self:
        if problems := ineffective_settings(self.verifier, self.policy):
            raise ImpossibleSettingsError(problems)
        return self


class TestVerifierRun(_Run):
    """Verification: tests score the patches of finished runs without the answer key."""

    __test__ = False
    kind: Literal["verifier"] = "verifier"
    method: Literal["tests"] = "tests"
    """Origin of the scores: the repository's tests, and tests that agents wrote for the issues."""
    verifier: TestVerifierConfig = TestVerifierConfig()
    sandbox: SandboxConfig = SandboxConfig()


class RegradeRun(_Run):
    """Regrading: the patches of finished runs graded again, by the current tests and rules."""

    kind: Literal["regrade"] = "regrade"
    regrade: RegradeConfig = RegradeConfig()
    grading: GradingConfig = GradingConfig(timeout_s=1800.0)
    sandbox: SandboxConfig = SandboxConfig()

    @model_validator(mode="after")
    def _effective(self) -> Self:
        if not self.grading.reuse_verdicts:
            message = "has no effect: equal patches of a task are graded once; leave it out"
            raise ImpossibleSettingsError([Problem(message, "grading.reuse_verdicts")])
        return self


AnyRun = (
    TrainRun
    | ImproveRun
    | RolloutRun
    | EvaluateRun
    | Annotated[SftRun | FineTuneRun | JudgeTrainingRun, Field(discriminator="data")]
    | Annotated[VerifierRun | TestVerifierRun, Field(discriminator="method")]
    | Annotated[CurateRun | CommitCurateRun | HardenRun, Field(discriminator="source")]
    | ValidateRun
    | ImportRun
    | RegradeRun
)
_TAGS = ("kind", "data", "method", "source")
"""Settings that select the class of a run."""
_SECOND_TAGS = MappingProxyType(
    {"sft": ("data", "stream"), "verifier": ("method", "judge"), "curate": ("source", "faults")}
)
"""Kind → second tag, and its value in configurations of earlier versions, which lack it."""


def _classes(union: object) -> Iterator[type[BaseModel]]:
    """Yield the classes of a union, also of the annotated unions in it."""
    for member in get_args(union):
        if isinstance(member, type):
            yield member
        else:
            yield from _classes(get_args(member)[0])


RUN_CLASSES = tuple(_classes(AnyRun))
"""Every class of run configurations."""


def _unions(section: type[BaseModel], place: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the locations of the sections with a discriminator below a section."""
    for name, field in section.model_fields.items():
        if field.discriminator:
            yield (*place, name)
        elif isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from _unions(field.annotation, (*place, name))


_UNIONS = frozenset(
    union
    for kind in RUN_CLASSES
    for union in _unions(
        kind, tuple(kind.model_fields[tag].default for tag in _TAGS if tag in kind.model_fields)
    )
)
"""Locations of sections with a discriminator, after the tags of their class."""
_ADAPTER: TypeAdapter[AnyRun] = TypeAdapter(Annotated[AnyRun, Field(discriminator="kind")])


def parse_run_config(data: Mapping[str, Any]) -> AnyRun:
    """Validate a run configuration.

    Raises:
        ConfigError: names every wrong setting with its problem.
    """
    settings = dict(data)
    tag, default = _SECOND_TAGS.get(str(settings.get("kind")), ("", ""))
    if tag:
        settings.setdefault(tag, default)
    try:
        return _ADAPTER.validate_python(settings)
    except ValidationError as error:
        raise config_error(error, skip=2 if tag else 1, unions=_UNIONS) from None


def load_run_config(path: Path) -> AnyRun:
    """Read a resolved configuration from JSON. Raises ConfigError."""
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the run configuration {path}: {error}") from error
    return parse_run_config(data)


def with_overrides(data: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of ``data`` with dotted keys replaced, e.g. ``{"trainer.iterations": 5}``.

    ``algorithm.preset`` is applied first and resets its section, since the resolved one records every
    setting. A changed ``type`` also resets its section, whose settings differ by type.

    Raises:
        ConfigError: a part of a key before the last is not a section.
    """
    result: dict[str, Any] = json.loads(json.dumps(dict(data)))
    if PRESET_KEY in overrides:
        result["algorithm"] = {}
    for key, value in overrides.items():
        *parents, last = key.split(".")
        section: Any = result
        for parent in parents:
            section = section.get(parent) if isinstance(section, dict) else None
        if last == "type" and isinstance(section, dict) and section.get("type") != value:
            section.clear()
    for key, value in overrides.items():
        *parents, last = key.split(".")
        node: Any = result
        for parent in parents:
            node = node.setdefault(parent, {}) if isinstance(node, dict) else None
        if not isinstance(node, dict):
            raise ConfigError(Problem("unknown setting", key))
        node[last] = value
    return result


def policy_type(data: Mapping[str, Any]) -> str:
    """Return the type of a configuration's policy; empty for kinds of run without a policy."""
    policy = data.get("policy")
    return str(policy.get("type", "")) if isinstance(policy, dict) else ""


def check_places(config: AnyRun, allowed: Allowed) -> AnyRun:
    """Return the configuration with its paths as the engine reads them: absolute, links resolved.

    Raises:
        ConfigError: names every setting whose resource is not allowed, and the allowed ones.
    """
    problems: list[Problem] = []
    changes: dict[str, Any] = {}
    for setting in places(config):
        try:
            resolved = setting.place.resolve(setting, allowed)
        except ValueError as error:
            problems.append(Problem(str(error), setting.name))
            continue
        if resolved != setting.value:
            changes[setting.name] = resolved
    if problems:
        raise ConfigError(*problems)
    return parse_run_config(with_overrides(config.model_dump(mode="json"), changes)) if changes else config


def with_registries(config: AnyRun, allowed: Allowed) -> AnyRun:
    """Return the configuration with the administrator's hosts in place of ``*`` in ``sandbox.registries``."""
    data = config.model_dump(mode="json")
    if ANY not in data.get("sandbox", {}).get("registries", ()):
        return config
    hosts = [*data["sandbox"]["registries"], *allowed.image_registries]
    if ANY not in allowed.image_registries:
        hosts = [host for host in hosts if host != ANY]
    return parse_run_config(with_overrides(data, {"sandbox.registries": list(dict.fromkeys(hosts))}))
