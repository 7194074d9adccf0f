"""Named, complete run configurations: one function per recipe, registered in ``RECIPES``.

To add one: write a function that returns a run configuration and put it in ``RECIPES``. People
override single settings by dotted name (``trainer.iterations=5``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from engine.config.recipes import (
    commits,
    deepswe,
    deepswe_variants,
    fine_tuning,
    frozenlake,
    hardening,
    importing,
    improvement,
    quickstart,
    quickstart_pool,
    validation,
    verifying,
)
from engine.config.run import AnyRun, parse_run_config, with_overrides
from engine.errors import ConfigError

RECIPES: Mapping[str, Callable[[], AnyRun]] = {
    "quickstart": quickstart.train,
    "quickstart-evaluate": quickstart.evaluate,
    "quickstart-oracle": quickstart.oracle,
    "quickstart-collect": quickstart.collect,
    "quickstart-dataset": quickstart.dataset,
    "try-model": quickstart.try_model,
    "quickstart-sft": quickstart.sft,
    "quickstart-pool": quickstart_pool.train,
    "quickstart-pool-dataset": quickstart_pool.dataset,
    "frozenlake": frozenlake.train,
    "frozenlake-evaluate": frozenlake.evaluate,
    "frozenlake-sft": frozenlake.sft,
    "qwen3-0.6b-one-gpu": deepswe.qwen3_small,
    "qwen3-4b-lora-24gb": deepswe.qwen3_lora,
    "qwen3-coder-30b-8gpu": deepswe.qwen3_coder,
    "deepswe-32b": deepswe.qwen3_32b,
    "deepswe-32b-script": deepswe.qwen3_32b_script,
    "deepswe-14b-filter": deepswe_variants.qwen3_14b_filter,
    "deepswe-nonthinking": deepswe_variants.qwen3_32b_nonthinking,
    "deepswe-qwen3-coder-30b": deepswe_variants.qwen3_coder_30b,
    "quickstart-fine-tune": fine_tuning.quickstart,
    "fine-tune": fine_tuning.fine_tune,
    "quickstart-improve": improvement.quickstart,
    "improve": improvement.improve,
    "collect": deepswe.collect,
    "evaluate": deepswe.evaluate,
    "verify": verifying.verify,
    "train-judge": verifying.train_judge,
    "verify-by-tests": verifying.verify_by_tests,
    "write-tests": verifying.write_tests,
    "regrade": verifying.regrade,
    "validate-dataset": validation.validate,
    "import-dataset": importing.import_set,
    "commits-dataset": commits.dataset,
    "hardened-dataset": hardening.harden,
}


def resolve(recipe: str, overrides: Mapping[str, Any] | None = None) -> AnyRun:
    """Return the complete configuration of a recipe with dotted overrides applied.

    Raises:
        ConfigError: the recipe is unknown, or an override names an unknown or impossible setting.
    """
    if recipe not in RECIPES:
        raise ConfigError(f"unknown recipe '{recipe}'; known: {', '.join(sorted(RECIPES))}")
    data = RECIPES[recipe]().model_dump(mode="json")
    return parse_run_config(with_overrides({**data, "recipe": recipe}, overrides or {}))
