"""The quickstart over a pool of tasks too large to memorise.

About 1,400 training tasks of nine packages, each sampled in one iteration; held-out tasks come from other
files of the same packages. ``bench/README.md`` has its results.
"""

from __future__ import annotations

from engine.config.curation import CurationConfig
from engine.config.learning.algorithm import AlgorithmConfig
from engine.config.learning.trainer import TrainerConfig
from engine.config.learning.training import EvaluationConfig
from engine.config.recipes.quickstart import AGENT, FAULT_KINDS
from engine.config.recipes.quickstart import PACKAGES as QUICKSTART_PACKAGES
from engine.config.rollout import DatasetConfig, GradingConfig
from engine.config.run import CurateRun, TrainRun
from engine.config.sandbox import SandboxConfig

DATASET = "quickstart-pool"
PACKAGES = (
    *QUICKSTART_PACKAGES,
    "more-itertools==10.8.0",
    "funcy==2.0",
    "pyrsistent==0.20.0",
    "markdown==3.8",
    "mistune==3.2.1",
    "pyasn1==0.6.1",
)
"""Source distributions of the pool: pure Python, with tests that need nothing but pytest. None is installed
here, so a warm start on installed packages does not see them."""
TRAIN_TASKS, HELDOUT_TASKS = 1400, 128


def dataset() -> CurateRun:
    """Build the pool: faults injected into nine pure-Python packages, verified by real tests."""
    return CurateRun(
        name="quickstart pool",
        curation=CurationConfig(
            sources=tuple(f"pip:{package}" for package in PACKAGES),
            output=DATASET,
            train_tasks=TRAIN_TASKS,
            heldout_tasks=HELDOUT_TASKS,
            stability_runs=2,
            max_function_lines=24,
            fault_kinds=FAULT_KINDS,
            test_timeout_s=120.0,
        ),
    )


def train() -> TrainRun:
    """Train with GRPO++ on the pool, one pass over its tasks; evaluate on held-out tasks alone."""
    return TrainRun(
        name="quickstart-pool",
        dataset=DatasetConfig(name=DATASET),
        agent=AGENT,
        grading=GradingConfig(timeout_s=30.0),
        sandbox=SandboxConfig(memory_mb=256, disk_mb=64, max_live=64, max_starting=4),
        algorithm=AlgorithmConfig(preset="grpo_pp", filtered_baseline="keep_zero"),
        trainer=TrainerConfig(iterations=175, checkpoint_every=5, threads=1),
        evaluation=EvaluationConfig(samples=4 * HELDOUT_TASKS, train_samples=0, every=35),
    )
