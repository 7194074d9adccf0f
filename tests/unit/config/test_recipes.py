"""Recipes for published models: lint findings, memory, evaluation settings and dry runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.algorithms.advantages import TrajectoryOutcome, outcome_members
from engine.algorithms.lint import lint
from engine.algorithms.terms import needs_entropy
from engine.config.dry_run import dry_run_settings
from engine.config.placement import run_bundles
from engine.config.recipes import resolve
from engine.config.run import CurateRun, TrainRun
from engine.errors import ConfigError
from engine.models.published.shapes import SHAPES
from engine.orchestrator.training.memory import warn_of_memory
from engine.types import TerminationReason
from tests.integration.toy_yard import events, open_context

HARDWARE = {"qwen3-0.6b-one-gpu": 24, "qwen3-4b-lora-24gb": 24, "qwen3-coder-30b-8gpu": 141}
"""Memory of one GPU by recipe, GB."""


def training(recipe: str) -> TrainRun:
    run = resolve(recipe)
    assert isinstance(run, TrainRun)
    return run


BLOG, GYM, CHOSEN = "the blog, section 4", "R2E-Gym's code of July 2025", "ours"
EVALUATION = {
    "agent.prompt": ("deepswe_r2e_v1", GYM), "agent.tool_format": ("xml", GYM),
    "agent.tools": ("r2e_gym", GYM), "agent.max_context": (64 * 1024, BLOG), "agent.max_steps": (100, BLOG),
    "agent.max_response": (16_384, GYM), "agent.min_response": (16, CHOSEN),
    "agent.command_timeout_s": (90.0, GYM), "agent.rollout_timeout_s": (50_000.0, GYM),
    "agent.token_warning": (0, GYM), "agent.step_reminder": (True, GYM), "agent.snippet_lines": (4, GYM),
    "agent.observation_chars": (10_000, GYM), "agent.observation_tokens": (8192, CHOSEN),
    "agent.thinking": ("on", BLOG), "agent.thinking_history": ("keep", GYM),
    "rollout.group_size": (16, BLOG), "grading.timeout_s": (30 * 60.0, "the blog, section 2.1"),
    "grading.evaluation_timeout_s": (None, "as grading.timeout_s"),
    "policy.temperature": (1.0, CHOSEN), "policy.top_p": (1.0, GYM), "policy.top_k": (0, GYM),
    "policy.min_p": (0.0, GYM), "collection.retry_temperatures": ([], GYM),
}  # fmt: skip
"""Setting of DeepSWE's evaluation → its value and where it was published."""


def test_evaluate_recipe_has_the_settings_of_deepswe() -> None:
    config = resolve("evaluate").model_dump(mode="json")
    values = {name: config[name.partition(".")[0]][name.partition(".")[2]] for name in EVALUATION}
    assert values == {name: value for name, (value, _) in EVALUATION.items()}
    assert set(config["agent"]) == {name[6:] for name in EVALUATION if name.startswith("agent.")}
    assert config["dataset"]["split"] == "heldout"


@pytest.mark.parametrize("recipe", HARDWARE)
def test_recipes_for_published_models_have_no_lint_findings(recipe: str) -> None:
    run = training(recipe)
    assert lint(run) == []
    assert run.policy.checkpoint in SHAPES


@pytest.mark.parametrize("recipe", HARDWARE)
def test_rollouts_ended_by_a_limit_are_masked_and_count_as_failures(recipe: str) -> None:
    outcomes = [
        TrajectoryOutcome(index=0, reward=1.0, termination=TerminationReason.SUBMITTED),
        TrajectoryOutcome(index=1, reward=1.0, termination=TerminationReason.MAX_STEPS),
    ]
    submitted, limited = outcome_members([outcomes], training(recipe).algorithm, max_context=100)[0]
    assert (submitted.advantage, submitted.loss_mask) == (1.0, True)
    assert not limited.loss_mask


@pytest.mark.parametrize(("limit", "alerts"), [(2**20, 1), (2**40, 0), (None, 0)])
def test_update_too_large_for_the_gpu_raises_an_early_alert(
    limit: int | None, alerts: int, tmp_path: Path
) -> None:
    """A limit of ``None`` means no GPU; the configuration here selects the CPU."""
    config = resolve("quickstart", {"trainer.device": "cpu"})
    assert isinstance(config, TrainRun)
    with open_context(tmp_path, "run", config) as run:
        warn_of_memory(config, run, limit=limit)
    emitted = [event for event in events(tmp_path / "runs" / "run") if event["type"] == "alert"]
    assert [event["code"] for event in emitted] == ["memory"] * alerts
    assert all("trainer.tokens_per_microbatch" in event["message"] for event in emitted)


def test_dry_run_uses_the_dataset_of_the_recipe_or_else_the_quickstart(tmp_path: Path) -> None:
    run = training("qwen3-4b-lora-24gb")
    with pytest.raises(ConfigError, match="neither the dataset 'r2e-gym-subset' nor 'quickstart'"):
        dry_run_settings(run, checkpoint=tmp_path, datasets=tmp_path)
    (tmp_path / "quickstart").mkdir()
    settings = dry_run_settings(run, checkpoint=tmp_path, datasets=tmp_path)
    assert (settings["dataset.name"], settings["sandbox.backend"]) == ("quickstart", "local")
    (tmp_path / "r2e-gym-subset").mkdir()
    assert "dataset.name" not in dry_run_settings(run, checkpoint=tmp_path, datasets=tmp_path)


@pytest.mark.parametrize("recipe", HARDWARE)
def test_a_dry_run_is_one_small_iteration_that_computes_a_gradient(recipe: str, tmp_path: Path) -> None:
    (tmp_path / "quickstart").mkdir()
    settings = dry_run_settings(training(recipe), checkpoint=tmp_path, datasets=tmp_path)
    run = resolve(recipe, settings)
    assert isinstance(run, TrainRun)
    assert run.launcher.backend == "local"
    assert run_bundles(run, cluster_has_gpus=True) == []
    assert run.trainer.data_parallel * run.trainer.context_parallel <= 2
    assert (run.trainer.iterations, run.trainer.tasks_per_iteration, run.rollout.group_size) == (1, 2, 2)
    assert (run.trainer.device, run.trainer.precision) == ("cpu", training(recipe).trainer.precision)
    assert needs_entropy(run.algorithm)
    assert not run.algorithm.filtered_reasons
    assert not [finding for finding in lint(run) if "filtered" in str(finding)]


@pytest.mark.parametrize(
    ("recipe", "why"), [("quickstart-sft", "this is of kind 'sft'"), ("quickstart", "is already tiny")]
)
def test_dry_run_refuses_unsupported_recipes(recipe: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=why):
        dry_run_settings(resolve(recipe), checkpoint=tmp_path, datasets=tmp_path)


def test_quickstart_pool_is_large_and_trained_once_per_task() -> None:
    dataset, run = resolve("quickstart-pool-dataset"), training("quickstart-pool")
    assert isinstance(dataset, CurateRun)
    assert run.dataset.name == dataset.curation.output
    assert dataset.curation.train_tasks >= 1400
    assert dataset.curation.heldout_tasks >= 128
    assert run.evaluation.samples % dataset.curation.heldout_tasks == 0
    assert run.trainer.iterations * run.trainer.tasks_per_iteration == dataset.curation.train_tasks
